"""Deep Q-learning (Mnih et al. 2015), on several environments: double, dueling, over n steps, by priority as asked for.

A step is one update on one batch out of the replay. When a round's samples are used up, the agent acts again, so
environment steps are a metric. Shapes in names: t rows, n environments, b samples, f features, a actions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  torch's own convention

from trainwright.data.environments import Array, Environments
from trainwright.data.priorities import Priorities
from trainwright.data.replay import Replay
from trainwright.errors import InputError, about
from trainwright.illustrations import Panel
from trainwright.models.dqn_options import DQNDataOptions, DQNOptions, PriorityOptions
from trainwright.models.networks import QNetwork
from trainwright.models.replays import Acted, Line, Replayed, ReplaySource
from trainwright.models.rounds import RoundAgent
from trainwright.state import State, StateValue
from trainwright.torch_trainable import to_device
from trainwright.trainable import DataSize, Metric, Setup

EXPLORATION: Final = 2  # what a stream of random numbers is for; a replay has one for its draws
LOSS_METRICS: Final = (Metric("td_error", "reward", "min"), Metric("q_mean", "reward"))
METRICS: Final = (
    *LOSS_METRICS,
    Metric("q_limit", "reward"),
    Metric("epsilon", "share"),
    Metric("random_share", "share"),
    Metric("replay_filled", "share"),
    Metric("episode_return", "reward", "max"),
    Metric("env_steps", "steps"),
    Metric("env_steps_per_sec", "steps/s", "max"),
)


@dataclass(slots=True)
class _Noted:
    """What was seen of the micro-batches of a step; `skip` is that of the step, once it is taken."""

    numbers: list[tuple[Tensor, int]] = field(default_factory=list)
    errors: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # places, and what was mispredicted there
    is_over: bool = False
    is_taken: bool = False
    skip: Tensor | None = None


class Predicted(NamedTuple):
    """Q of the actions that were taken (b,), and what it is moved towards (b,), without a gradient."""

    q_b: Tensor
    target_b: Tensor


class DQN(RoundAgent):
    """Trains a `QNetwork` towards what a slower copy of it, the target, says of the steps that followed."""

    model_type = "dqn"
    options = DQNOptions
    data_options = DQNDataOptions
    source: ReplaySource

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.dqn: DQNOptions = setup.model
        self.acting: DQNDataOptions = setup.data
        self.network, self.target = self._network(), self._network()
        self.target.load_state_dict(self.network.state_dict())
        self.target.requires_grad_(requires_grad=False)
        self.source = _source(setup, self.environments, self.dqn)
        self._explored = Line(self.dqn.epsilon_start, self.dqn.epsilon_end, self.dqn.epsilon_env_steps)
        self._env_steps_per_sec: float | None = None
        self._noted = _Noted()

    def _network(self) -> QNetwork:
        spaces = self.environments.spaces
        if not spaces.actions.discrete:
            with about("data.environment"):
                raise InputError(
                    f"environment {self.data.environment!r} has actions that are numbers; DQN chooses among a few "
                    "(Discrete) ones; take another environment, or model.type ppo"
                )
        widths, options = self.dqn.hidden_dims, self.dqn
        return QNetwork(
            spaces.features, spaces.actions.count, widths, activation=options.activation, dueling=options.dueling
        )

    @property
    def architecture(self) -> Mapping[str, Any]:
        options = self.dqn.model_dump(include={"hidden_dims", "activation", "dueling"})
        return {**super().architecture, **options}

    @property
    def parameter_count(self) -> int:
        """Give the parameters of the network that acts; the target is a copy."""
        return sum(parameter.numel() for parameter in self.network.parameters())

    @property
    def data_size(self) -> DataSize:
        return self.source.data_size

    @property
    def metrics(self) -> Sequence[Metric]:
        return METRICS

    # -- acting ------------------------------------------------------------------------------------------------------

    def next_batch(self) -> Replayed:
        if self._noted.is_over:
            self._learn_errors()
            self._noted = _Noted()
        if self.source.due:
            began, before = perf_counter(), self.source.env_steps
            while self.source.due:
                self._act()
            self._env_steps_per_sec = (self.source.env_steps - before) / (perf_counter() - began)
        batch: Replayed = to_device(self.source.next_batch(), self.device)
        return batch

    def _act(self) -> None:
        """Act a round. What is random in it depends on seed and number alone."""
        generator = np.random.default_rng([EXPLORATION, self.setup.seed, self.source.rounds])
        shape = self.acting.acting_steps, len(self.environments)
        epsilon_t = self._epsilon(np.arange(shape[0]) * shape[1] + self.source.env_steps)
        explores_tn = generator.random(shape) < epsilon_t[:, None]
        random_tn = generator.integers(self.environments.spaces.actions.count, size=shape)
        returns, written_before = list[float](), self.source.replay.written
        for explores_n, random_n in zip(explores_tn, random_tn, strict=True):
            seen_nf = self.environments.observations_nf
            actions_n = random_n if explores_n.all() else np.where(explores_n, random_n, self.best_actions(seen_nf))
            stepped = self.environments.step(actions_n)
            self.source.replay.add(seen_nf, actions_n, stepped)
            returns += stepped.returns
        self.source.take_in(Acted(float(epsilon_t.mean()), float(explores_tn.mean()), returns), written_before)

    def _epsilon(self, env_steps_t: Array) -> Array:
        """Give the share of random actions after so many environment steps: all, before anything is learnt."""
        return np.ones(len(env_steps_t)) if self.source.is_warming_up else self._explored.at(env_steps_t)

    @torch.no_grad()
    def best_actions(self, observations_nf: Array) -> Array:
        q_na: Array = self.network(torch.from_numpy(observations_nf).to(self.device)).float().cpu().numpy()
        return np.asarray(q_na.argmax(-1))

    def illustrate(self) -> Sequence[Panel]:
        """Show one episode: the Q of the actions that were taken beside the returns that followed."""
        return self.episode_panels(self._values, self.dqn.discount)

    def _values(self, observations_nf: Array) -> Array:
        q_na: Tensor = self.network(torch.from_numpy(observations_nf).to(self.device))
        return np.asarray(q_na.max(-1).values.float().cpu().numpy())

    # -- learning ----------------------------------------------------------------------------------------------------

    def forward(self, batch: Replayed) -> Predicted:
        """Give Q and its target: Mnih et al. 2015, Algorithm 1; `double`: van Hasselt et al. 2016, equation 4."""
        q_b = self.network(batch.seen).gather(1, batch.actions[:, None]).squeeze(1)
        with torch.no_grad():
            following_ba = self.target(batch.following)
            if self.dqn.double:
                chosen_b1 = self.network(batch.following).argmax(1, keepdim=True)
                best_b = following_ba.gather(1, chosen_b1).squeeze(1)
            else:
                best_b = following_ba.amax(1)
            return Predicted(q_b, torch.addcmul(batch.returns, batch.discounts, best_b))

    def compute_loss(self, predictions: Predicted, batch: Replayed) -> tuple[Tensor, int]:
        """Give the mean Huber loss (smooth from δ = 1 on), weighted by importance, and the samples."""
        q_b, target_b = (part.float() for part in predictions)
        if self.acting.priority is None:
            loss = F.smooth_l1_loss(q_b, target_b)
        else:
            loss = (F.smooth_l1_loss(q_b, target_b, reduction="none") * batch.weights).mean()
        with torch.no_grad():
            errors_b = (target_b - q_b).abs()
            self._noted.numbers.append((torch.stack((errors_b, q_b)).mean(1), len(q_b)))
        self._noted.errors.append((batch.places, errors_b))
        return loss, len(q_b)

    def optimizer_step(self, skip: Tensor | None = None) -> None:
        """Take the step; each `target_every` of them the target moves. Priorities follow before the next batch."""
        super().optimizer_step(skip)
        self._noted.is_over = self._noted.is_taken = True
        self._noted.skip = skip
        if self.step % self.dqn.target_every == 0:
            self._move_target(skip)

    @torch.no_grad()
    def _move_target(self, skip: Tensor | None) -> None:
        """Move the target by `target_rate` (Lillicrap et al. 2016); where `skip` is 1.0, by nothing."""
        pairs = list(zip(self.target.parameters(), self.network.parameters(), strict=True))
        if skip is not None:
            for target, parameter in pairs:
                target.lerp_(parameter, self.dqn.target_rate * (1 - skip))
        elif self.dqn.target_rate == 1.0:
            torch._foreach_copy_([target for target, _ in pairs], [parameter for _, parameter in pairs])
        else:
            torch._foreach_lerp_(
                [target for target, _ in pairs], [parameter for _, parameter in pairs], self.dqn.target_rate
            )

    def _learn_errors(self) -> None:
        """Set the priorities of what a step that was taken learnt from, all its micro-batches at once."""
        noted = self._noted
        if noted.is_taken and noted.errors and self.acting.priority is not None:
            if noted.skip is None or not noted.skip.item():
                self.source.learn_errors(*(torch.cat(parts) for parts in zip(*noted.errors, strict=True)))
            noted.errors = []

    def collect_metrics(self) -> Mapping[str, float | None]:
        """Give what is known of the samples of the step, and of rounds and episodes so far.

        None stands for what is not there yet: no episode has ended, or no round was acted since a resume.
        """
        self._noted.is_over = True
        source, newest = self.source, self.source.newest
        return {
            **self._loss_metrics(),
            "q_limit": self._q_limit(),
            "epsilon": None if newest is None else newest.epsilon,
            "random_share": None if newest is None else newest.random_share,
            "replay_filled": source.replay.filled,
            "episode_return": source.episode_return,
            "env_steps": float(source.env_steps),
            "env_steps_per_sec": self._env_steps_per_sec,
        }

    def _loss_metrics(self) -> dict[str, float | None]:
        numbers = self._noted.numbers
        if not numbers:
            return dict.fromkeys((metric.name for metric in LOSS_METRICS), None)
        total = sum(samples for _, samples in numbers)
        told = [(means.tolist(), samples / total) for means, samples in numbers]
        td_error, q_mean = (sum(means[index] * share for means, share in told) for index in range(len(LOSS_METRICS)))
        return {"td_error": td_error, "q_mean": q_mean}

    def _q_limit(self) -> float | None:
        """Give the largest return that rewards as large as those seen can make; None where there is no such bound."""
        largest = self.source.replay.largest_reward
        return largest / (1 - self.dqn.discount) if largest and self.dqn.discount < 1 else None

    # -- state -------------------------------------------------------------------------------------------------------

    def save_checkpoint(self) -> dict[str, StateValue]:
        self._learn_errors()
        return dict(super().save_checkpoint())

    def load_checkpoint(self, state: State) -> None:
        super().load_checkpoint(state)
        self._noted, self._env_steps_per_sec = _Noted(), None


def _source(setup: Setup, environments: Environments, options: DQNOptions) -> ReplaySource:
    data: DQNDataOptions = setup.data
    _check(data, options, setup.batch_size)
    features, count, priority = environments.spaces.features, len(environments), data.priority
    replay = Replay(features, count, rows=data.rows, n_step=options.n_step, discount=options.discount)
    told = priority or PriorityOptions()
    return ReplaySource(
        environments,
        replay,
        None if priority is None else Priorities(replay.places, alpha=priority.alpha, floor=priority.floor),
        beta=Line(told.beta_start, told.beta_end, told.beta_env_steps),
        acted=data.acted,
        first_rounds=data.first_rounds,
        rounds_per_epoch=data.rounds_per_epoch,
        round_samples=data.round_samples,
        batch_size=setup.batch_size,
        seed=setup.seed,
    )


def _check(data: DQNDataOptions, options: DQNOptions, batch_size: int) -> None:
    """Check what sections have to do with each other. Errors: InputError, told with the key."""
    if data.round_samples % batch_size:
        with about("train.batch_size"):
            raise InputError(
                f"a batch of {batch_size} does not divide the {data.round_samples} samples of a round "
                f"(data.round_samples); give a divisor"
            )
    if data.rows <= options.n_step:
        with about("data.replay_size"):
            raise InputError(
                f"a replay of {data.replay_size} holds {data.rows} steps of each of {data.environments} environments; "
                f"expected more than model.n_step, which is {options.n_step}"
            )
    if data.first_rounds * data.acting_steps < options.n_step:
        with about("data.learning_starts"):
            raise InputError(
                f"learning starts after {data.first_rounds * data.acting_steps} steps of each environment; expected at "
                f"least model.n_step, which is {options.n_step}"
            )
