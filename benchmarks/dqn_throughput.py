"""Environment steps per second of DQN: our trainable and stable-baselines3, alternating, same sizes.

    python benchmarks/dqn_throughput.py --rounds 6 --turns 4

Both act and learn on CartPole-v1 with 8 environments × 32 steps and then 128 updates of 64 samples out of a replay of
100,000, one target a turn, no double Q-learning (theirs has none), on one thread: the setting of its zoo, with networks
of 256-256 as there, and of 64-64 as it has without one. Ours takes the loop's own steps, with deterministic algorithms
as the loop has them. Theirs is `learn` with its DummyVecEnv. Needs `pip install stable-baselines3==2.9.2`.
"""

import argparse
from typing import Any

import stable_baselines3
import torch
from ppo_throughput import Side, compare, driven  # type: ignore[import-not-found]  # of the script's folder
from stable_baselines3.common.env_util import make_vec_env

from trainwright.models.dqn import DQN
from trainwright.models.dqn_options import DQNDataOptions, DQNOptions
from trainwright.optimizers import OptimizerSettings
from trainwright.trainable import Setup

NAME, COUNT, STEPS, UPDATES, BATCH, RATE, MAX_NORM = "CartPole-v1", 8, 32, 128, 64, 2.3e-3, 10.0
DISCOUNT, REPLAY, STARTS, EPSILON_END = 0.99, 100_000, 1024, 0.04
NETWORKS = ([64, 64], [256, 256])
WARM_UP = 6  # turns: the first of them learn nothing
ACTED = COUNT * STEPS


def main() -> None:
    parser = argparse.ArgumentParser(description="compare the throughput of DQN with stable-baselines3's")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--turns", type=int, default=4, help="of acting and learning, of each side in a round")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010  as a run has it; untyped in torch
    for hidden in NETWORKS:
        print(f"networks of {'-'.join(map(str, hidden))}")
        ours, theirs = our_side(hidden), their_side(hidden)
        ours(2)  # the first of its turns are acted alone, all at once
        theirs(WARM_UP)
        compare(ours, theirs, rounds=arguments.rounds, turns=arguments.turns, acted=ACTED)


def our_side(hidden: list[int]) -> Side:
    """Drive the trainable by the loop's stepper, which also takes the norm, holds the guards and keeps the time."""
    model = DQNOptions(
        hidden_dims=hidden, double=False, discount=DISCOUNT, target_every=UPDATES, epsilon_end=EPSILON_END
    )
    data = DQNDataOptions(
        environment=NAME,
        environments=COUNT,
        acting_steps=STEPS,
        round_samples=UPDATES * BATCH,
        replay_size=REPLAY,
        learning_starts=STARTS,
    )
    optimizer = OptimizerSettings(RATE, betas=(0.9, 0.999), weight_decay=0.0)
    return driven(DQN.build(Setup(model, data, BATCH, optimizer=optimizer)), MAX_NORM, updates=UPDATES)


def their_side(hidden: list[int]) -> Side:
    sizes: dict[str, Any] = {
        "buffer_size": REPLAY,
        "learning_starts": STARTS,
        "batch_size": BATCH,
        "learning_rate": RATE,
    }
    turn: dict[str, Any] = {"train_freq": STEPS, "gradient_steps": UPDATES, "target_update_interval": ACTED}
    others: dict[str, Any] = {"gamma": DISCOUNT, "max_grad_norm": MAX_NORM, "exploration_final_eps": EPSILON_END}
    environments = make_vec_env(NAME, n_envs=COUNT, seed=0)
    policy: dict[str, Any] = {"policy_kwargs": {"net_arch": hidden}, "device": "cpu", "seed": 0}
    model = stable_baselines3.DQN("MlpPolicy", environments, **sizes, **turn, **others, **policy)

    def learn(turns: int) -> None:
        model.learn(turns * ACTED, reset_num_timesteps=False)

    return learn


if __name__ == "__main__":
    main()
