"""What the suites see of a trainable: its tensors and where they are, its gradients, the slope of its loss."""

import inspect
import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, get_type_hints

import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError
from torch import Tensor

from trainwright.candidates import trained_tensors
from trainwright.checkpoints.checkpoints import Checkpoints
from trainwright.checkpoints.memory import MemoryStore
from trainwright.equality import entries_of
from trainwright.errors import TrainwrightError
from trainwright.manifest import Stamp
from trainwright.state import State
from trainwright.torch_trainable import TorchTrainable
from trainwright.trainable import Trainable

MEMBERS: Final = sorted(name for name in {*Trainable.__annotations__, *vars(Trainable)} if not name.startswith("_"))
STRICT: Final = ConfigDict(arbitrary_types_allowed=True, strict=True)
DISTANCE: Final = 3e-3  # along the gradient, over which the loss is held against its slope
PLANTED: Final = 16


def module(made: Trainable) -> TorchTrainable:
    assert isinstance(made, TorchTrainable)
    return made


# -- the protocol ----------------------------------------------------------------------------------------------------


def misfit(made: Trainable, name: str) -> str | None:
    """Tell how a member differs from the protocol's: by its type, or by what it is called with; None: it does not."""
    declared = vars(Trainable).get(name)
    if not inspect.isfunction(declared):
        return _mistyped(name, getattr(made, name), declared)
    wanted, given = (list(inspect.signature(f).parameters.values()) for f in (declared, getattr(type(made), name)))
    fits = [p.name for p in given[: len(wanted)]] == [p.name for p in wanted]
    fits &= all(p.default is not p.empty for p in given[len(wanted) :])
    return None if fits else f"{name} takes {[p.name for p in given]}, expected {[p.name for p in wanted]}"


def _mistyped(name: str, value: Any, declared: Any) -> str | None:
    getter = declared.fget if isinstance(declared, property) else None
    hint = get_type_hints(getter)["return"] if getter else get_type_hints(Trainable)[name]
    try:
        TypeAdapter(tuple[hint], config=STRICT).validate_python((value,))  # type: ignore[valid-type]  # read at run time
    except ValidationError as error:
        return f"{name} is {value!r}: {error.errors()[0]['msg']}"
    return None


# -- tensors ---------------------------------------------------------------------------------------------------------


def tensors_of(value: Any) -> dict[str, Tensor]:
    """Give every tensor of a nested value, by its place in it."""
    return {name: entry for name, entry in entries_of(value).items() if isinstance(entry, Tensor)}


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def rows_of(batch: Any, rows: slice) -> Any:
    """Give these rows of every tensor of a nested tuple."""
    if isinstance(batch, Tensor):
        return batch[rows]
    parts = [rows_of(part, rows) for part in batch]
    return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)


def places(made: Trainable, others: Any = ()) -> set[torch.device]:
    """Give the devices of parameters, buffers, tensors that a module merely holds, moments, and `others`.

    The counters of an optimizer are no part of it: torch keeps them on the host where its kernels want them there.
    """
    modules = module(made)
    held = [v for part in modules.modules() for v in vars(part).values() if isinstance(v, Tensor)]
    moments = [v for entries in modules.optimizer.state.values() for v in entries.values() if v.dim()]
    tensors = [*modules.parameters(), *modules.buffers(), *held, *moments, *tensors_of(others).values()]
    return {tensor.device for tensor in tensors}


# -- loss and gradients ----------------------------------------------------------------------------------------------


def seeded_loss(made: Trainable, batch: Any) -> tuple[Tensor, int]:
    """Give the loss and its weight, drawing from the same random streams each time."""
    torch.manual_seed(0)
    return made.compute_loss(made.forward(batch), batch)


def gradients_of(made: Trainable) -> dict[str, Tensor]:
    return {name: tensor.grad for name, tensor in made.named_parameters() if tensor.grad is not None}


def norm_of(tensors: Mapping[str, Tensor]) -> float:
    return math.sqrt(sum(tensor.double().square().sum().item() for tensor in tensors.values()))


def slope(made: Trainable, batch: Any, gradients: Mapping[str, Tensor]) -> float:
    """Give the central difference of the loss along its gradient, per unit of length."""
    weights, begun, length = trained_tensors(made), copied(trained_tensors(made)), norm_of(gradients)
    losses = []
    with torch.no_grad():
        for way in (DISTANCE / length, -DISTANCE / length, 0.0):
            for name, tensor in weights.items():
                tensor.copy_(begun[name] + way * gradients[name])
            losses.append(seeded_loss(made, batch)[0].item())
    return (losses[0] - losses[1]) / (2 * DISTANCE)


# -- state -----------------------------------------------------------------------------------------------------------


def through_a_store(state: State) -> State:
    """Give the state as a store of checkpoints gives it back."""
    checkpoints = Checkpoints(MemoryStore())
    pending = checkpoints.write(state, step=0, stamp=Stamp(run="", attempt=1, model_type="", config_sha256=""), time="")
    pending.commit()
    return checkpoints.load(pending.checkpoint)[1]


def silently_missed(made: Trainable, state: State) -> Iterator[str]:
    """Give the entries without which the state is loaded all the same."""
    for name in state:
        if name.startswith("rng.device"):
            continue
        try:
            made.load_checkpoint({key: value for key, value in state.items() if key != name})
        except TrainwrightError:
            continue
        yield name


def weights_and_moments(made: Trainable) -> dict[str, Tensor]:
    """Give copies of what an optimizer step changes: the trained tensors, and its moments and counters."""
    trained, optimizer = trained_tensors(made), module(made).optimizer
    names = {tensor: name for name, tensor in trained.items()}
    moments = {
        f"{names[parameter]}.{entry}": value
        for parameter, entries in optimizer.state.items()
        for entry, value in entries.items()
    }
    return copied({**trained, **moments})


# -- a planted NaN ---------------------------------------------------------------------------------------------------


def plantings(made: Trainable) -> Mapping[str, AbstractContextManager[None]]:
    """Give what plants a NaN, by what it says, as long as it is entered: in a weight, in a gradient, in the batches.

    Of many tensors these are `PLANTED`, evenly chosen.
    """
    found: dict[str, AbstractContextManager[None]] = {}
    tensors = list(trained_tensors(made).items())
    for name, tensor in tensors[:: math.ceil(len(tensors) / PLANTED)]:
        found[f"weight {name}"] = _nan_in_weight(tensor)
        found[f"gradient of {name}"] = nan_in_gradient(tensor)
    if any(tensor.is_floating_point() for tensor in tensors_of(made.next_batch()).values()):
        found["batch"] = _nan_in_batches(made)
    return found


@contextmanager
def _nan_in_weight(tensor: Tensor) -> Iterator[None]:
    before = tensor.detach().clone()
    tensor.detach().fill_(math.nan)
    yield
    tensor.detach().copy_(before)


@contextmanager
def nan_in_gradient(tensor: Tensor) -> Iterator[None]:
    """Make every gradient of a tensor NaN, as a fault of a kernel would; the loss stays a number."""
    handle = tensor.register_hook(lambda gradient: torch.full_like(gradient, math.nan))  # type: ignore[no-untyped-call]  # untyped in torch
    yield
    handle.remove()


@contextmanager
def _nan_in_batches(made: Trainable) -> Iterator[None]:
    draw = made.next_batch

    def poisoned() -> Any:
        batch = draw()
        for tensor in tensors_of(batch).values():
            if tensor.is_floating_point():
                tensor.fill_(math.nan)
        return batch

    object.__setattr__(made, "next_batch", poisoned)
    yield
    object.__delattr__(made, "next_batch")
