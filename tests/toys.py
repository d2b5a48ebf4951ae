"""A trainable that is small enough for any test: regression of 64 features to 1 by two layers with dropout.

In run.yaml it is `model: {type: tests.toys:Toy, n: 256, hidden: 16}`, with `train.samples`, `steps` or `epochs`. A
child process finds it by that name when the repository's root is its current directory or on PYTHONPATH (the fixture
`child_environment` sees to that). Everything is drawn from seeds: equal options give equal data, order and bits.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from trainwright.errors import DataExhaustedError
from trainwright.files import sha256_of_bytes
from trainwright.state import State, StateValue, require
from trainwright.torch_trainable import TorchTrainable
from trainwright.trainable import Setup, Unit

MODEL_TYPE = "tests.toys:Toy"
FEATURES = 64
DATA_SEED = 20_240_101


class ToyOptions(BaseModel):
    """The section `model:`. The bad number appears at update `nan_at_step`, in the loss or in the gradients alone."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: str = MODEL_TYPE
    n: int = Field(256, ge=1)
    held_out: int = Field(64, ge=0)
    hidden: int = Field(16, ge=1)
    dropout: float = 0.1
    exhaustion: Literal["cycle", "halt"] = "cycle"
    unit: Unit = "samples"  # what a sample is called; as tokens the rows are those that a contract for tokens requires
    nan_at_step: int | None = None
    nan_in: Literal["loss", "gradients"] = "loss"
    nan_value: float = float("nan")
    loss_scale: float = 1.0


class Samples(NamedTuple):
    """Shapes (b, 64) and (b, 1)."""

    x_bf: Tensor
    y_b1: Tensor


class ToySource:
    """`n` samples, shuffled anew for each pass by seed and pass; the last batch of a pass may be smaller."""

    def __init__(self, setup: Setup, options: ToyOptions) -> None:
        self.unit: Unit = options.unit
        generator = torch.Generator().manual_seed(DATA_SEED)
        weights_f1 = torch.randn(FEATURES, 1, generator=generator)
        x_bf = torch.randn(options.n + options.held_out, FEATURES, generator=generator)
        samples = Samples(x_bf, torch.tanh(x_bf @ weights_f1 / 4))
        self._train = Samples(*(part[: options.n] for part in samples))
        self._held_out = Samples(*(part[options.n :] for part in samples))
        self._setup, self._options = setup, options
        self.epoch = self._position = 0

    @property
    def micro_batches_per_epoch(self) -> int | None:
        return -(-self._options.n // self._setup.batch_size)

    @property
    def micro_batches_left(self) -> int | None:
        return -(-(self._options.n - self._position) // self._setup.batch_size)

    @property
    def items_per_epoch(self) -> int | None:
        return self._options.n

    @property
    def hashes(self) -> Mapping[str, str]:
        return {"data": sha256_of_bytes(*(part.numpy().tobytes() for part in self._train))}

    def next_batch(self) -> Samples:
        if self.epoch and self._options.exhaustion == "halt":
            raise DataExhaustedError(f"all {self._options.n} samples were seen once")
        n, begin = self._options.n, self._position
        end = min(n, begin + self._setup.batch_size)
        indices = self._order()[begin:end]
        self.epoch, self._position = (self.epoch + 1, 0) if end == n else (self.epoch, end)
        return Samples(*(part[indices] for part in self._train))

    def _order(self) -> Tensor:
        generator = torch.Generator().manual_seed(self._setup.seed * 1_000_003 + self.epoch)
        return torch.randperm(self._options.n, generator=generator)

    def validation_batches(self) -> Iterator[Samples]:
        sizes = [self._setup.batch_size] * (self._options.held_out // self._setup.batch_size or 1)
        for index in range(min(len(sizes), self._setup.validation_batches or len(sizes))):
            part = slice(index * self._setup.batch_size, (index + 1) * self._setup.batch_size)
            yield Samples(self._held_out.x_bf[part], self._held_out.y_b1[part])

    def save(self) -> dict[str, StateValue]:
        return {"epoch": self.epoch, "position": self._position}

    def load(self, state: State) -> None:
        epoch, position = require(state, "epoch"), require(state, "position")
        assert isinstance(epoch, int)
        assert isinstance(position, int)
        self.epoch, self._position = epoch, position


class Toy(TorchTrainable):
    model_type: ClassVar[str] = MODEL_TYPE
    options: ClassVar[type[Any] | None] = ToyOptions

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.toy: ToyOptions = setup.model
        self.source = ToySource(setup, self.toy)
        self.layers = nn.Sequential(
            nn.Linear(FEATURES, self.toy.hidden), nn.Tanh(), nn.Dropout(self.toy.dropout), nn.Linear(self.toy.hidden, 1)
        )

    @property
    def architecture(self) -> Mapping[str, Any]:
        return {"hidden": self.toy.hidden}

    def forward(self, batch: Samples) -> Tensor:
        predictions: Tensor = self.layers(batch.x_bf)
        return predictions

    def compute_loss(self, predictions: Tensor, batch: Samples) -> tuple[Tensor, int]:
        loss = nn.functional.mse_loss(predictions, batch.y_b1) * self.toy.loss_scale
        return loss + self.toy.nan_value if self._is_bad("loss") else loss, len(batch.y_b1)

    def backward(self, loss: Tensor) -> None:
        super().backward(loss)
        if self._is_bad("gradients"):
            for parameter in self.layers[-1].parameters():
                parameter.grad = torch.full_like(parameter, self.toy.nan_value)

    def _is_bad(self, place: str) -> bool:
        return self.training and self.step == self.toy.nan_at_step and self.toy.nan_in == place


def toy(*, batch_size: int = 32, seed: int = 0, validation_batches: int | None = None, **options: Any) -> Toy:
    """Build a toy in this process; `options` are those of `ToyOptions`."""
    setup = Setup(
        model=ToyOptions(**options), data={}, batch_size=batch_size, seed=seed, validation_batches=validation_batches
    )
    return Toy.build(setup)
