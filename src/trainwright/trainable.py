"""The trainable: a model with all that is needed to train it. The loop knows this protocol and nothing else of it."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

import torch
from torch import Tensor

from trainwright.errors import InputError
from trainwright.illustrations import Panel
from trainwright.optimizers import OptimizerSettings
from trainwright.state import State

Direction: TypeAlias = Literal["min", "max"]
Unit: TypeAlias = Literal["tokens", "samples"]


@dataclass(frozen=True, slots=True)
class Metric:
    """A number that a trainable declares before step 0: name `[a-z][a-z0-9_]*`, unit, and which way is better."""

    name: str
    unit: str
    direction: Direction | None = None


@dataclass(frozen=True, slots=True)
class Validation:
    """One evaluation: the mean of `metric` over `n` items, and the standard error of that mean (None if unknown).

    `measures`: what else it measured, by the names of `validation_measures`.
    """

    metric: str
    value: float
    n: int
    standard_error: float | None
    measures: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DataSize:
    """What data come to that are held beside the tensors of a step, at their fullest: replay, rollout, series.

    `saved_bytes`: what of them stands in a checkpoint.
    """

    held_bytes: int = 0
    saved_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Rounds:
    """How acting and learning alternate: `env_steps` are acted, then `micro_batches` learnt from.

    No update accumulates over two rounds. `unlearnt`: rounds at the beginning of a run that are acted alone.
    """

    env_steps: int
    micro_batches: int
    unlearnt: int = 0

    def updates(self, accumulate: int) -> int:
        """Give the optimizer updates of one round; the last accumulates over what is left."""
        return math.ceil(self.micro_batches / accumulate)


class Trainable(Protocol):
    """What the loop drives. Shapes of batches and predictions are the trainable's own affair."""

    step: int  # optimizer updates so far
    learning_rate: float  # get reads the optimizer, set reaches every parameter group

    @property
    def model_type(self) -> str: ...
    @property
    def unit(self) -> Unit:
        """Give what the weight of a loss counts."""

    @property
    def device(self) -> torch.device: ...
    @property
    def epoch(self) -> int:
        """Give the number of whole passes over the training data so far."""

    @property
    def micro_batches_per_epoch(self) -> int | None:
        """Give the number of `next_batch` calls that make one pass; None where data have no end."""

    @property
    def micro_batches_left(self) -> int | None:
        """Give the number of `next_batch` calls to the end of the pass, 1 or more; None where data have no end."""

    @property
    def items_per_epoch(self) -> int | None:
        """Give the number of items (`unit`) in one pass; None where data have no end."""

    @property
    def env_steps_learnt(self) -> int | None:
        """Give the environment steps that are learnt from to the end; None for what acts in no environment."""

    @property
    def env_steps_per_epoch(self) -> int | None:
        """Give the environment steps that count as one pass; None for what acts in no environment."""

    @property
    def rounds(self) -> Rounds | None:
        """Tell how acting and learning alternate; None where nothing is acted, or rounds are of no fixed length."""

    @property
    def inexact(self) -> str | None:
        """Tell why a resume of it cannot be exact, as where an environment cannot be replayed; None where it can."""

    @property
    def metrics(self) -> Sequence[Metric]:
        """Declare the names that `collect_metrics` gives."""

    @property
    def validation_metric(self) -> Metric:
        """Declare what `validate` measures; its direction is not None."""

    @property
    def validation_measures(self) -> Sequence[Metric]:
        """Declare the names of `Validation.measures`."""

    @property
    def architecture(self) -> Mapping[str, Any]:
        """Give what determines the shape of the weights; stamped on checkpoints, compared by `--init`."""

    @property
    def interface(self) -> Mapping[str, Any]:
        """Give what, beside architecture and weights, it takes to use the model, as JSON: spaces, names, categories."""

    @property
    def parameter_count(self) -> int: ...
    @property
    def flops_per_item(self) -> float | None:
        """Give the fewest floating-point operations that training takes for each item; None where unknown."""

    @property
    def baselines(self) -> Mapping[str, float]:
        """Give reference values computed from the data (`unigram_entropy`, `uniform_entropy`); recorded once."""

    @property
    def data_hashes(self) -> Mapping[str, str]:
        """Give SHA-256 of what is trained on (`data`, `tokenizer`), for the records."""

    @property
    def masks_steps(self) -> bool:
        """Tell whether `optimizer_step` honours `skip`; a device then need not be waited for at each step."""

    def next_batch(self) -> Any:
        """Give one micro-batch on the device. Errors: DataExhaustedError."""

    def forward(self, batch: Any) -> Any: ...
    def compute_loss(self, predictions: Any, batch: Any) -> tuple[Tensor, int]:
        """Give the mean loss, 0-d, and the number of items (`unit`) that it is the mean of."""

    def backward(self, loss: Tensor) -> None: ...
    def scale_gradients(self, factor: float) -> None:
        """Multiply every gradient by `factor`: ends an accumulation over micro-batches."""

    def clip_gradients(self, max_norm: float | None) -> Tensor:
        """Clip to `max_norm` (None: do not) and give the global L2 norm before it: 0-d, no host synchronisation."""

    def optimizer_step(self, skip: Tensor | None = None) -> None:
        """Take the step and whatever follows it. `skip`: 0-d float on the device; at 1.0 nothing changes but `step`."""

    def zero_grad(self) -> None: ...
    def named_parameters(self) -> Iterable[tuple[str, Tensor]]:
        """Give every tensor that may be trained, by name: nn.Module's own. An audit reads weights and gradients there.

        It is how a step is looked at from outside: what a trainable says of its rate, norm or weights is held against
        the tensors themselves. A name is the one that the optimizer's entries in `save_checkpoint` have.
        """

    def collect_metrics(self) -> Mapping[str, float | None]:
        """Give each declared number of the step; None for one that nothing has been measured of yet."""

    def save_checkpoint(self) -> State: ...
    def load_checkpoint(self, state: State) -> None:
        """Copy everything in. Errors: DamagedCheckpointError naming a missing entry, InputError as `load_weights`."""

    def load_weights(self, state: State) -> None:
        """Copy the weights alone in. Errors: InputError unless every tensor matches in name and shape."""

    def validate(self) -> Validation:
        """Evaluate on held-out data; changes no weight, mode, random stream or training data position."""

    def illustrate(self) -> Sequence[Panel]:
        """Show what the numbers do not, right after the best validation so far; changes as little as `validate`."""


class Source(Protocol):
    """Where a trainable's batches come from. Its state is small and names a position exactly."""

    @property
    def unit(self) -> Unit: ...
    @property
    def epoch(self) -> int: ...
    @property
    def micro_batches_per_epoch(self) -> int | None: ...
    @property
    def micro_batches_left(self) -> int | None: ...
    @property
    def items_per_epoch(self) -> int | None: ...
    @property
    def hashes(self) -> Mapping[str, str]: ...
    def next_batch(self) -> Any: ...
    def validation_batches(self) -> Iterator[Any]: ...
    def save(self) -> State: ...
    def load(self, state: State) -> None: ...


@dataclass(frozen=True, slots=True)
class Setup:
    """What a trainable is built from. `model` and `data` are its validated options (mappings if it declares none)."""

    model: Any
    data: Any
    batch_size: int
    seed: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    precision: Literal["fp32", "bf16"] = "fp32"
    compile: bool = False
    validation_batches: int | None = None  # None: all of them


def summarize(metric: str, losses: Sequence[tuple[float, int]]) -> Validation:
    """Give the weighted mean of (value, weight) pairs and its standard error, taking each pair as one sample."""
    total = sum(weight for _, weight in losses)
    if not total:
        raise InputError("there are no validation data; validation cannot be measured")
    mean = _sum(value * weight for value, weight in losses) / total
    if len(losses) < 2:
        return Validation(metric, mean, total, None)
    shares = [(weight / total, value) for value, weight in losses]
    variance = _sum((share * (value - mean)) ** 2 for share, value in shares) * len(losses) / (len(losses) - 1)
    return Validation(metric, mean, total, math.sqrt(variance))


def _sum(values: Iterable[float]) -> float:
    """Add exactly; infinities of both signs and what is too large make a value that is not finite, not an error."""
    values = list(values)
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):
        return sum(values)
