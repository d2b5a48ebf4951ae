"""The options of DQN, as run.yaml gives them: the sections `model:` and `data:`."""

import math
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from trainwright.models.agents import Count, EnvironmentOptions
from trainwright.models.presets import Presets, WithPresets

Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
EPOCH_ENV_STEPS: Final = 5_000  # about; in whole rounds

# Those of the examples, which say what returns they came to, with which data, batch and learning rate.
PRESETS: Final[Presets] = {
    "cartpole": {
        "hidden_dims": [128, 128],
        "n_step": 3,
        "target_every": 1,
        "target_rate": 0.01,
        "epsilon_end": 0.04,
        "epsilon_env_steps": 6_000,
    },
    "mountaincar": {
        "double": False,
        "discount": 0.98,
        "target_every": 300,
        "epsilon_end": 0.07,
        "epsilon_env_steps": 24_000,
    },
}


class DQNOptions(WithPresets):
    """The section `model:` of DQN."""

    presets: ClassVar[Presets] = PRESETS
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    type: Literal["dqn"] = "dqn"
    hidden_dims: list[Count] = Field([256, 256], min_length=1)
    activation: Literal["tanh", "relu"] = "relu"
    dueling: bool = False
    double: bool = True
    discount: Share = 0.99
    n_step: Count = 1
    target_every: Count = 100  # updates
    target_rate: Annotated[float, Field(gt=0, le=1)] = 1.0  # 1: the target becomes a copy
    epsilon_start: Share = 1.0
    epsilon_end: Share = 0.05
    epsilon_env_steps: Count = 10_000  # from the first environment step on

    @model_validator(mode="after")
    def _falls(self) -> Self:
        if self.epsilon_end > self.epsilon_start:
            raise ValueError(
                f"epsilon_end is {self.epsilon_end}; expected at most epsilon_start, which is {self.epsilon_start}"
            )
        return self


class PriorityOptions(BaseModel):
    """Prioritized replay. Its defaults are those of Schaul et al. 2016, table 3, for the proportional variant."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    alpha: Share = 0.6
    beta_start: Share = 0.4
    beta_end: Share = 1.0
    beta_env_steps: Count = 100_000
    floor: Positive = 1e-6  # added to each error


class DQNDataOptions(EnvironmentOptions):
    """The section `data:` of DQN."""

    replay_size: Count = 100_000  # environment steps
    learning_starts: Annotated[int, Field(ge=0)] = 1_000  # environment steps, of random actions
    acting_steps: Count = 1  # in each environment, in a round
    round_samples: Count = 512  # learnt from in a round, in batches
    priority: PriorityOptions | None = None  # None: uniform

    @property
    def acted(self) -> int:
        """Give the environment steps of a round."""
        return self.environments * self.acting_steps

    @property
    def rows(self) -> int:
        return self.replay_size // self.environments

    @property
    def rounds_per_epoch(self) -> int:
        return max(1, (self.env_steps_per_epoch or EPOCH_ENV_STEPS) // self.acted)

    @property
    def first_rounds(self) -> int:
        """Give the rounds that are acted before anything is learnt."""
        return max(1, math.ceil(self.learning_starts / self.acted))

    @model_validator(mode="after")
    def _whole_rounds(self) -> Self:
        if self.env_steps_per_epoch is not None and self.env_steps_per_epoch % self.acted:
            raise ValueError(
                f"env_steps_per_epoch is {self.env_steps_per_epoch}; expected whole rounds: a multiple of "
                f"environments × acting_steps, {self.acted}"
            )
        if self.learning_starts > self.replay_size:
            raise ValueError(
                f"learning_starts is {self.learning_starts}; expected at most replay_size, which is {self.replay_size}"
            )
        return self
