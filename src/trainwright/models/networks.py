"""Networks of agents: perceptrons, an actor beside its critic, policies over actions, and running moments.

Shapes in names: b rows, f features, a actions or parts of one.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  torch's own convention

from trainwright.data.environments import Actions, Array

Activation: TypeAlias = Literal["tanh", "relu"]
ACTIVATIONS: Final[Mapping[Activation, type[nn.Module]]] = {"tanh": nn.Tanh, "relu": nn.ReLU}
MOMENTS_EPS: Final = 1e-8
CLIPPED_AT: Final = 10.0  # standard deviations of a normalised number
HIDDEN_GAIN, POLICY_GAIN, VALUE_GAIN = math.sqrt(2.0), 0.01, 1.0
LOG_SQRT_TAU: Final = 0.5 * math.log(2 * math.pi)


def perceptron(sizes: Sequence[int], activation: Activation, *, last_gain: float) -> nn.Sequential:
    """Make layers of these sizes, orthogonal at first (Saxe et al. 2014), gain √2 and at the last `last_gain`."""
    layers: list[nn.Module] = []
    for index, (width, following) in enumerate(pairwise(sizes)):
        layer, is_last = nn.Linear(width, following), index == len(sizes) - 2
        nn.init.orthogonal_(layer.weight, last_gain if is_last else HIDDEN_GAIN)
        nn.init.zeros_(layer.bias)
        layers += [layer] if is_last else [layer, ACTIVATIONS[activation]()]
    return nn.Sequential(*layers)


@final
class Moments(nn.Module):
    """Mean and variance of all rows seen so far, in float64, as buffers: they are part of the weights that are saved.

    Merged batch by batch (Chan, Golub and LeVeque 1983, equations 2.1). Before the first batch it changes nothing.
    """

    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(features, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(features, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def update(self, rows_bf: Tensor) -> None:
        rows = rows_bf.double()
        added, before = float(len(rows)), self.count.clone()
        total, delta = before + added, rows.mean(0) - self.mean
        squares = self.variance * before + rows.var(0, correction=0) * added + delta.square() * before * added / total
        self.mean += delta * added / total
        self.variance.copy_(squares / total)
        self.count.copy_(total)

    def scale(self) -> Tensor:
        return (self.variance + MOMENTS_EPS).sqrt()

    def forward(self, rows_bf: Tensor) -> Tensor:
        """Give the rows with mean 0 and deviation 1, clipped to ±10, in float32."""
        return ((rows_bf.double() - self.mean) / self.scale()).clamp(-CLIPPED_AT, CLIPPED_AT).float()


class Judged(NamedTuple):
    """What a policy says of actions that were taken: log-probability and entropy in nats, shape (b,) each."""

    log_probs_b: Tensor
    entropies_b: Tensor


@final
class Categorical:
    """One of several actions, by logits."""

    @staticmethod
    def judge(logits_ba: Tensor, _log_std: Tensor | None, actions_b: Tensor) -> Judged:
        logs_ba = F.log_softmax(logits_ba, -1)
        taken_b = logs_ba.gather(1, actions_b[:, None]).squeeze(1)
        return Judged(taken_b, -(logs_ba.exp() * logs_ba).sum(-1))

    @staticmethod
    def noise(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Draw Gumbel noise: the largest of logits plus it is a draw by the logits (Gumbel 1954)."""
        return generator.gumbel(size=shape).astype(np.float32)

    @staticmethod
    def draw(logits_na: Array, noise_na: Array, _log_std: Array | None) -> Array:
        return np.asarray((logits_na + noise_na).argmax(-1))

    @staticmethod
    def best(logits_na: Array) -> Array:
        return np.asarray(logits_na.argmax(-1))


@final
class Gaussian:
    """Independent normal parts of an action; their deviation does not depend on what is seen."""

    @staticmethod
    def judge(means_ba: Tensor, log_std_a: Tensor | None, actions_ba: Tensor) -> Judged:
        assert log_std_a is not None
        parts_ba = -0.5 * ((actions_ba - means_ba) * (-log_std_a).exp()).square() - log_std_a - LOG_SQRT_TAU
        entropy = (log_std_a + 0.5 + LOG_SQRT_TAU).sum()
        return Judged(parts_ba.sum(-1), entropy.expand(len(actions_ba)))

    @staticmethod
    def noise(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
        return generator.standard_normal(shape, dtype=np.float32)

    @staticmethod
    def draw(means_na: Array, noise_na: Array, log_std_a: Array | None) -> Array:
        assert log_std_a is not None
        return np.asarray(means_na + np.exp(log_std_a) * noise_na)

    @staticmethod
    def best(means_na: Array) -> Array:
        return means_na


@final
class ActorCritic(nn.Module):
    """A policy and the value of its states, each a perceptron of its own over the same observations.

    `moments` normalises what is seen; None: it is taken as it is.
    """

    def __init__(
        self,
        features: int,
        actions: Actions,
        hidden: Sequence[int],
        *,
        activation: Activation,
        log_std: float,
        normalize: bool,
    ) -> None:
        super().__init__()
        self.kind: type[Categorical | Gaussian] = Categorical if actions.discrete else Gaussian
        self.moments = Moments(features) if normalize else None
        self.actor = perceptron([features, *hidden, actions.count], activation, last_gain=POLICY_GAIN)
        self.critic = perceptron([features, *hidden, 1], activation, last_gain=VALUE_GAIN)
        self.log_std = None if actions.discrete else nn.Parameter(torch.full((actions.count,), log_std))

    def seen(self, observations_bf: Tensor) -> Tensor:
        """Give observations as the networks see them."""
        return observations_bf if self.moments is None else self.moments(observations_bf)

    def forward(self, seen_bf: Tensor) -> tuple[Tensor, Tensor]:
        """Give logits or means (b, a), and values (b,), of observations that `seen` gave."""
        return self.actor(seen_bf), self.critic(seen_bf).squeeze(-1)

    def judge(self, scores_ba: Tensor, actions: Tensor) -> Judged:
        return self.kind.judge(scores_ba, self.log_std, actions)

    @torch.no_grad()
    def scores(self, observations_nf: Array, device: torch.device) -> Array:
        """Give logits or means (n, a) of raw observations, on the host."""
        seen_nf = self.seen(torch.from_numpy(observations_nf).to(device))
        scores: Array = self.actor(seen_nf).float().cpu().numpy()
        return scores

    def drawing(self) -> Callable[[Array, Array], Array]:
        """Give the function that draws actions from scores and noise, with the deviation of this moment."""
        log_std: Any = None if self.log_std is None else self.log_std.detach().cpu().numpy()
        return lambda scores_na, noise_na: self.kind.draw(scores_na, noise_na, log_std)


@final
class QNetwork(nn.Module):
    """The value of each action: a perceptron over observations.

    `dueling`: its last hidden layer is one of advantages and one of the state's value (Wang et al. 2016, equation 9).
    """

    def __init__(
        self, features: int, actions: int, hidden: Sequence[int], *, activation: Activation, dueling: bool
    ) -> None:
        super().__init__()
        apart = hidden[-1:] if dueling else hidden
        shared = [features, *hidden[: len(hidden) - len(apart)]]
        self.shared = _layers(shared, activation) if len(shared) > 1 else None
        self.bend = ACTIVATIONS[activation]() if self.shared else nn.Identity()
        self.advantages = _layers([shared[-1], *apart, actions], activation)
        self.value = _layers([shared[-1], *apart, 1], activation) if dueling else None

    def forward(self, seen_bf: Tensor) -> Tensor:
        """Give Q of observations (b, f), shape (b, a)."""
        if self.value is None:
            return _through(self.advantages, seen_bf)
        hidden = seen_bf if self.shared is None else self.bend(self.shared(seen_bf))
        advantages_ba = self.advantages(hidden)
        return cast("Tensor", self.value(hidden) + advantages_ba - advantages_ba.mean(1, keepdim=True))


def _through(layers: nn.Sequential, rows_bf: Tensor) -> Tensor:
    """Give layers(rows_bf) without what a call of a module costs; of small layers that is the larger part."""
    for layer in layers:
        if isinstance(layer, nn.Linear):
            rows_bf = F.linear(rows_bf, layer.weight, layer.bias)
        else:
            rows_bf = layer.forward(rows_bf)
    return rows_bf


def _layers(sizes: Sequence[int], activation: Activation) -> nn.Sequential:
    """Make layers of these sizes, weights and biases drawn as torch does.

    Of a few numbers that are seen, as a position and a small speed, biases of 0 would tell too little apart.
    """
    layers: list[nn.Module] = []
    for width, following in pairwise(sizes):
        layers += [nn.Linear(width, following), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers[:-1])
