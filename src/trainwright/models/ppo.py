"""Proximal policy optimization (Schulman et al. 2017): an actor and a critic, trained on what the actor has just done.

A step is one update on one minibatch. A rollout is acted when the one before is used up, so environment steps are a
metric. Shapes in names: t steps of a rollout, n environments, b samples, f features, a actions or parts of one.
"""

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from trainwright.data.environments import Array, Stepped
from trainwright.errors import InputError, about
from trainwright.illustrations import Panel
from trainwright.models.networks import ActorCritic, Moments
from trainwright.models.ppo_options import PPODataOptions, PPOOptions
from trainwright.models.rollouts import Rollout, RolloutSource, Samples, explained_variance, generalized_advantages
from trainwright.models.rounds import RoundAgent
from trainwright.state import State, require_tensor
from trainwright.torch_trainable import to_device
from trainwright.trainable import DataSize, Metric, Setup

ROLLOUTS_PER_EPOCH: Final = 10
ADVANTAGE_EPS: Final = 1e-8
ENDS: Final = ("terminated", "truncated")
NOISE: Final = 1  # what a stream of random numbers is for; rollouts have one for their order
KL_MARGIN: Final = 1.5  # of `target_kl`, before a rollout is left
LOSS_METRICS: Final = (
    Metric("policy_loss", "advantage"),
    Metric("value_loss", "return²"),
    Metric("entropy", "nats"),
    Metric("approx_kl", "nats"),
    Metric("clip_fraction", "share"),
)
ROLLOUT_METRICS: Final = (
    Metric("explained_variance", "share", "max"),
    Metric("episode_return", "reward", "max"),
    Metric("env_steps", "steps"),
    Metric("env_steps_per_sec", "steps/s", "max"),
)


class PPO(RoundAgent):
    """Trains an `ActorCritic` on the clipped objective; the loss counts samples."""

    model_type = "ppo"
    options = PPOOptions
    data_options = PPODataOptions
    source: RolloutSource

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.ppo: PPOOptions = setup.model
        self.acting: PPODataOptions = setup.data
        spaces = self.environments.spaces
        self.policy = ActorCritic(
            spaces.features,
            spaces.actions,
            self.ppo.hidden_dims,
            activation=self.ppo.activation,
            log_std=self.ppo.log_std,
            normalize=self.acting.normalize_observations,
        )
        self.return_moments = Moments(1) if self.acting.normalize_rewards else None
        self._discounted_n = np.zeros(len(self.environments))
        self.source = _source(setup, self.environments, self.ppo)
        self._env_steps_per_sec: float | None = None
        self._numbers: list[tuple[Tensor, int]] = []  # of the micro-batches of this step
        self._step_is_over = False

    @property
    def architecture(self) -> Mapping[str, Any]:
        options = {"hidden_dims": list(self.ppo.hidden_dims), "activation": self.ppo.activation}
        return {**super().architecture, **options, "normalize_observations": self.acting.normalize_observations}

    @property
    def data_size(self) -> DataSize:
        """Give the bytes of a rollout: what was seen and done, and four numbers of each sample."""
        space = self.environments.spaces
        action_bytes = 8 if space.actions.discrete else 4 * space.actions.count
        size_bytes = self.acting.samples * (4 * space.features + action_bytes + 4 * 4)
        return DataSize(size_bytes, size_bytes)

    @property
    def metrics(self) -> Sequence[Metric]:
        return (*LOSS_METRICS, *ROLLOUT_METRICS)

    # -- acting ------------------------------------------------------------------------------------------------------

    def next_batch(self) -> Samples:
        if self._step_is_over:
            self._numbers, self._step_is_over = [], False
        if self.source.due:
            began = perf_counter()
            self._act()
            self._env_steps_per_sec = self.acting.samples / (perf_counter() - began)
        batch: Samples = to_device(self.source.next_batch(), self.device)
        return batch

    @torch.no_grad()
    def _act(self) -> None:
        """Act a rollout. Its noise depends on seed and number alone; moments stay as they were until its end."""
        generator = np.random.default_rng([NOISE, self.setup.seed, self.source.rounds])
        steps, count = self.acting.rollout_steps, len(self.environments)
        noise_tna = self.policy.kind.noise(generator, (steps, count, self.environments.spaces.actions.count))
        draw, seen, actions, results = self.policy.drawing(), [], [], []
        for noise_na in noise_tna:
            seen.append(self.environments.observations_nf)
            actions.append(draw(self.policy.scores(seen[-1], self.device), noise_na))
            results.append(self.environments.step(actions[-1]))
        rollout = self._rollout(np.stack(seen), np.stack(actions), results)
        if self.policy.moments is not None:
            self.policy.moments.update(torch.from_numpy(np.concatenate(seen)).to(self.device))
        self.source.take_in(rollout, [value for result in results for value in result.returns])

    def _rollout(self, seen_tnf: Array, actions: Array, results: Sequence[Stepped]) -> Rollout:
        """Judge what was done by the policy that did it."""
        shape = actions.shape[:2]
        seen_bf = self.policy.seen(self._flat(seen_tnf))
        actions_b = self._flat(actions)
        scores, values_b = self.policy(seen_bf)
        log_probs_b = self.policy.judge(scores, actions_b).log_probs_b
        next_values_b = self.policy.critic(self.policy.seen(self._flat(np.stack([r.next_nf for r in results]))))
        values_tn, next_values_tn = (v.float().cpu().numpy().reshape(shape) for v in (values_b, next_values_b))
        terminated_tn, truncated_tn = (np.stack([getattr(r, f"{how}_n") for r in results]) for how in ENDS)
        advantages_tn = generalized_advantages(
            self._rewards(results),
            values_tn,
            next_values_tn,
            terminated_tn,
            truncated_tn,
            discount=self.ppo.discount,
            decay=self.ppo.gae_lambda,
        )
        returns_tn = advantages_tn + values_tn
        if self.ppo.normalize_advantages:
            advantages_tn = (advantages_tn - advantages_tn.mean()) / (advantages_tn.std() + ADVANTAGE_EPS)
        numbers = [torch.from_numpy(part.reshape(-1)) for part in (values_tn, advantages_tn, returns_tn)]
        samples = Samples(*(part.cpu() for part in (seen_bf, actions_b, log_probs_b.float())), *numbers)
        return Rollout(samples, explained_variance(values_tn, returns_tn))

    def _flat(self, values: Array) -> Tensor:
        return torch.from_numpy(values.reshape(-1, *values.shape[2:])).to(self.device)

    def _rewards(self, results: Sequence[Stepped]) -> Array:
        """Give rewards (t, n), where asked for over the deviation of the discounted returns so far, clipped to ±10."""
        rewards_tn = np.stack([result.rewards_n for result in results])
        if self.return_moments is None:
            return rewards_tn
        discounted = []
        for rewards_n, result in zip(rewards_tn, results, strict=True):
            self._discounted_n = self._discounted_n * self.ppo.discount + rewards_n
            discounted.append(self._discounted_n)
            self._discounted_n = np.where(result.terminated_n | result.truncated_n, 0.0, self._discounted_n)
        self.return_moments.update(torch.from_numpy(np.stack(discounted).reshape(-1, 1)).to(self.device))
        scaled: Array = np.clip(rewards_tn / self.return_moments.scale().item(), -10.0, 10.0)
        return scaled

    def best_actions(self, observations_nf: Array) -> Array:
        return self.policy.kind.best(self.policy.scores(observations_nf, self.device))

    def illustrate(self) -> Sequence[Panel]:
        """Show one episode: the critic's values beside the returns that followed."""
        return self.episode_panels(self._values, self.ppo.discount)

    def _values(self, observations_nf: Array) -> Array:
        """Give the critic's values of raw observations in the environment's own rewards."""
        values_b = self.policy.critic(self.policy.seen(self._flat(observations_nf[None]))).squeeze(-1)
        scale = 1.0 if self.return_moments is None else self.return_moments.scale().item()
        values: Array = values_b.float().cpu().numpy() * scale
        return values

    # -- learning ----------------------------------------------------------------------------------------------------

    @property
    def clip_range(self) -> float:
        peak, options = self.setup.optimizer.learning_rate, self.ppo
        share = self.learning_rate / peak if options.clip_schedule == "as_learning_rate" and peak else 1.0
        return options.clip_range * share

    def forward(self, batch: Samples) -> tuple[Tensor, Tensor]:
        """Give logits or means (b, a), and values (b,)."""
        scores, values_b = self.policy(batch.seen)
        return scores, values_b

    def compute_loss(self, predictions: tuple[Tensor, Tensor], batch: Samples) -> tuple[Tensor, int]:
        """Give the negative of Schulman et al. 2017, equation 9, with its L^CLIP of equation 7, and the samples."""
        scores, values_b = predictions[0].float(), predictions[1].float()
        judged, clip = self.policy.judge(scores, batch.actions), self.clip_range
        log_ratio_b = judged.log_probs_b - batch.log_probs
        ratio_b = log_ratio_b.exp()
        clipped_b = ratio_b.clamp(1 - clip, 1 + clip)
        policy_loss = -torch.minimum(batch.advantages * ratio_b, batch.advantages * clipped_b).mean()
        value_loss, entropy = self._value_loss(values_b, batch), judged.entropies_b.mean()
        with torch.no_grad():  # the estimator k3 of Schulman 2020, "Approximating KL divergence"
            kl = ((ratio_b - 1) - log_ratio_b).mean()
            clipped = ((ratio_b - 1).abs() > clip).float().mean()
            numbers = torch.stack((policy_loss, value_loss, entropy, kl, clipped))
        self._numbers.append((numbers, len(values_b)))
        loss = policy_loss + self.ppo.value_coefficient * value_loss - self.ppo.entropy_coefficient * entropy
        return loss, len(values_b)

    def _value_loss(self, values_b: Tensor, batch: Samples) -> Tensor:
        errors_b = (values_b - batch.returns).square()
        if self.ppo.value_clip is None:
            return errors_b.mean()
        moved_b = (values_b - batch.values).clamp(-self.ppo.value_clip, self.ppo.value_clip)
        return torch.maximum(errors_b, (batch.values + moved_b - batch.returns).square()).mean()

    def optimizer_step(self, skip: Tensor | None = None) -> None:
        """Take the step; where its divergence is above 1.5 × `target_kl`, the rest of the rollout is left out."""
        super().optimizer_step(skip)
        self._step_is_over = True
        if self.ppo.target_kl is not None and self._numbers:
            kl = self._loss_metrics()["approx_kl"]
            if kl is not None and kl > KL_MARGIN * self.ppo.target_kl:
                self.source.end_rollout()

    def collect_metrics(self) -> Mapping[str, float | None]:
        """Give the losses' parts over the samples of the step, and what is known of rollouts and episodes so far.

        None stands for what is not there yet: no episode has ended, or no rollout was acted since a resume.
        """
        self._step_is_over = True
        return {
            **self._loss_metrics(),
            "explained_variance": self.source.explained_variance,
            "episode_return": self.source.episode_return,
            "env_steps": float(self.source.env_steps),
            "env_steps_per_sec": self._env_steps_per_sec,
        }

    def _loss_metrics(self) -> dict[str, float | None]:
        total = sum(samples for _, samples in self._numbers)
        if not total:
            return dict.fromkeys((metric.name for metric in LOSS_METRICS), None)
        means = sum(numbers * (samples / total) for numbers, samples in self._numbers)
        assert isinstance(means, Tensor)
        return {metric.name: value for metric, value in zip(LOSS_METRICS, means.tolist(), strict=True)}

    # -- state -------------------------------------------------------------------------------------------------------

    def save_checkpoint(self) -> State:
        return {**super().save_checkpoint(), "source.discounted": torch.from_numpy(self._discounted_n.copy())}

    def load_checkpoint(self, state: State) -> None:
        super().load_checkpoint(state)
        self._discounted_n = require_tensor(state, "source.discounted").numpy().copy()
        self._env_steps_per_sec = None


def _source(setup: Setup, environments: Any, options: PPOOptions) -> RolloutSource:
    data: PPODataOptions = setup.data
    if data.samples % setup.batch_size:
        with about("train.batch_size"):
            raise InputError(
                f"a batch of {setup.batch_size} does not divide the {data.samples} samples of a rollout "
                f"(data.environments × data.rollout_steps); give a divisor"
            )
    rollouts = data.env_steps_per_epoch // data.samples if data.env_steps_per_epoch else ROLLOUTS_PER_EPOCH
    return RolloutSource(
        environments,
        rollout_steps=data.rollout_steps,
        batch_size=setup.batch_size,
        epochs=options.update_epochs,
        rollouts_per_epoch=rollouts,
        seed=setup.seed,
        ends_early=options.target_kl is not None,
    )
