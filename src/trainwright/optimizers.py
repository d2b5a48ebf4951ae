"""AdamW with decay on matrices only, and its state by parameter name."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from trainwright.errors import DamagedCheckpointError
from trainwright.state import State, StateValue, require


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """AdamW (Loshchilov and Hutter 2019, Algorithm 2). `implementation` changes the bits, not the mathematics."""

    learning_rate: float = 3e-4
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1
    implementation: Literal["fused", "foreach", "single"] = "fused"


def build_optimizer(parameters: Mapping[str, nn.Parameter], settings: OptimizerSettings) -> torch.optim.Optimizer:
    """Make AdamW with two groups: tensors of two or more dimensions decay, vectors and scalars do not."""
    trained = [p for p in parameters.values() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
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
    """Give every moment and counter as `<parameter>.<entry>`, and `groups` with each group's numbers."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in parameters.items()}
    state: dict[str, StateValue] = {
        f"{names[parameter]}.{entry}": value
        for parameter, entries in optimizer.state.items()
        for entry, value in entries.items()
    }
    state["groups"] = cast(
        "Any",
        [
            {key: list(v) if isinstance(v, tuple) else v for key, v in group.items() if key != "params"}
            for group in optimizer.param_groups
        ],
    )
    return state


def load_optimizer_state(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter], state: State
) -> None:
    """Copy `state` in. Errors: DamagedCheckpointError when groups or shapes differ from this optimizer's.

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
    entries: dict[str, dict[str, Tensor]] = {}
    for name, value in state.items():
        if isinstance(value, Tensor):
            parameter_name, _, entry = name.rpartition(".")
            entries.setdefault(parameter_name, {})[entry] = value
    optimizer.state.clear()
    for name, own in entries.items():
        if name not in parameters:
            raise DamagedCheckpointError(f"entry 'optimizer.{name}' belongs to no parameter of this model")
        parameter = parameters[name]
        optimizer.state[parameter] = {
            entry: _copied(value, parameter, f"{name}.{entry}") for entry, value in own.items()
        }


def _copied(value: Tensor, parameter: nn.Parameter, name: str) -> Tensor:
    if value.dim() and value.shape != parameter.shape:
        raise DamagedCheckpointError(
            f"entry 'optimizer.{name}' has shape {list(value.shape)}, the parameter's is {list(parameter.shape)}"
        )
    return value.detach().to(parameter.device, copy=True)
