import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.toys import Samples, Toy, ToyOptions, toy
from trainwright.errors import DamagedCheckpointError, InputError
from trainwright.optimizers import OptimizerSettings
from trainwright.state import State
from trainwright.torch_trainable import TorchTrainable, to_device
from trainwright.trainable import Setup, Trainable, Unit, summarize


class Counting:
    """The least that a source is: the numbers 1 to 8, one at a time."""

    unit: Unit = "samples"
    epoch = 0
    micro_batches_per_epoch = micro_batches_left = items_per_epoch = None
    hashes: Mapping[str, str] = {}
    position = 0

    def next_batch(self) -> Tensor:
        self.position += 1
        return torch.tensor([[float((self.position - 1) % 8 + 1)]])

    def validation_batches(self) -> Iterator[Tensor]:
        yield torch.tensor([[2.0], [3.0]])

    def save(self) -> State:
        return {"position": self.position}

    def load(self, state: State) -> None:
        assert isinstance(state["position"], int)
        self.position = state["position"]


class Doubling(TorchTrainable):
    """What a user writes: that y = 2 x."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.source = Counting()
        self.layer = nn.Linear(1, 1)

    def forward(self, batch: Tensor) -> Tensor:
        return self.layer(batch)  # type: ignore[no-any-return]  # nn.Module gives Any

    def compute_loss(self, predictions: Tensor, batch: Tensor) -> tuple[Tensor, int]:
        return nn.functional.mse_loss(predictions, 2 * batch), len(batch)


def take_step(trainable: Trainable, learning_rate: float = 1e-2, skip: Tensor | None = None) -> float:
    trainable.learning_rate = learning_rate
    batch = trainable.next_batch()
    loss, _ = trainable.compute_loss(trainable.forward(batch), batch)
    trainable.backward(loss)
    trainable.clip_gradients(1.0)
    trainable.optimizer_step(skip)
    trainable.zero_grad()
    return loss.item()


def whole(trainable: Trainable) -> dict[str, Any]:
    """Give the whole state with tensors as bytes."""
    return {
        name: value.numpy().tobytes() if isinstance(value, Tensor) else value
        for name, value in trainable.save_checkpoint().items()
    }


def test_a_users_class_of_fifteen_lines_trains() -> None:
    trainable: Trainable = Doubling.build(Setup(model={}, data={}, batch_size=1))
    before = trainable.validate()
    for _ in range(200):
        take_step(trainable, 2e-2)
    assert trainable.step == 200
    assert trainable.validate().value < before.value / 100
    assert (before.metric, before.n) == ("val_loss", 2)
    assert trainable.parameter_count == 2


def test_a_class_without_a_source_is_refused_by_its_name() -> None:
    class Bare(TorchTrainable):
        pass

    with pytest.raises(InputError, match=r"test_torch_trainable:Bare\.__init__ sets no self\.source"):
        Bare.build(Setup(model={}, data={}, batch_size=1))


def test_equal_seeds_give_equal_weights_batches_and_steps_and_other_seeds_others() -> None:
    def after_a_step(seed: int) -> dict[str, Any]:
        trainable = toy(seed=seed)  # a build seeds the streams that dropout draws from
        take_step(trainable)
        return whole(trainable)

    assert after_a_step(4) == after_a_step(4)
    assert after_a_step(4)["model.layers.0.weight"] != after_a_step(5)["model.layers.0.weight"]


def test_the_learning_rate_reaches_every_group_and_is_read_back() -> None:
    trainable = toy()
    trainable.learning_rate = 0.125
    assert [group["lr"] for group in trainable.optimizer.param_groups] == [0.125, 0.125]
    trainable.optimizer.param_groups[0]["lr"] = 0.5
    assert trainable.learning_rate == 0.5


def test_a_validation_leaves_weights_mode_random_streams_and_data_position() -> None:
    trainable = toy()
    take_step(trainable)
    before = whole(trainable)
    first, second = trainable.validate(), trainable.validate()
    assert whole(trainable) == before
    assert trainable.training
    assert all(parameter.grad is None for parameter in trainable.parameters())
    trainable.eval()
    with torch.no_grad():
        losses = [trainable.compute_loss(trainable.forward(b), b)[0] for b in trainable.source.validation_batches()]
    assert first.value == second.value == pytest.approx(torch.stack(losses).mean().item()), "dropout is off in it"
    trainable.validate()
    assert not trainable.training


def test_a_validation_takes_each_part_that_a_model_tells_apart_as_one_sample() -> None:
    class BySample(Toy):
        def losses_of(self, batch: Samples) -> Sequence[tuple[float, int]]:
            errors_b1 = (self.forward(batch) - batch.y_b1).square()
            return [(error, 1) for error in errors_b1.flatten().tolist()]

    setup = Setup(model=ToyOptions(), data={}, batch_size=32)
    whole_batches, by_sample = Toy.build(setup).validate(), BySample.build(setup).validate()
    assert by_sample.n == whole_batches.n == 64
    assert by_sample.value == pytest.approx(whole_batches.value, rel=1e-5)
    assert by_sample.standard_error != whole_batches.standard_error


def test_a_validation_that_fails_leaves_mode_and_random_streams() -> None:
    class Failing(Toy):
        def compute_loss(self, predictions: Tensor, batch: Samples) -> tuple[Tensor, int]:
            torch.rand(())
            raise ZeroDivisionError

    trainable = Failing.build(Setup(model=ToyOptions(), data={}, batch_size=32))
    before = whole(trainable)
    with pytest.raises(ZeroDivisionError):
        trainable.validate()
    assert trainable.training
    assert whole(trainable) == before


@pytest.mark.parametrize("max_norm", [1e-3, 1e3])
def test_clipping_gives_the_bits_of_torchs_own(max_norm: float) -> None:
    trainable, theirs = (toy(hidden=33, dropout=0.0) for _ in range(2))
    for made in (trainable, theirs):
        batch = made.next_batch()
        made.backward(made.compute_loss(made.forward(batch), batch)[0])
    norm = nn.utils.clip_grad_norm_(list(theirs.parameters()), max_norm)
    assert trainable.clip_gradients(max_norm).item() == norm.item()
    for own, other in zip(trainable.parameters(), theirs.parameters(), strict=True):
        assert own.grad is not None
        assert other.grad is not None
        assert own.grad.numpy().tobytes() == other.grad.numpy().tobytes()


def test_without_gradients_the_norm_is_0() -> None:
    assert toy().clip_gradients(1.0).item() == 0.0


def test_the_gradient_norm_is_over_all_parameters_before_clipping_and_after_it_within_bounds() -> None:
    trainable = toy(loss_scale=100.0)
    batch = trainable.next_batch()
    trainable.backward(trainable.compute_loss(trainable.forward(batch), batch)[0])
    gradients = [parameter.grad for parameter in trainable.parameters() if parameter.grad is not None]
    assert len(gradients) == 4
    expected = math.sqrt(sum(float(gradient.double().pow(2).sum()) for gradient in gradients))
    assert trainable.clip_gradients(None).item() == pytest.approx(expected, rel=1e-6)
    norm = trainable.clip_gradients(0.5)
    assert norm.dim() == 0
    assert norm.item() == pytest.approx(expected, rel=1e-6)
    assert trainable.clip_gradients(None).item() == pytest.approx(0.5, rel=1e-5)
    trainable.scale_gradients(3.0)
    assert trainable.clip_gradients(None).item() == pytest.approx(1.5, rel=1e-5)
    trainable.zero_grad()
    assert all(parameter.grad is None for parameter in trainable.parameters())


def built(implementation: Literal["fused", "foreach", "single"]) -> Toy:
    options = ToyOptions(dropout=0.0)  # two toys draw from one stream
    optimizer = OptimizerSettings(implementation=implementation)
    return Toy.build(Setup(model=options, data={}, batch_size=32, optimizer=optimizer))


@pytest.mark.parametrize("implementation", ["fused", "foreach", "single"])
@pytest.mark.parametrize("gradient", [1.0, math.nan, math.inf])
def test_a_masked_step_changes_no_weight_and_no_moment(
    implementation: Literal["fused", "foreach", "single"], gradient: float
) -> None:
    trainable = built(implementation)
    take_step(trainable, skip=torch.zeros(()))
    before = whole(trainable)
    for parameter in trainable.parameters():
        parameter.grad = torch.full_like(parameter, gradient)
    trainable.optimizer_step(torch.ones(()))
    assert whole(trainable) == {**before, "step": 2}


@pytest.mark.parametrize("implementation", ["fused", "foreach", "single"])
def test_a_step_that_is_not_masked_is_the_plain_step_also_after_a_masked_one(
    implementation: Literal["fused", "foreach", "single"],
) -> None:
    plain, asked = built(implementation), built(implementation)
    for skip in (None, torch.zeros(()), None):
        take_step(plain)
        take_step(asked, skip=skip)
        assert whole(asked) == whole(plain)
        asked.optimizer_step(torch.ones(()))
        asked.step -= 1


@pytest.mark.parametrize("name", ["step", "rng.python", "rng.torch", "source.position", "optimizer.groups"])
def test_a_checkpoint_without_an_entry_is_refused_and_the_entry_is_named(name: str) -> None:
    state = dict(toy().save_checkpoint())
    del state[name]
    with pytest.raises(DamagedCheckpointError, match=name.rpartition(".")[2]):
        toy().load_checkpoint(state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.layers.0.bias": None}, r"layers\.0\.bias is missing"),
        ({"model.head.weight": torch.zeros(2)}, r"head\.weight is not in this model"),
        (
            {"model.layers.0.weight": torch.zeros(16, 63)},
            r"layers\.0\.weight has shape \[16, 63\], this model's is \[16, 64\]",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_name_and_shape_and_none_is_taken(
    change: dict[str, Tensor | None], message: str
) -> None:
    trainable = toy(seed=1)
    state = {**toy(seed=2).save_checkpoint(), **change}
    before = whole(trainable)
    with pytest.raises(InputError, match=message) as caught:
        trainable.load_weights({name: value for name, value in state.items() if value is not None})
    assert "tests.toys:Toy" in str(caught.value)
    assert whole(trainable) == before


def test_weights_alone_are_taken_without_optimizer_step_or_position() -> None:
    earlier, trainable = toy(seed=1), toy(seed=2)
    take_step(earlier)
    trainable.load_weights(earlier.save_checkpoint())
    for name, weight in earlier.state_dict().items():
        assert torch.equal(weight, trainable.state_dict()[name])
    assert trainable.step == 0
    assert trainable.source.save() == {"epoch": 0, "position": 0}


def test_bf16_is_what_the_forward_computes_in_and_not_what_the_weights_are_kept_in() -> None:
    trainable = Toy.build(Setup(model=ToyOptions(), data={}, batch_size=8, precision="bf16"))
    assert trainable.forward(trainable.next_batch()).dtype == torch.bfloat16
    assert {parameter.dtype for parameter in trainable.parameters()} == {torch.float32}


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


def test_every_tensor_of_a_nested_batch_moves_to_the_device() -> None:
    meta, x = torch.device("meta"), torch.ones(2)
    moved = to_device({"pair": Pair(x, x), "both": (x, 3), "name": "n"}, meta)
    assert isinstance(moved["pair"], Pair)
    assert {t.device.type for t in (*moved["pair"], moved["both"][0])} == {"meta"}
    assert (moved["both"][1], moved["name"]) == (3, "n")
    assert to_device(moved, torch.device("cpu")) is moved


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20))
def test_a_validation_is_the_mean_with_its_standard_error(values: list[float]) -> None:
    validation = summarize("val_loss", [(value, 3) for value in values])
    assert validation.n == 3 * len(values)
    assert validation.value == pytest.approx(statistics.fmean(values), abs=1e-6)
    assert validation.standard_error == pytest.approx(
        statistics.stdev(values) / math.sqrt(len(values)), rel=1e-6, abs=1e-6
    )


def test_unequal_batches_count_by_their_items_and_one_alone_has_no_standard_error() -> None:
    assert summarize("m", [(1.0, 3), (5.0, 1)]).value == 2.0
    assert summarize("m", [(1.5, 3)]).standard_error is None
    with pytest.raises(InputError, match="no validation data"):
        summarize("m", [])


@pytest.mark.parametrize("values", [[math.nan, 1.0], [math.inf, -math.inf], [1e308, 1e308]])
def test_a_validation_that_is_not_finite_is_a_value_and_no_error(values: list[float]) -> None:
    assert not math.isfinite(summarize("m", [(value, 9) for value in values]).value)
