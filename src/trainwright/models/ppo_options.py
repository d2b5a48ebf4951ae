"""The options of PPO, as run.yaml gives them: the sections `model:` and `data:`."""

from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from trainwright.models.agents import Count, EnvironmentOptions
from trainwright.models.presets import Presets, WithPresets

Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]

# Those of the examples, which say what returns they came to, with which data, batch and learning rate.
PRESETS: Final[Presets] = {
    "cartpole": {"discount": 0.98, "gae_lambda": 0.8, "update_epochs": 20, "clip_schedule": "as_learning_rate"},
    "acrobot": {"discount": 0.99, "gae_lambda": 0.94, "update_epochs": 4},
    "pendulum": {"discount": 0.9, "gae_lambda": 0.95, "update_epochs": 10},
}


class PPOOptions(WithPresets):
    """The section `model:` of PPO. Its defaults are those of the paper's table 3 and of common use since."""

    presets: ClassVar[Presets] = PRESETS
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    type: Literal["ppo"] = "ppo"
    hidden_dims: list[Count] = Field([64, 64], min_length=1)
    activation: Literal["tanh", "relu"] = "tanh"
    log_std: float = 0.0  # of continuous actions, at first
    discount: Share = 0.99
    gae_lambda: Share = 0.95
    update_epochs: Count = 10
    clip_range: Positive = 0.2
    clip_schedule: Literal["constant", "as_learning_rate"] = "constant"
    value_clip: Positive | None = None
    value_coefficient: Annotated[float, Field(ge=0)] = 0.5
    entropy_coefficient: Annotated[float, Field(ge=0)] = 0.0
    normalize_advantages: bool = True  # over the rollout, so that a loss is the mean over its samples
    target_kl: Positive | None = None


class PPODataOptions(EnvironmentOptions):
    """The section `data:` of PPO."""

    rollout_steps: Count = 128  # in each environment
    normalize_observations: bool = False
    normalize_rewards: bool = False

    @property
    def samples(self) -> int:
        return self.environments * self.rollout_steps

    @model_validator(mode="after")
    def _whole_rollouts(self) -> Self:
        if self.env_steps_per_epoch is not None and self.env_steps_per_epoch % self.samples:
            raise ValueError(
                f"env_steps_per_epoch is {self.env_steps_per_epoch}; expected whole rollouts: a multiple of "
                f"environments × rollout_steps, {self.samples}"
            )
        return self
