"""The options of PPO, as run.yaml gives them: the sections `model:` and `data:`."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from trainwright.models.agents import Count, EnvironmentOptions

Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]


class PPOOptions(BaseModel):
    """The section `model:` of PPO. Its defaults are those of the paper's table 3 and of common use since."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    type: Literal["ppo"] = "ppo"
    hidden_dims: Annotated[list[Count], Field(min_length=1)] = [64, 64]
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
