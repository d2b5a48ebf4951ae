"""Small agents: run.yaml as a mapping, in environments that are fast."""

from typing import Any, Final

from tests.acceptance import harness

CONTRACT: Final = "training-loop-agent-v1"
OWN: Final = {"name": "agent", "train__batch_size": 16, "optimizer__weight_decay": 0.0}
PENDULUM: Final[dict[str, Any]] = {  # continuous, and all of it normalised
    "data__environment": "Pendulum-v1",
    "data__validation_episodes": 2,
    "data__normalize_observations": True,
    "data__normalize_rewards": True,
}
PRIORITY: Final[dict[str, Any]] = {"data__priority": {}}
EVERYTHING: Final[dict[str, Any]] = {
    **PRIORITY,
    "model__n_step": 3,
    "model__dueling": True,
    "model__target_rate": 0.1,
}


def under_contract(**changes: Any) -> dict[str, Any]:
    """Give an agent that is trained under the shipped contract; `changes` give its model, data and batch."""
    own = {"contract": CONTRACT, "validate__every": 40, "guards": {"explosion": {"policy": "off"}}}
    return harness.config(**{**OWN, **own, **changes})


def ppo(**changes: Any) -> dict[str, Any]:
    """Give one of 2 environments × 16 steps; 6 updates of 16 samples a rollout."""
    data = {"environment": "CartPole-v1", "environments": 2, "rollout_steps": 16, "validation_episodes": 4}
    model = {"type": "ppo", "hidden_dims": [16], "update_epochs": 3}
    return harness.config(**{**OWN, "model": model, "data": data, **changes})


def dqn(**changes: Any) -> dict[str, Any]:
    """Give one with rounds of 2 environments × 8 steps and 4 updates of 16 samples, learning after 64 steps."""
    data = {"environment": "CartPole-v1", "environments": 2, "acting_steps": 8, "round_samples": 64}
    sizes = {"replay_size": 400, "learning_starts": 64, "validation_episodes": 4}
    model = {"type": "dqn", "hidden_dims": [16], "epsilon_env_steps": 400, "target_every": 6}
    return harness.config(**{**OWN, "model": model, "data": {**data, **sizes}, **changes})
