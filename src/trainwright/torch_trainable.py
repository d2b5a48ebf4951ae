"""The base class that makes a trainable of an `nn.Module`, a loss and a source of batches."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final, Self, cast

import torch
from torch import Tensor, nn

from trainwright import rng
from trainwright.errors import InputError
from trainwright.illustrations import Panel
from trainwright.optimizers import build_optimizer, load_optimizer_state, optimizer_state
from trainwright.state import State, require, under_prefix, with_prefix
from trainwright.trainable import DataSize, Metric, Rounds, Setup, Source, Unit, Validation, summarize

CLIP_EPS: Final = 1e-6  # added to a norm before it divides


class TorchTrainable(nn.Module):
    """The base class for a user's model: write `__init__`, `forward`, `compute_loss`, and give a `source`.

    `__init__(setup)` creates the modules and sets `self.source`; `Class.build(setup)` does the rest: seeds, moves to
    the device, makes the optimizer, compiles where asked. `options` and `data_options` may name pydantic models that
    check the sections `model:` and `data:` of run.yaml.
    """

    model_type: ClassVar[str] = "custom"
    options: ClassVar[type[Any] | None] = None
    data_options: ClassVar[type[Any] | None] = None
    source: Source
    optimizer: torch.optim.Optimizer
    _parameters_by_name: dict[str, nn.Parameter]
    _trained: list[nn.Parameter]

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        self.setup = setup
        self.step = 0

    @classmethod
    def build(cls, setup: Setup) -> Self:
        """Make a trainable that is ready for step 0; equal seeds give equal weights and batches."""
        rng.seed_everything(setup.seed)
        trainable = cls(setup)
        if not hasattr(trainable, "source"):
            raise InputError(f"{cls.__module__}:{cls.__name__}.__init__ sets no self.source; give it one")
        trainable.to(setup.device)
        trainable._parameters_by_name = dict(trainable.named_parameters())
        trainable._trained = [p for p in trainable._parameters_by_name.values() if p.requires_grad]
        trainable.optimizer = build_optimizer(trainable._parameters_by_name, setup.optimizer)
        trainable._wrap_forward()
        return trainable

    def _wrap_forward(self) -> None:
        """Compile and cast where asked: the instance's `forward` then stands before the class's."""
        if self.setup.compile:
            self.forward = torch.compile(self.forward)
        if self.setup.precision == "bf16":
            self.forward = torch.autocast(self.device.type, torch.bfloat16)(self.forward)

    @property
    def device(self) -> torch.device:
        return self.setup.device

    @property
    def unit(self) -> Unit:
        return self.source.unit

    @property
    def epoch(self) -> int:
        return self.source.epoch

    @property
    def micro_batches_per_epoch(self) -> int | None:
        return self.source.micro_batches_per_epoch

    @property
    def micro_batches_left(self) -> int | None:
        return self.source.micro_batches_left

    @property
    def items_per_epoch(self) -> int | None:
        return self.source.items_per_epoch

    @property
    def env_steps_learnt(self) -> int | None:
        return None

    @property
    def env_steps_per_epoch(self) -> int | None:
        return None

    @property
    def rounds(self) -> Rounds | None:
        return None

    @property
    def inexact(self) -> str | None:
        return None

    @property
    def architecture(self) -> Mapping[str, Any]:
        return {}

    @property
    def data_size(self) -> DataSize:
        """Give what the data take that are held in memory; nothing where they are read from files as they are used."""
        return DataSize()

    @property
    def interface(self) -> Mapping[str, Any]:
        return {}

    @property
    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def flops_per_item(self) -> float | None:
        return None

    @property
    def metrics(self) -> Sequence[Metric]:
        return ()

    @property
    def validation_metric(self) -> Metric:
        return Metric("val_loss", "loss", "min")

    @property
    def validation_measures(self) -> Sequence[Metric]:
        return ()

    @property
    def baselines(self) -> Mapping[str, float]:
        return {}

    @property
    def data_hashes(self) -> Mapping[str, str]:
        return self.source.hashes

    @property
    def learning_rate(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = value

    @property
    def masks_steps(self) -> bool:
        return self.setup.optimizer.implementation == "fused"

    def next_batch(self) -> Any:
        return to_device(self.source.next_batch(), self.device)

    def compute_loss(self, predictions: Any, batch: Any) -> tuple[Tensor, int]:
        raise NotImplementedError

    def backward(self, loss: Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]  # untyped in torch

    def scale_gradients(self, factor: float) -> None:
        torch._foreach_mul_([p.grad for p in self._trained if p.grad is not None], factor)

    def clip_gradients(self, max_norm: float | None) -> Tensor:
        gradients = [p.grad for p in self._trained if p.grad is not None]
        if not gradients:
            return torch.zeros((), device=self.device)
        norms = torch._foreach_norm(gradients)  # noqa: SLF001  as torch's own, there is no public one
        norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
        if max_norm is not None:  # as nn.utils.clip_grad_norm_, bit for bit, at half its cost
            torch._foreach_mul_(gradients, (max_norm / (norm + CLIP_EPS)).clamp(max=1.0))
        return norm

    def optimizer_step(self, skip: Tensor | None = None) -> None:
        self.step += 1
        if self.setup.optimizer.implementation == "fused":
            cast("Any", self.optimizer).found_inf = skip
        elif skip is not None and skip.item():  # only the fused kernel masks on the device; the others wait for it
            return
        self.optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:  # nn.Module's own signature
        for parameter in self._trained:
            if set_to_none or parameter.grad is None:
                parameter.grad = None
            else:
                parameter.grad.zero_()

    def collect_metrics(self) -> Mapping[str, float | None]:
        return {}

    def save_checkpoint(self) -> State:
        return {
            **with_prefix("model", self.state_dict()),
            **with_prefix("optimizer", optimizer_state(self.optimizer, self._parameters_by_name)),
            **with_prefix("rng", rng.capture(self.device)),
            **with_prefix("source", self.source.save()),
            "step": self.step,
        }

    def load_checkpoint(self, state: State) -> None:
        self.load_weights(state)
        load_optimizer_state(self.optimizer, self._parameters_by_name, under_prefix("optimizer", state))
        self.source.load(under_prefix("source", state))
        self.step = int(cast("int", require(state, "step")))
        rng.restore(under_prefix("rng", state), self.device)

    def load_weights(self, state: State) -> None:
        own, given = self.state_dict(), under_prefix("model", state)
        problems = [f"{name} is missing" for name in own if name not in given]
        problems += [f"{name} is not in this model" for name in given if name not in own]
        problems += [
            f"{name} has shape {list(cast('Tensor', given[name]).shape)}, this model's is {list(tensor.shape)}"
            for name, tensor in own.items()
            if name in given and cast("Tensor", given[name]).shape != tensor.shape
        ]
        if problems:
            raise InputError(f"the weights do not fit model type {self.model_type!r}: {'; '.join(problems[:5])}")
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(cast("Tensor", given[name]))

    def validate(self) -> Validation:
        """Weighted mean of the losses over the source's validation batches; each is a sample of the standard error."""
        with self.undisturbed():
            batches = (to_device(batch, self.device) for batch in self.source.validation_batches())
            losses = [pair for batch in batches for pair in self.losses_of(batch)]
        return summarize(self.validation_metric.name, losses)

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Look at the model as it is used: without gradients or dropout; then mode and random streams are as before."""
        was_training = self.training
        with rng.preserved(self.device), torch.no_grad():
            self.eval()
            try:
                yield
            finally:
                self.train(was_training)

    def illustrate(self) -> Sequence[Panel]:
        """Give panels for the report, made `undisturbed`; none unless a subclass has some."""
        return ()

    def losses_of(self, batch: Any) -> Sequence[tuple[float, int]]:
        """Give the loss and weight of each part of a validation batch that is one sample: here all of it."""
        loss, weight = self.compute_loss(self.forward(batch), batch)
        return [(loss.item(), weight)]


def to_device(batch: Any, device: torch.device) -> Any:
    """Move every tensor of a nested batch (tensor, mapping, tuple, named tuple) to the device."""
    if device.type == "cpu":
        return batch
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple):
        moved = [to_device(value, device) for value in batch]
        return type(batch)(*moved) if hasattr(batch, "_fields") else tuple(moved)
    return batch
