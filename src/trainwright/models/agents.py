"""What agents share: how they are validated and evaluated by whole episodes, and how their environments are named.

Shapes in names: n environments, f features of an observation.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from trainwright.data.environments import Array, Environments, Kind, Purpose, episode_seed, play
from trainwright.illustrations import Panel
from trainwright.models.episodes import Act, episode_panel
from trainwright.torch_trainable import TorchTrainable
from trainwright.trainable import Metric, Setup, Validation, summarize

Count = Annotated[int, Field(ge=1)]
EPISODE_RETURN = Metric("episode_return", "reward", "max")


class EnvironmentOptions(BaseModel):
    """The part of the section `data:` that every agent has: a gymnasium environment, and how it is validated in."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    environment: str
    environment_options: dict[str, Any] = {}
    environments: Count = 8  # that are acted in beside each other
    env_steps_per_epoch: Count | None = None  # None: the model's own choice
    validation_episodes: Annotated[int, Field(ge=2)] = 20

    @property
    def kind(self) -> Kind:
        return Kind(self.environment, self.environment_options)


class Agent(TorchTrainable):
    """The base of agents: validated by the mean return of whole episodes, on environments made for that alone."""

    environments: Environments

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.data: EnvironmentOptions = setup.data
        self.environments = Environments(self.data.kind, self.data.environments, setup.seed)

    def best_actions(self, observations_nf: Array) -> Array:
        """Give what the policy does where it does not explore."""
        raise NotImplementedError

    @property
    def validation_metric(self) -> Metric:
        return EPISODE_RETURN

    @property
    def inexact(self) -> str | None:
        return self.environments.inexact

    @property
    def architecture(self) -> Mapping[str, Any]:
        actions = self.environments.spaces.actions
        return {
            "type": self.model_type,
            "features": self.environments.spaces.features,
            "actions": actions.count,
            "discrete": actions.discrete,
        }

    @property
    def interface(self) -> Mapping[str, Any]:
        """Give the environment, and how a score becomes an action there: counted from `start`, or cut to the bounds."""
        return {
            "environment": self.data.environment,
            "environment_options": dict(self.data.environment_options),
            "actions": self.environments.spaces.actions.told(),
        }

    def validate(self) -> Validation:
        """Play `data.validation_episodes` episodes whose seeds depend on the run's seed and the step alone."""
        return self.summary(self.returns(self.data.validation_episodes, self.setup.seed, "validation", self.step))

    def evaluate(self, episodes: int, seed: int) -> Validation:
        """Play episodes by seeds that no validation has."""
        return self.summary(self.returns(episodes, seed, "evaluation", 0))

    def returns(self, episodes: int, seed: int, purpose: Purpose, number: int) -> Sequence[float]:
        """Give the return of each episode under `best_actions`; changes no weight, mode, stream or environment."""
        seeds = [episode_seed(seed, purpose, number, episode) for episode in range(episodes)]
        with self.undisturbed():
            return play(self.data.kind, seeds, self.best_actions)

    def episode_panels(self, expect: Act, discount: float) -> Sequence[Panel]:
        """Show one episode by a seed that no validation has, with what `expect` says of its observations."""
        seed = episode_seed(self.setup.seed, "evaluation", self.step, 0)
        with self.undisturbed():
            return [episode_panel(self.data.kind, seed, self.best_actions, expect, discount)]

    @staticmethod
    def summary(returns: Sequence[float]) -> Validation:
        return summarize(EPISODE_RETURN.name, [(value, 1) for value in returns])
