"""Environment steps per second of PPO: our trainable and stable-baselines3, alternating, same sizes.

    python benchmarks/ppo_throughput.py --rounds 6 --rollouts 20

Both act and learn on CartPole-v1 with 8 environments × 32 steps, one batch of 256, 20 epochs and networks of 64-64, on
one thread. Ours takes the loop's own steps, with deterministic algorithms as the loop has them. Theirs is `learn` with
its DummyVecEnv, as its zoo runs it. Needs `pip install stable-baselines3==2.9.2`.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import stable_baselines3
import torch
from stable_baselines3.common.env_util import make_vec_env

from trainwright.budget import LoopSettings
from trainwright.guards import ExplosionGuard
from trainwright.models.ppo import PPO
from trainwright.models.ppo_options import PPODataOptions, PPOOptions
from trainwright.optimizers import OptimizerSettings
from trainwright.schedules import Schedule
from trainwright.steps import HostStepper
from trainwright.trainable import Setup, Trainable

NAME, COUNT, STEPS, EPOCHS, RATE, MAX_NORM = "CartPole-v1", 8, 32, 20, 1e-3, 0.5
SAMPLES = COUNT * STEPS
WARM_UP = 2  # rollouts

Side: TypeAlias = Callable[[int], None]  # acts and learns from this many rollouts


def main() -> None:
    parser = argparse.ArgumentParser(description="compare the throughput of PPO with stable-baselines3's")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--rollouts", type=int, default=20, help="of each side in a round")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010  as a run has it; untyped in torch
    sides = our_side(), their_side()
    for side in sides:
        side(WARM_UP)
    compare(*sides, rounds=arguments.rounds, turns=arguments.rollouts, acted=SAMPLES)


def our_side() -> Side:
    """Drive the trainable by the loop's stepper, which also takes the norm, holds the guards and keeps the time."""
    model = PPOOptions(hidden_dims=[64, 64], discount=0.98, gae_lambda=0.8, update_epochs=EPOCHS)
    data = PPODataOptions(environment=NAME, environments=COUNT, rollout_steps=STEPS)
    optimizer = OptimizerSettings(RATE, betas=(0.9, 0.999), eps=1e-5, weight_decay=0.0)
    return driven(PPO.build(Setup(model, data, SAMPLES, optimizer=optimizer)), MAX_NORM, updates=EPOCHS)


def driven(trainable: Trainable, clip_norm: float, *, updates: int) -> Side:
    """Let a trainable take the loop's own steps, `updates` a turn, at its constant rate."""
    explosion = ExplosionGuard("off", ratio=10.0, window=100, max_skips=10)
    schedule = Schedule(trainable.learning_rate, "constant")
    stepper = HostStepper(trainable, LoopSettings(schedule, clip_norm=clip_norm), explosion)

    def learn(turns: int) -> None:
        torch.use_deterministic_algorithms(True)
        for _ in range(turns * updates):
            stepper.take(trainable.step)
        torch.use_deterministic_algorithms(False)

    return learn


def their_side() -> Side:
    sizes: dict[str, Any] = {"n_steps": STEPS, "batch_size": SAMPLES, "n_epochs": EPOCHS, "learning_rate": RATE}
    others: dict[str, Any] = {"gamma": 0.98, "gae_lambda": 0.8, "max_grad_norm": MAX_NORM, "device": "cpu"}
    model = stable_baselines3.PPO("MlpPolicy", make_vec_env(NAME, n_envs=COUNT, seed=0), seed=0, **sizes, **others)

    def learn(rollouts: int) -> None:
        model.learn(rollouts * SAMPLES, reset_num_timesteps=False)

    return learn


def compare(ours: Side, theirs: Side, *, rounds: int, turns: int, acted: int) -> None:
    """Let the sides alternate; `turns` of acting and learning a round, `acted` environment steps each."""
    ratios = []
    for index in range(rounds):
        rates = {}
        sides = {"ours": ours, "stable-baselines3": theirs}
        for name, side in sorted(sides.items(), reverse=index % 2 == 1):
            began = time.perf_counter()
            side(turns)
            rates[name] = turns * acted / (time.perf_counter() - began)
        ratios.append(rates["ours"] / rates["stable-baselines3"])
        print(
            f"round {index}: ours {rates['ours']:,.0f} environment steps/s, "
            f"stable-baselines3 {rates['stable-baselines3']:,.0f}, ratio {ratios[-1]:.3f}"
        )
    print(
        f"median ratio over {rounds} rounds: {statistics.median(ratios):.3f} "
        f"(lowest {min(ratios):.3f}, highest {max(ratios):.3f})"
    )


if __name__ == "__main__":
    main()
