"""The network of the Temporal Fusion Transformer: what it may see, what it tells of itself, and its dropout."""

import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import Tensor

from trainwright.data.series import Inputs, Variable, Window
from trainwright.errors import InputError
from trainwright.models.tft_layers import Dropout, Embedding, FeatureNorm, VariableSelection, gated
from trainwright.models.tft_network import Forecast, Shape, TemporalFusionTransformer

WINDOWS, CONTEXT, HORIZON = 3, 9, 5
STEPS = CONTEXT + HORIZON
REAL, CODE = Variable("real"), Variable("code", categories=4)
MIXED = Inputs((REAL, CODE), (REAL, REAL, CODE), (REAL, CODE))
SHAPE = Shape(8, 2, dropout=0.0)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def drawn(variables: Sequence[Variable], *leading: int) -> tuple[Tensor, Tensor]:
    """Give reals and codes of some variables."""
    codes = sum(variable.categories is not None for variable in variables)
    return torch.randn(*leading, len(variables) - codes), torch.randint(4, (*leading, codes))


def window(inputs: Inputs) -> Window:
    return Window(
        *drawn(inputs.static, WINDOWS),
        *drawn(inputs.known, WINDOWS, STEPS),
        *drawn(inputs.observed, WINDOWS, CONTEXT),
        *torch.randn(2, WINDOWS, HORIZON),
    )


def network(inputs: Inputs = MIXED, shape: Shape = SHAPE) -> TemporalFusionTransformer:
    return TemporalFusionTransformer(inputs, shape, quantiles=3)


# -- what goes in and comes out --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "inputs",
    [
        MIXED,
        Inputs((), (REAL,), (REAL,)),
        Inputs((CODE,), (CODE,), (REAL,)),
        Inputs((REAL, REAL, REAL), (CODE, CODE), (REAL, REAL)),
    ],
    ids=["mixed", "least", "codes", "many"],
)
@pytest.mark.parametrize("layers", [1, 2])
def test_it_forecasts_from_any_kinds_of_variables_and_every_weight_learns(inputs: Inputs, layers: int) -> None:
    made = network(inputs, Shape(8, 2, layers, dropout=0.1))
    found = made(window(inputs))
    past, future = len(inputs.known) + len(inputs.observed), len(inputs.known)
    assert found.quantiles_bhq.shape == (WINDOWS, HORIZON, 3)
    assert found.attention_bht.shape == (WINDOWS, HORIZON, STEPS)
    assert found.past_bcm.shape == (WINDOWS, CONTEXT, past)
    assert found.future_bhm.shape == (WINDOWS, HORIZON, future)
    assert (found.static_bm is None) == (not inputs.static)
    found.quantiles_bhq.square().mean().backward()
    still = [name for name, parameter in made.named_parameters() if parameter.grad is None or not parameter.grad.any()]
    assert still == []


def test_without_anything_known_of_the_future_it_is_refused() -> None:
    with pytest.raises(InputError, match="needs a variable that is known over the horizon"):
        network(Inputs((REAL,), (), (REAL,)))


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    with pytest.raises(InputError, match=r"model\.width 16 is no multiple of model\.heads 3"):
        Shape(16, 3)


@torch.no_grad()
def test_attention_and_shares_sum_to_one() -> None:
    found = network()(window(MIXED))
    for shares in (found.attention_bht, found.static_bm, found.past_bcm, found.future_bhm):
        assert bool((shares >= 0).all())
        torch.testing.assert_close(shares.sum(-1), torch.ones(shares.shape[:-1]))


# -- what it sees ----------------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("step", range(HORIZON))
def test_what_is_known_of_a_step_changes_no_forecast_of_an_earlier_one(step: int) -> None:
    made, given = network().eval(), window(MIXED)
    changed = given._replace(known_reals=given.known_reals.clone())
    changed.known_reals[:, CONTEXT + step] += 1.0
    before, after = (made(each) for each in (given, changed))
    assert torch.equal(before.quantiles_bhq[:, :step], after.quantiles_bhq[:, :step])
    assert bool((before.quantiles_bhq[:, step:] != after.quantiles_bhq[:, step:]).any((0, 2)).all())
    assert not before.attention_bht[:, step, CONTEXT + step + 1 :].any()


def reach(given: Window, changed: Window) -> Tensor:
    made = network().eval()
    before: Forecast = made(given)
    after: Forecast = made(changed)
    return (before.quantiles_bhq - after.quantiles_bhq).abs().amax((1, 2))


@torch.no_grad()
def test_every_kind_of_input_reaches_the_forecast_of_its_own_window_alone() -> None:
    given = window(MIXED)
    for name in Window._fields[:6]:
        part = getattr(given, name).clone()
        part[0, ..., 0] = (part[0, ..., 0] + 1) % 4
        moved_b = reach(given, given._replace(**{name: part}))
        assert moved_b[0] > 1e-6, name
        assert not moved_b[1:].any(), name


@torch.no_grad()
def test_the_forecast_depends_on_no_target_or_weight() -> None:
    given = window(MIXED)
    assert not reach(given, given._replace(target=given.target + 1, weight=given.weight + 1)).any()


# -- parts -----------------------------------------------------------------------------------------------------------


def test_equal_codes_of_two_variables_have_vectors_of_their_own() -> None:
    made = Embedding([REAL, Variable("a", 3), Variable("b", 4)], width=8)
    assert made.table is not None
    vectors_mdl = made(torch.zeros(1, 1), torch.tensor([[2], [2]]))
    assert torch.equal(vectors_mdl[1, :, 0], made.table.weight[2])
    assert torch.equal(vectors_mdl[2, :, 0], made.table.weight[3 + 2])
    with pytest.raises(IndexError):
        made(torch.zeros(1, 1), torch.tensor([[0], [4]]))


def test_of_one_variable_all_is_taken() -> None:
    made = VariableSelection(1, 8, context=8, dropout=0.0)
    found = made(torch.randn(1, 8, 6), torch.randn(8, 3))
    assert found.vector_dl.shape == (8, 6)
    assert torch.equal(found.shares_ml, torch.ones(1, 6))


@pytest.mark.parametrize("sizes", [(6,), (3, 6)])
def test_the_norm_over_features_is_that_of_torch_and_so_is_its_gradient(sizes: tuple[int, ...]) -> None:
    made = FeatureNorm(*sizes)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter)
    x_dl, gradient_dl = torch.randn(*sizes, 5, requires_grad=True), torch.randn(*sizes, 5)
    normed_dl = torch.nn.functional.layer_norm(x_dl.mT, sizes[-1:]).mT
    expected_dl = normed_dl * made.weight[..., None] + made.bias[..., None]
    for found_dl in (made(x_dl), expected_dl):
        torch.testing.assert_close(found_dl, expected_dl, rtol=0, atol=1e-5)
    found, expected = (torch.autograd.grad(each_dl, x_dl, gradient_dl) for each_dl in (made(x_dl), expected_dl))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_the_gradient_of_values_and_gates_is_the_differences_quotient() -> None:
    x_mdl = torch.randn(2, 6, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(gated, x_mdl)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_dropout_zeroes_its_share_and_keeps_the_mean(share: float) -> None:
    made, count = Dropout(share), 200_001
    dropped = made(torch.ones(count))
    zeros = dropped.eq(0).float().mean().item()
    assert zeros == pytest.approx(share, abs=5 * (share * (1 - share) / count) ** 0.5)
    assert dropped.unique().tolist() == [0.0, pytest.approx(1 / (1 - share), rel=1e-3)]
    assert dropped.mean().item() == pytest.approx(1.0, abs=5 * (share / (1 - share) / count) ** 0.5)


def test_neighbours_are_dropped_independently() -> None:
    zeros = Dropout(0.5)(torch.ones(400_000)).eq(0).float() - 0.5
    for distance in (1, 2, 3, 4, 8):
        together = (zeros[distance:] * zeros[:-distance]).mean().item() * 4
        assert abs(together) < 5 / 400_000**0.5, distance


def test_a_gradient_flows_through_what_is_kept_alone_and_nothing_is_dropped_in_use() -> None:
    x = torch.ones(1000, requires_grad=True)
    made = Dropout(0.3)
    dropped = made(x * 1.0)
    (gradient,) = torch.autograd.grad(dropped.sum(), x)
    assert torch.equal(gradient, dropped)
    assert torch.equal(made.eval()(x * 1.0), x)


# -- memory ----------------------------------------------------------------------------------------------------------

FAULTS = """
import resource
import torch
from trainwright.data.series import Inputs, Variable, Window
from trainwright.environment import keep_freed_memory
from trainwright.models.tft_network import Shape, TemporalFusionTransformer

keep_freed_memory()
torch.set_num_threads(1)
real = Variable("real")
network = TemporalFusionTransformer(Inputs((), (real,) * 4, (real,) * 7), Shape(8, 4), 3)
codes = [torch.zeros(64, *steps, 0, dtype=torch.int64) for steps in ((), (120,), (96,))]
reals = [torch.randn(64, *sizes) for sizes in ((0,), (120, 4), (96, 7))]
window = Window(*(part for pair in zip(reals, codes) for part in pair), *torch.ones(2, 64, 24))

def faults(steps):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(steps):
        network(window).quantiles_bhq.sum().backward()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / steps

faults(8)
print(faults(8))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is taught to keep what is freed")
def test_a_step_takes_the_memory_that_the_last_one_freed(child_environment: Mapping[str, str]) -> None:
    environment = {name: value for name, value in child_environment.items() if not name.startswith("MALLOC_")}
    command = [sys.executable, "-c", FAULTS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert float(done.stdout) < 1000  # pages of 4 KiB; thousands where freed memory is given back
