from typing import Any, Literal

import pytest
import torch
from torch import nn

from trainwright.errors import DamagedCheckpointError
from trainwright.optimizers import OptimizerSettings, build_optimizer, load_optimizer_state, optimizer_state
from trainwright.state import State

Implementation = Literal["fused", "foreach", "single"]
IMPLEMENTATIONS: tuple[Implementation, ...] = ("fused", "foreach", "single")


def model() -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(3)
    shapes = {"matrix": (4, 3), "cube": (2, 3, 2), "vector": (5,), "scalar": ()}
    return {name: nn.Parameter(torch.randn(shape, generator=generator)) for name, shape in shapes.items()}


def take_steps(optimizer: torch.optim.Optimizer, parameters: dict[str, nn.Parameter], steps: range) -> None:
    for step in steps:
        for number, parameter in enumerate(parameters.values()):
            generator = torch.Generator().manual_seed(100 * step + number)
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()


def copied(state: State) -> dict[str, Any]:
    return {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in state.items()}


def as_bytes(state: State) -> dict[str, Any]:
    return {
        name: value.numpy().tobytes() if isinstance(value, torch.Tensor) else value for name, value in state.items()
    }


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_only_matrices_decay(implementation: Implementation) -> None:
    parameters = model()
    before = copied(parameters)
    settings = OptimizerSettings(learning_rate=0.5, weight_decay=0.2, implementation=implementation)
    optimizer = build_optimizer(parameters, settings)
    for parameter in parameters.values():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in parameters.items():
        factor = 1 - 0.5 * 0.2 if parameter.dim() >= 2 else 1.0
        torch.testing.assert_close(parameter.detach(), before[name].detach() * factor)


def test_a_frozen_parameter_is_in_no_group_and_an_empty_group_is_not_made() -> None:
    parameters = model()
    for name in ("vector", "scalar", "cube"):
        parameters[name].requires_grad = False
    optimizer = build_optimizer(parameters, OptimizerSettings())
    assert [group["params"] for group in optimizer.param_groups] == [[parameters["matrix"]]]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_the_settings_reach_the_implementation_that_was_asked_for(implementation: Implementation) -> None:
    settings = OptimizerSettings(1e-2, betas=(0.5, 0.6), eps=1e-3, implementation=implementation)
    for group in build_optimizer(model(), settings).param_groups:
        assert (group["lr"], group["betas"], group["eps"]) == (1e-2, (0.5, 0.6), 1e-3)
        assert (group["fused"], group["foreach"]) == (implementation == "fused", implementation == "foreach")


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_an_optimizer_that_takes_up_a_state_by_name_goes_on_byte_for_byte(implementation: Implementation) -> None:
    settings = OptimizerSettings(implementation=implementation)
    parameters = model()
    optimizer = build_optimizer(parameters, settings)
    take_steps(optimizer, parameters, range(3))
    state, weights = copied(optimizer_state(optimizer, parameters)), copied(parameters)
    take_steps(optimizer, parameters, range(3, 6))

    fresh = {name: nn.Parameter(weights[name].detach()) for name in reversed(weights)}  # by name, not by order
    other = build_optimizer({name: fresh[name] for name in parameters}, settings)
    load_optimizer_state(other, fresh, state)
    take_steps(other, {name: fresh[name] for name in parameters}, range(3, 6))
    assert as_bytes(optimizer_state(other, fresh)) == as_bytes(optimizer_state(optimizer, parameters))
    for name, parameter in parameters.items():
        assert parameter.detach().numpy().tobytes() == fresh[name].detach().numpy().tobytes()


def test_the_state_holds_moments_and_counter_of_each_parameter_under_its_name() -> None:
    parameters = model()
    optimizer = build_optimizer(parameters, OptimizerSettings())
    assert set(optimizer_state(optimizer, parameters)) == {"groups"}
    take_steps(optimizer, parameters, range(1))
    expected = {f"{name}.{entry}" for name in parameters for entry in ("step", "exp_avg", "exp_avg_sq")}
    assert set(optimizer_state(optimizer, parameters)) == expected | {"groups"}


def test_a_state_is_copied_in_never_shared() -> None:
    parameters = model()
    optimizer = build_optimizer(parameters, OptimizerSettings())
    take_steps(optimizer, parameters, range(1))
    state = copied(optimizer_state(optimizer, parameters))
    load_optimizer_state(optimizer, parameters, state)
    before = as_bytes(state)
    take_steps(optimizer, parameters, range(1, 2))
    assert as_bytes(state) == before


def test_settings_of_the_configuration_win_over_those_of_the_state_but_for_the_learning_rate() -> None:
    parameters = model()
    state = optimizer_state(build_optimizer(parameters, OptimizerSettings(1e-2, weight_decay=0.5)), parameters)
    optimizer = build_optimizer(parameters, OptimizerSettings(1e-3, weight_decay=0.1))
    load_optimizer_state(optimizer, parameters, state)
    assert [group["lr"] for group in optimizer.param_groups] == [1e-2, 1e-2]
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"groups": [{"lr": 0.1}]}, r"'optimizer\.groups' holds 1 groups, this optimizer has 2"),
        ({"other.exp_avg": torch.zeros(3)}, r"'optimizer\.other' belongs to no parameter of this model"),
        ({"vector.exp_avg": torch.zeros(4)}, r"'optimizer\.vector\.exp_avg' has shape \[4\], the parameter's is \[5\]"),
    ],
)
def test_a_state_that_does_not_fit_names_the_entry(change: dict[str, Any], message: str) -> None:
    parameters = model()
    optimizer = build_optimizer(parameters, OptimizerSettings())
    take_steps(optimizer, parameters, range(1))
    with pytest.raises(DamagedCheckpointError, match=message):
        load_optimizer_state(optimizer, parameters, {**optimizer_state(optimizer, parameters), **change})


def test_a_state_without_its_groups_names_them() -> None:
    parameters = model()
    with pytest.raises(DamagedCheckpointError, match="'groups'"):
        load_optimizer_state(build_optimizer(parameters, OptimizerSettings()), parameters, {})
