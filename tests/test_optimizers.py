from typing import Any, Literal, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from trainwright.errors import DamagedCheckpointError
from trainwright.optimizers import (
    OptimizerSettings,
    applied_rate,
    build_optimizer,
    load_optimizer_state,
    optimizer_state,
    told_rate,
)
from trainwright.state import State, under_prefix

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


@pytest.mark.parametrize("left_out", ["", ".exp_avg"])
def test_a_state_that_misses_what_its_groups_name_is_refused_and_none_before_the_first_step(left_out: str) -> None:
    parameters = model()
    optimizer = build_optimizer(parameters, OptimizerSettings())
    load_optimizer_state(optimizer, parameters, optimizer_state(optimizer, parameters))
    take_steps(optimizer, parameters, range(1))
    state = optimizer_state(optimizer, parameters)
    kept = {name: value for name, value in state.items() if name == "groups" or not name.endswith(left_out)}
    with pytest.raises(DamagedCheckpointError, match=r"no entry 'optimizer\.matrix\.exp_avg'"):
        load_optimizer_state(optimizer, parameters, kept)


def test_a_state_without_its_groups_names_them() -> None:
    parameters = model()
    with pytest.raises(DamagedCheckpointError, match="'groups'"):
        load_optimizer_state(build_optimizer(parameters, OptimizerSettings()), parameters, {})


def moved_by_adamw(
    chosen: OptimizerSettings, steps: int, seed: int, *, scale: float = 0.02
) -> dict[str, tuple[float | None, float]]:
    """Take steps at a rate of 1e-3, then one at that of `chosen`: give the inferred rate and the true one by name."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"matrix": (40, 30), "vector": (200,)}
    parameters = {n: nn.Parameter(scale * torch.randn(shape, generator=generator)) for n, shape in shapes.items()}
    optimizer = build_optimizer(parameters, chosen)
    before: dict[str, torch.Tensor] = {}
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = chosen.learning_rate if step == steps - 1 else 1e-3
        for parameter in parameters.values():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        before = {name: parameter.detach().clone() for name, parameter in parameters.items()}
        optimizer.step()
    state = optimizer_state(optimizer, parameters)
    return {
        name: (rate_told_by(state, parameters[name], before[name], name), chosen.learning_rate) for name in parameters
    }


def rate_told_by(state: State, parameter: torch.Tensor, before: torch.Tensor, name: str) -> float | None:
    groups: Any = state["groups"]
    group = next(group for group in groups if name in group["parameters"])
    inferred = applied_rate(before, parameter, under_prefix(name, state), group)
    return None if inferred is None else told_rate(inferred, group["lr"])


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@given(
    rate=st.floats(-6, -1).map(lambda exponent: 10.0**exponent),
    decay=st.sampled_from([0.0, 0.01, 0.1, 0.5]),
    steps=st.integers(1, 12),
    seed=st.integers(0, 1000),
)
@settings(max_examples=30, deadline=None)
def test_the_rate_that_adamw_took_is_told_by_the_weights_within_one_percent(
    implementation: Implementation, rate: float, decay: float, steps: int, seed: int
) -> None:
    chosen = OptimizerSettings(rate, weight_decay=decay, implementation=implementation)
    for told, true in moved_by_adamw(chosen, steps, seed).values():
        assert told == pytest.approx(true, rel=0.01)


def test_at_a_rate_of_1e_6_and_weights_of_2e_2_the_precision_is_better_than_one_in_a_thousand() -> None:
    for told, true in moved_by_adamw(OptimizerSettings(1e-6), steps=20, seed=5).values():
        assert told == pytest.approx(true, rel=1e-3)


def test_the_rate_is_told_also_where_weights_move_by_their_decay_as_much_as_by_their_gradients() -> None:
    for told, true in moved_by_adamw(OptimizerSettings(1e-2, weight_decay=0.5), 5, 2, scale=2.0).values():
        assert told == pytest.approx(true, rel=1e-3)


def test_a_rate_that_drowns_in_the_rounding_of_the_weights_is_not_told() -> None:
    assert {told for told, _ in moved_by_adamw(OptimizerSettings(1e-9), steps=3, seed=1).values()} == {None}
    assert {told for told, _ in moved_by_adamw(OptimizerSettings(1e-5), 3, 1, scale=1e3).values()} == {None}


def test_a_rate_that_the_groups_do_not_state_is_told_as_the_weights_moved() -> None:
    parameters = model()
    optimizer = build_optimizer(parameters, OptimizerSettings(1e-2))
    take_steps(optimizer, parameters, range(3))
    before = copied(parameters)["matrix"]
    take_steps(optimizer, parameters, range(3, 4))
    optimizer.param_groups[0]["lr"] = 5e-2
    told = rate_told_by(optimizer_state(optimizer, parameters), parameters["matrix"], before, "matrix")
    assert told == pytest.approx(1e-2, rel=1e-3)


def test_weights_that_stand_still_tell_a_rate_of_zero_though_one_is_stated() -> None:
    parameters = model()
    optimizer = build_optimizer(parameters, OptimizerSettings(1e-2))
    take_steps(optimizer, parameters, range(3))
    still = parameters["matrix"].detach().clone()
    assert rate_told_by(optimizer_state(optimizer, parameters), still, still, "matrix") == 0.0


def test_no_rate_is_told_without_a_direction_without_moments_or_of_another_rule() -> None:
    parameters = {"matrix": nn.Parameter(torch.zeros(3, 3))}
    optimizer = build_optimizer(parameters, OptimizerSettings())
    parameters["matrix"].grad = torch.zeros(3, 3)
    optimizer.step()
    state = optimizer_state(optimizer, parameters)
    weights, group = parameters["matrix"], cast("Any", state["groups"])[0]
    assert rate_told_by(state, weights, weights.detach(), "matrix") is None
    assert applied_rate(weights, weights, {}, group) is None
    moments = under_prefix("matrix", state)
    others = ({"amsgrad": True}, {"maximize": True}, {"decoupled_weight_decay": False})
    assert [applied_rate(weights, weights, moments, {**group, **other}) for other in others] == [None] * 3
    assert applied_rate(weights, weights, moments, {"lr": 0.1, "momentum": 0.9}) is None


def test_a_group_names_its_parameters_and_a_state_without_the_names_is_taken_up() -> None:
    parameters = model()
    optimizer = build_optimizer(parameters, OptimizerSettings())
    state = optimizer_state(optimizer, parameters)
    groups: Any = state["groups"]
    assert [group["parameters"] for group in groups] == [["matrix", "cube"], ["vector", "scalar"]]
    older: Any = [{key: value for key, value in group.items() if key != "parameters"} for group in groups]
    load_optimizer_state(optimizer, parameters, {**state, "groups": older})
