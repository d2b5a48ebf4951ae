"""What a step of a trainable holds in memory, part by part, traced from the tensors that torch makes.

Counted is the storage of tensors, as the device's allocator counts it. What comes on top is not: the process and its
libraries, a CUDA context, the allocator's slack.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import astuple, dataclass, replace
from typing import Any, Literal, TypeAlias, final, get_args

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from trainwright.steps import gradients, micro_batches
from trainwright.torch_trainable import TorchTrainable

Part: TypeAlias = Literal["weights", "gradients", "optimizer_state", "activations"]  # as traced; `data` is declared

STEPS = 2  # the first one makes the optimizer's state, the second one runs beside it
MICRO_BATCHES = 2  # the second one runs beside the gradients of the first; more of them hold no more


@dataclass(frozen=True, slots=True)
class Parts:
    """Bytes by what they are for. `activations`: all else that is held, batch and temporary tensors included.

    `data`: what the trainable says it holds beside tensors, at its fullest (`TorchTrainable.data_size`).
    """

    weights: int
    gradients: int
    optimizer_state: int
    activations: int
    data: int = 0

    @property
    def total(self) -> int:
        return int(sum(astuple(self)))


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory of a step. `at_peak` is what each part holds at the moment of the peak, `largest` at its own largest.

    They differ: a gradient is made when activations are already given up. `checkpoint_bytes`: tensors of a checkpoint.
    """

    parameters: int
    items_per_micro_batch: int
    at_peak: Parts
    largest: Parts
    checkpoint_bytes: int

    @property
    def peak_bytes(self) -> int:
        return self.at_peak.total


def trace(
    make: Callable[[], TorchTrainable], *, accumulate: int, clip_norm: float | None, fake: bool
) -> tuple[TorchTrainable, Footprint]:
    """Take two steps of what `make` gives, both from the beginning of its data, and give it with what they held.

    `fake`: the tensors have a shape and no data, so neither memory nor time of a real step is needed; a model that
    looks at the values of its tensors cannot be traced so, and raises what torch raises. An agent does, when it acts.
    """
    mode = FakeTensorMode() if fake else None
    with mode or nullcontext(), Ledger() as ledger:
        with _convertible_parameters(mode):
            trainable = make()
        ledger.note((*trainable.parameters(), *trainable.buffers()), "weights")
        rewind = _hold_one_batch(trainable, ledger, mode) if mode else _rewinding(trainable)
        ledger.forget_peak()
        for _ in range(STEPS):
            rewind()
            count = min(micro_batches(trainable, accumulate), MICRO_BATCHES)
            items = _step(trainable, ledger, count, clip_norm)
        stored = [*trainable.state_dict().values(), *_optimizer_tensors(trainable)]
    data = trainable.data_size
    footprint = Footprint(
        parameters=trainable.parameter_count,
        items_per_micro_batch=items // count,
        at_peak=replace(ledger.at_peak(), data=data.held_bytes),
        largest=replace(ledger.largest(), data=data.held_bytes),
        checkpoint_bytes=sum(tensor.nbytes for tensor in stored) + data.saved_bytes,
    )
    return trainable, footprint


def _step(trainable: TorchTrainable, ledger: "Ledger", count: int, clip_norm: float | None) -> int:
    _, items = gradients(trainable, count)
    ledger.note((p.grad for p in trainable.parameters() if p.grad is not None), "gradients")
    trainable.clip_gradients(clip_norm)
    trainable.optimizer_step()
    ledger.note(_optimizer_tensors(trainable), "optimizer_state")
    trainable.zero_grad()
    return items


def _optimizer_tensors(trainable: TorchTrainable) -> list[Tensor]:
    return [value for entries in trainable.optimizer.state.values() for value in entries.values()]


def _hold_one_batch(trainable: TorchTrainable, ledger: "Ledger", mode: FakeTensorMode) -> Callable[[], None]:
    """Draw one batch, really, and let `next_batch` give it ever again; there is nothing to rewind."""
    with _disable_current_modes():
        batch = trainable.next_batch()
    batch = tree_map(lambda leaf: mode.from_tensor(leaf) if isinstance(leaf, Tensor) else leaf, batch)
    ledger.note((leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)), "activations")
    trainable.next_batch = lambda: batch  # type: ignore[method-assign]  # the instance's stands before the class's
    return lambda: None


def _rewinding(trainable: TorchTrainable) -> Callable[[], None]:
    """Give what puts the data back to where they are now, so that each step makes its batches as the first does.

    The second step of an agent then acts beside the optimizer's state, as all but the first rollout do.
    """
    position = trainable.source.save()
    return lambda: trainable.source.load(position)


@contextmanager
def _convertible_parameters(mode: FakeTensorMode | None) -> Iterator[None]:
    """Let `Module.to` work on fake parameters: it refuses a tensor with weak references, and the mode's memo is one."""
    if mode is None:
        yield
        return
    converter = mode.fake_tensor_converter.meta_converter
    memo = converter.tensor_memo
    converter.tensor_memo = {}  # type: ignore[assignment]  # holds on to its tensors while the model is built
    try:
        yield
    finally:
        converter.tensor_memo = memo


@dataclass(slots=True)
class _Storage:
    """A storage's life: `born` and `died` are places in the order of all births and deaths."""

    size_bytes: int
    born: int
    died: int | None = None
    part: Part = "activations"

    def held_at(self, moment: int) -> bool:
        return self.born <= moment and (self.died is None or self.died > moment)


@final
class Ledger(TorchDispatchMode):  # type: ignore[no-untyped-call]  # untyped in torch
    """Books the birth and the death of each storage that an operation makes while the mode is on."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # untyped in torch
        self._moment = 0
        self._held_bytes = 0
        self._peak_bytes = self._peak_moment = 0
        self._alive: dict[int, tuple[_Storage, object]] = {}
        self._all: list[_Storage] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        self.note(leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor))
        return out

    def note(self, tensors: Iterable[Tensor], part: Part | None = None) -> None:
        """Book the storages of `tensors` that are new, and say what they are for."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            entry, _ = self._alive.get(storage._cdata) or self._book(storage)  # noqa: SLF001  its identity; there is no public one
            entry.part = part or entry.part

    def _book(self, storage: torch.UntypedStorage) -> tuple[_Storage, object]:
        key = storage._cdata  # noqa: SLF001  as above
        self._moment += 1
        entry = _Storage(storage.nbytes(), self._moment)
        self._alive[key] = entry, weakref.ref(storage, lambda _: self._bury(key, entry))
        self._all.append(entry)
        self._held_bytes += entry.size_bytes
        if self._held_bytes > self._peak_bytes:
            self._peak_bytes, self._peak_moment = self._held_bytes, self._moment
        return self._alive[key]

    def _bury(self, key: int, entry: _Storage) -> None:
        self._moment += 1
        entry.died = self._moment
        self._held_bytes -= entry.size_bytes
        del self._alive[key]

    def forget_peak(self) -> None:
        """Begin a new peak at what is held now."""
        self._peak_bytes, self._peak_moment = self._held_bytes, self._moment

    def at_peak(self) -> Parts:
        held = [entry for entry in self._all if entry.held_at(self._peak_moment)]
        return Parts(**{part: sum(e.size_bytes for e in held if e.part == part) for part in get_args(Part)})

    def largest(self) -> Parts:
        return Parts(**{part: self._largest(part) for part in get_args(Part)})

    def _largest(self, part: str) -> int:
        entries = [entry for entry in self._all if entry.part == part]
        changes = [(entry.born, entry.size_bytes) for entry in entries]
        changes += [(entry.died, -entry.size_bytes) for entry in entries if entry.died is not None]
        held = largest = 0
        for _, change in sorted(changes):
            held += change
            largest = max(largest, held)
        return largest
