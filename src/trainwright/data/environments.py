"""Gymnasium environments acted in together. Every episode begins by a seed of its own, so that a replay is exact.

The episode seed is a hash of the run's seed, the purpose, the environment's index and the episode's number. A state is
the number of each environment's episode and the actions in it so far; `load` replays them. A truncated episode is told
apart from a terminated one: only the second has an end whose value is zero.
Shapes in names: n environments, f features of an observation, a parts of an action.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, cast, final

import numpy as np
import numpy.typing as npt
import torch

from trainwright.errors import DamagedCheckpointError, InputError, about
from trainwright.files import sha256_of_bytes
from trainwright.state import State, StateValue, require, require_tensor

Array: TypeAlias = npt.NDArray[Any]
Purpose: TypeAlias = Literal["training", "validation", "evaluation", "replay_check"]

AT_ONCE: Final = 32  # episodes that are played beside each other
CHECKED_ACTIONS: Final = 32  # of the replay check before step 0
INSTALL: Final = "environments need gymnasium, which is not installed; install it: pip install 'trainwright[agents]'"


def episode_seed(seed: int, purpose: Purpose, index: int, episode: int) -> int:
    """Give the seed of one episode: the first 63 bits of SHA-256 over `purpose/seed/index/episode`.

    Purposes never share a seed, so that what selects a checkpoint is never what it is judged by.
    """
    digest = hashlib.sha256(f"{purpose}/{seed}/{index}/{episode}".encode()).digest()
    return int.from_bytes(digest[:8]) >> 1


@dataclass(frozen=True, slots=True)
class Actions:
    """What an environment takes: one of `count` whole numbers from `start`, or `count` bounded numbers of `shape`."""

    discrete: bool
    count: int
    start: int = 0
    shape: tuple[int, ...] = ()
    low_a: Array = field(default_factory=lambda: np.zeros(0, np.float32))
    high_a: Array = field(default_factory=lambda: np.zeros(0, np.float32))

    def taken(self, actions: Array) -> Array:
        """Give actions as the environments take them: counted from `start`, or clipped to the bounds, in float32."""
        if self.discrete:
            return actions.astype(np.int64) + self.start
        return np.clip(actions, self.low_a, self.high_a).astype(np.float32)

    def told(self) -> dict[str, Any]:
        """Give it as JSON; a bound that is infinite is None."""
        bounds = {"low": self.low_a, "high": self.high_a}
        ends = {name: [float(end) if np.isfinite(end) else None for end in ends] for name, ends in bounds.items()}
        own = {"start": self.start} if self.discrete else {"shape": list(self.shape), **ends}
        return {"discrete": self.discrete, "count": self.count, **own}

    def shaped(self, action: Any) -> Any:
        """Give one action that was `taken` in the environment's own shape."""
        return action if self.discrete else action.reshape(self.shape)


@dataclass(frozen=True, slots=True)
class Kind:
    """An environment by its registered name (`module:name` imports the module first) and its keyword arguments."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def make(self) -> Any:
        """Make one. Errors: InputError when gymnasium is not installed, or does not know or cannot make it."""
        gymnasium = _gymnasium()
        with about("data.environment"):
            try:
                return gymnasium.make(self.name, disable_env_checker=True, **self.options)
            except (gymnasium.error.Error, ImportError, TypeError) as error:
                raise InputError(f"environment {self.name!r} cannot be made: {error}") from error

    @property
    def sha256(self) -> str:
        told = json.dumps({"name": self.name, "options": dict(self.options)}, sort_keys=True, default=repr)
        return sha256_of_bytes(told.encode())


def _gymnasium() -> Any:
    try:
        import gymnasium
    except ImportError as error:
        raise InputError(INSTALL) from error
    return gymnasium


@dataclass(frozen=True, slots=True)
class Spaces:
    """What is seen and done in an environment. Observations are flattened to `features` numbers."""

    features: int
    actions: Actions


def spaces_of(environment: Any) -> Spaces:
    """Describe an environment. Errors: InputError for spaces other than Box of numbers, and Discrete or Box actions."""
    seen, done = environment.observation_space, environment.action_space
    kinds = type(seen).__name__, type(done).__name__
    if kinds[0] != "Box" or kinds[1] not in {"Box", "Discrete"}:
        raise InputError(
            f"environment {environment.spec.id!r} has observations {seen} and actions {done}; expected observations in "
            "a Box, and actions that are Discrete or in a Box"
        )
    features = int(np.prod(seen.shape))
    if kinds[1] == "Discrete":
        return Spaces(features, Actions(discrete=True, count=int(done.n), start=int(done.start)))
    low, high = done.low.ravel(), done.high.ravel()
    return Spaces(features, Actions(discrete=False, count=len(low), shape=done.shape, low_a=low, high_a=high))


@dataclass(frozen=True, slots=True)
class Stepped:
    """What one action in each environment led to.

    `next_nf` is what followed it; `observations_nf` is what the next action sees: of a new episode, where one ended.
    `returns` are those of the episodes that ended.
    """

    observations_nf: Array
    next_nf: Array
    rewards_n: Array
    terminated_n: Array
    truncated_n: Array
    returns: Sequence[float]


@final
class Environments:
    """`count` environments of one kind. `inexact` tells why a replay cannot be trusted; None where it can."""

    def __init__(self, kind: Kind, count: int, seed: int, purpose: Purpose = "training") -> None:
        """Make them and begin the first episode of each. Errors: InputError as `Kind.make` and `spaces_of`."""
        self._made = [kind.make() for _ in range(count)]
        self.kind, self.spaces = kind, spaces_of(self._made[0])
        self._seed, self._purpose = seed, purpose
        self._episodes, self._seeds = [0] * count, [0] * count
        self._actions: list[list[Any]] = [[] for _ in range(count)]
        self._returns = [0.0] * count
        self.inexact = replay_fault(kind)
        self.observations_nf = np.zeros((count, self.spaces.features), np.float32)
        for index in range(count):
            self._begin(index)

    def __len__(self) -> int:
        return len(self._made)

    def step(self, actions: Array) -> Stepped:
        """Take one action in each: whole numbers from 0, shape (n,), or numbers of shape (n, a), which are clipped."""
        count = len(self._made)
        rewards_n, terminated_n, truncated_n = np.zeros(count), np.zeros(count, bool), np.zeros(count, bool)
        next_nf, returns, taken = np.empty_like(self.observations_nf), list[float](), self.spaces.actions.taken(actions)
        for index, action in enumerate(taken):
            seen, reward, terminated, truncated = self._act(index, action)
            next_nf[index] = seen
            rewards_n[index], terminated_n[index], truncated_n[index] = reward, terminated, truncated
        self.observations_nf = next_nf
        if (ended := np.flatnonzero(terminated_n | truncated_n)).size:
            self.observations_nf = next_nf.copy()
            for index in map(int, ended):
                returns.append(self._returns[index])
                self._episodes[index] += 1
                self._begin(index)
        return Stepped(self.observations_nf, next_nf, rewards_n, terminated_n, truncated_n, returns)

    def _begin(self, index: int) -> None:
        self._reset(index, episode_seed(self._seed, self._purpose, index, self._episodes[index]))

    def _reset(self, index: int, seed: int) -> None:
        seen, _ = self._made[index].reset(seed=seed)
        self.observations_nf[index] = np.ravel(seen)
        self._seeds[index], self._actions[index], self._returns[index] = seed, [], 0.0

    def _act(self, index: int, action: Any) -> tuple[Array, float, bool, bool]:
        self._actions[index].append(action)
        seen, reward, terminated, truncated, _ = self._made[index].step(self.spaces.actions.shaped(action))
        self._returns[index] += float(reward)
        return np.ravel(seen), float(reward), bool(terminated), bool(truncated) and not terminated

    def save(self) -> dict[str, StateValue]:
        """Give number, seed and actions so far of each episode, and what was seen last, to hold a replay against."""
        return {
            "episodes": cast("StateValue", list(self._episodes)),
            "seeds": cast("StateValue", list(self._seeds)),
            "observations": torch.from_numpy(self.observations_nf.copy()),
            **{f"actions.{index}": self._actions_of(index) for index in range(len(self))},
        }

    def _actions_of(self, index: int) -> torch.Tensor:
        space = self.spaces.actions
        taken = self._actions[index]
        if space.discrete:
            return torch.tensor([int(action) for action in taken], dtype=torch.int64)
        return torch.from_numpy(np.array(taken, np.float32).reshape(len(taken), space.count))

    def load(self, state: State) -> None:
        """Replay each episode by its own seed, which may be of a parent run.

        One that does not come to what was saved begins anew, and `inexact` then says so.

        Errors: DamagedCheckpointError for an entry that is missing or of another number of environments.
        """
        episodes, seen_nf = cast("list[int]", require(state, "episodes")), require_tensor(state, "observations").numpy()
        seeds = cast("list[int]", require(state, "seeds"))
        if len(episodes) != len(self) or seen_nf.shape != self.observations_nf.shape:
            raise DamagedCheckpointError(
                f"entry 'observations' of the checkpoint has shape {list(seen_nf.shape)}, these {len(self)} "
                f"environments give {list(self.observations_nf.shape)}"
            )
        self._episodes = [int(episode) for episode in episodes]
        self.observations_nf = np.empty_like(self.observations_nf)
        for index in range(len(self)):
            self._reset(index, seeds[index])
            self._replay(index, require_tensor(state, f"actions.{index}").numpy(), seen_nf[index])

    def _replay(self, index: int, actions: Array, seen_f: Array) -> None:
        for action in actions:
            self.observations_nf[index], *_ = self._act(index, action)
        if self.observations_nf[index].tobytes() != seen_f.tobytes():
            self.inexact = (
                f"environment {index} of {self.kind.name} shows another observation after a replay of "
                f"{len(actions)} actions than was saved; its episode began anew"
            )
            self._episodes[index] += 1
            self._begin(index)


def replay_fault(kind: Kind) -> str | None:
    """Tell why episodes of this kind cannot be replayed: the same seed and actions led elsewhere; None if they did not.

    One environment plays twice, as it does when a checkpoint is loaded into it, at most 32 actions each time.
    """
    environment = kind.make()
    environment.action_space.seed(0)
    actions = [environment.action_space.sample() for _ in range(CHECKED_ACTIONS)]
    first, second = (_played(environment, actions) for _ in range(2))
    if first == second:
        return None
    return f"{kind.name} is not exact: one seed and the same {CHECKED_ACTIONS} actions led to different observations"


def _played(environment: Any, actions: Sequence[Any]) -> list[bytes]:
    seen, _ = environment.reset(seed=episode_seed(0, "replay_check", 0, 0))
    found = [np.asarray(seen).tobytes()]
    for action in actions:
        seen, reward, terminated, truncated, _ = environment.step(action)
        found += [np.asarray(seen).tobytes(), np.float64(reward).tobytes()]
        if terminated or truncated:
            break
    return found


def play(kind: Kind, seeds: Sequence[int], act: Callable[[Array], Array]) -> list[float]:
    """Play one episode for each seed, to its end, by what `act` does on observations (n, f); give their returns."""
    returns: list[float] = []
    for first in range(0, len(seeds), AT_ONCE):
        returns += _played_out(kind, seeds[first : first + AT_ONCE], act)
    return returns


def _played_out(kind: Kind, seeds: Sequence[int], act: Callable[[Array], Array]) -> list[float]:
    made = [kind.make() for _ in seeds]
    actions = spaces_of(made[0]).actions
    seen = [np.ravel(environment.reset(seed=seed)[0]) for environment, seed in zip(made, seeds, strict=True)]
    returns, going = [0.0] * len(seeds), list(range(len(seeds)))
    while going:
        taken = actions.taken(act(np.array([seen[index] for index in going], np.float32)))
        still = []
        for index, action in zip(going, taken, strict=True):
            observed, reward, terminated, truncated, _ = made[index].step(actions.shaped(action))
            seen[index] = np.ravel(observed)
            returns[index] += float(reward)
            if not (terminated or truncated):
                still.append(index)
        going = still
    return returns
