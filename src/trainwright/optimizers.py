"""AdamW with decay on matrices only, and its state by parameter name."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

import torch
from torch import Tensor, nn

from trainwright.errors import DamagedCheckpointError
from trainwright.state import State, StateValue, require

COUNTER: Final = "step"
ADAMW_ENTRIES: Final = ("exp_avg", "exp_avg_sq", COUNTER)
TOLD_WITHIN: Final = 0.02  # an inferred rate that rounding may have moved by a larger share is not told


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """AdamW (Loshchilov and Hutter 2019, Algorithm 2), its decay multiplied by the rate as `torch.optim.AdamW` has it.

    `implementation` changes the bits, not the mathematics.
    """

    learning_rate: float = 3e-4
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1
    implementation: Literal["fused", "foreach", "single"] = "fused"


def build_optimizer(parameters: Mapping[str, nn.Parameter], settings: OptimizerSettings) -> torch.optim.Optimizer:
    """Make AdamW with two groups: tensors of two or more dimensions decay, vectors and scalars do not.

    Without decay there is one: a group costs a call of the kernel at each step.
    """
    trained = [p for p in parameters.values() if p.requires_grad]
    decaying = [p for p in trained if p.dim() >= 2 and settings.weight_decay]
    groups = [
        {"params": decaying, "weight_decay": settings.weight_decay},
        {"params": [p for p in trained if p.dim() < 2 or not settings.weight_decay], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=settings.learning_rate,
        betas=settings.betas,
        eps=settings.eps,
        fused=settings.implementation == "fused",
        foreach=settings.implementation == "foreach",
    )


def optimizer_state(optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]) -> dict[str, StateValue]:
    """Give every moment and counter as `<parameter>.<entry>`, and `groups` with each group's numbers and parameters.

    A group's `entries` names, by parameter, the tensors that belong to the state.
    """
    names: dict[Tensor, str] = {parameter: name for name, parameter in parameters.items()}
    state: dict[str, StateValue] = {
        f"{names[parameter]}.{entry}": value
        for parameter, entries in optimizer.state.items()
        for entry, value in entries.items()
    }
    state["groups"] = cast(
        "Any",
        [
            {
                **{key: list(v) if isinstance(v, tuple) else v for key, v in group.items() if key != "params"},
                "parameters": [names[parameter] for parameter in group["params"]],
                "entries": {names[p]: _tensors_of(optimizer, p) for p in group["params"] if p in optimizer.state},
            }
            for group in optimizer.param_groups
        ],
    )
    return state


def _tensors_of(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> list[str]:
    return sorted(entry for entry, value in optimizer.state[parameter].items() if isinstance(value, Tensor))


def load_optimizer_state(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter], state: State
) -> None:
    """Copy `state` in.

    Errors: DamagedCheckpointError when groups or shapes differ from this optimizer's, or an entry that it names misses.

    Numbers of a group that the configuration sets (betas, decay, implementation) stay the configuration's; the
    learning rate is set by the schedule before each step.
    """
    groups = cast("list[dict[str, Any]]", require(state, "groups"))
    if len(groups) != len(optimizer.param_groups):
        raise DamagedCheckpointError(
            f"entry 'optimizer.groups' holds {len(groups)} groups, this optimizer has {len(optimizer.param_groups)}"
        )
    for group, saved in zip(optimizer.param_groups, groups, strict=True):
        group["lr"] = saved["lr"]
        _check_entries(saved.get("entries", {}), state)  # an older version did not name them
    entries: dict[str, dict[str, Tensor]] = {}
    for name, value in state.items():
        if isinstance(value, Tensor):
            parameter_name, _, entry = name.rpartition(".")
            entries.setdefault(parameter_name, {})[entry] = value
    # where no kernel counts on the device, a counter there would be waited for at every step
    on_host = not any(group.get("fused") or group.get("capturable") for group in optimizer.param_groups)
    optimizer.state.clear()
    for name, own in entries.items():
        if name not in parameters:
            raise DamagedCheckpointError(f"entry 'optimizer.{name}' belongs to no parameter of this model")
        parameter = parameters[name]
        optimizer.state[parameter] = {
            entry: _copied(value, parameter, f"{name}.{entry}", on_host=on_host and entry == COUNTER)
            for entry, value in own.items()
        }


def _check_entries(wanted: Mapping[str, Sequence[str]], state: State) -> None:
    names = [f"{name}.{entry}" for name, entries in wanted.items() for entry in entries]
    missing = [name for name in names if not isinstance(state.get(name), Tensor)]
    if missing:
        raise DamagedCheckpointError(
            f"the checkpoint holds no entry 'optimizer.{missing[0]}', and misses {len(missing)} in all of the "
            f"{len(names)} that its group names; it cannot be resumed from"
        )


def _copied(value: Tensor, parameter: nn.Parameter, name: str, *, on_host: bool) -> Tensor:
    if value.dim() and value.shape != parameter.shape:
        raise DamagedCheckpointError(
            f"entry 'optimizer.{name}' has shape {list(value.shape)}, the parameter's is {list(parameter.shape)}"
        )
    return value.detach().to(torch.device("cpu") if on_host else parameter.device, copy=True)


def applied_rate(
    before: Tensor, after: Tensor, moments: Mapping[str, StateValue], group: Mapping[str, Any]
) -> Tensor | None:
    """Infer the learning rate that AdamW took from how a tensor moved: on its device, float64, shape (2,).

    Loshchilov and Hutter 2019, Algorithm 2, in `torch.optim.AdamW`'s form: θ moves by -lr·u, u = m̂ / (√v̂ + ε) + λ·θ;
    the rate is then the least-squares one, -⟨Δ, u⟩ / ⟨u, u⟩. The second number is how far the rounding of the weights
    to their own type can have moved the first: half a unit in the last place of each, and once more where λ is not 0,
    all of them in one direction. Not a number where u is zero.
    `moments` are the tensor's entries in the optimizer's state after the step, `group` its group there. None: these
    are not the state of an AdamW (or of an Adam without decay).
    """
    entries = [moments.get(name) for name in ADAMW_ENTRIES]
    if not _is_adamw(group) or not all(isinstance(entry, Tensor) for entry in entries):
        return None
    mean, square, step = (cast("Tensor", entry).double() for entry in entries)
    beta1, beta2 = group["betas"]
    decay, start, end = group["weight_decay"], before.double(), after.detach().double()
    denominator = (square / (1 - beta2**step)).sqrt() + group["eps"]
    direction: Tensor = mean / (1 - beta1**step) / denominator + decay * start
    roundings: Tensor = torch.finfo(before.dtype).eps * torch.maximum(start.abs(), end.abs()) * (1.0 if decay else 0.5)
    moved, error = ((start - end) * direction).sum(), (roundings * direction.abs()).sum()
    return torch.stack((moved, error)) / direction.square().sum()


def _is_adamw(group: Mapping[str, Any]) -> bool:
    """Tell a group of torch.optim.AdamW, or of Adam, which is the same without decay, from those of other rules."""
    if not {"lr", "betas", "eps", "weight_decay", "amsgrad"} <= group.keys() or group["amsgrad"]:
        return False
    return not group.get("maximize") and bool(group.get("decoupled_weight_decay") or not group["weight_decay"])


def told_rate(inferred: Tensor, stated: float) -> float | None:
    """Give the rate that `applied_rate` inferred; None where rounding may be above 2 % of it and of the stated one."""
    rate, error = inferred.tolist()
    return rate if math.isfinite(rate) and error <= TOLD_WITHIN * max(abs(rate), abs(stated)) else None
