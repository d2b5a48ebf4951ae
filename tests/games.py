"""Environments of tests, registered when this module is imported: `tests.games:Poisoned-v0`."""

import math
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv


class Walk(gymnasium.Env[Any, Any]):
    """Counts its steps from where the seed begins; ends by itself after `length` of them, where it is given."""

    observation_space = gymnasium.spaces.Box(-1e9, 1e9, (1,), np.float64)
    action_space: Any = gymnasium.spaces.Discrete(2, start=5)

    def __init__(self, length: int | None = None, *, forgets: bool = False, odd: bool = False) -> None:
        self.length, self.forgets, self.taken, self.offset = length, forgets, 0, 0.0
        if odd:
            self.action_space = gymnasium.spaces.MultiBinary(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.offset = self.offset + 1 if self.forgets else float(self.np_random.integers(1000))
        self.taken = 0
        return np.array([self.offset]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action in (5, 6)
        self.taken += 1
        return np.array([self.offset + self.taken]), 1.0, self.taken == self.length, False, {}


class Poisoned(CartPoleEnv):
    """CartPole whose reward is not a number from action `after` on, counted over all episodes."""

    def __init__(self, after: int = 0) -> None:
        super().__init__()
        self.after, self.actions = after, 0

    def step(self, action: Any) -> Any:
        self.actions += 1
        seen, reward, *rest = super().step(action)  # type: ignore[no-untyped-call]  # untyped in gymnasium
        return seen, math.nan if self.actions > self.after else reward, *rest


WALKS: dict[str, tuple[int | None, dict[str, Any]]] = {
    "Walks-v0": (4, {}),
    "Ends-v0": (4, {"length": 3}),
    "EndsAtLimit-v0": (3, {"length": 3}),
    "Forgets-v0": (4, {"forgets": True}),
    "Odd-v0": (4, {"odd": True}),
}
for name, (limit, options) in WALKS.items():
    gymnasium.register(name, "tests.games:Walk", max_episode_steps=limit, kwargs=options)
gymnasium.register("Poisoned-v0", "tests.games:Poisoned", max_episode_steps=500)
