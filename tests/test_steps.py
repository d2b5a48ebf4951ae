import math
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from tests.loops import Finished, run_loop, settings
from tests.toys import Samples, Toy, ToySource, toy
from trainwright.config import ExplosionSection
from trainwright.outcome import Outcome
from trainwright.steps import DeviceStepper, HostStepper, Stepper, gradients, micro_batches

STEPPERS = pytest.mark.parametrize("stepper", [HostStepper, DeviceStepper], ids=["on the host", "ahead of the host"])


def weights(trainable: Toy) -> dict[str, Any]:
    return {name: tensor.clone() for name, tensor in trainable.state_dict().items()}


def test_a_device_that_runs_ahead_gives_the_rows_and_weights_of_the_host(tmp_path: Path) -> None:
    sides: list[tuple[Toy, Finished]] = []
    for stepper in (HostStepper, DeviceStepper):
        trainable = toy()
        sides.append((trainable, run_loop(trainable, settings(), tmp_path / stepper.__name__, stepper=stepper)))
    (host, host_done), (device, device_done) = sides
    assert [(r.step, r.train_loss, r.grad_norm, r.lr) for r in host_done.run.read_steps()] == [
        (r.step, r.train_loss, r.grad_norm, r.lr) for r in device_done.run.read_steps()
    ]
    assert [r.value for r in host_done.run.read_validations()] == [r.value for r in device_done.run.read_validations()]
    for name, tensor in host.state_dict().items():
        assert torch.equal(tensor, device.state_dict()[name])


class Slow:
    """A host's clock on which nothing is past until it is waited for, as a device that is far behind."""

    def __init__(self) -> None:
        self._marks = 0

    def mark(self) -> int:
        self._marks += 1
        return self._marks

    def is_past(self, mark: int) -> bool:
        return mark < 0

    def milliseconds(self, began: int, ended: int) -> float:
        return float(ended - began)

    def fetch(self, numbers: torch.Tensor) -> torch.Tensor:
        return numbers


def far_ahead(*arguments: Any) -> Stepper:
    stepper = DeviceStepper(*arguments)
    stepper._clock = Slow()
    return stepper


@pytest.mark.parametrize("stepper", [HostStepper, DeviceStepper, far_ahead])
@pytest.mark.parametrize("place", ["loss", "gradients"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("step", [0, 4])
def test_a_step_that_is_not_finite_is_on_record_and_not_in_the_weights(
    stepper: Any, place: str, value: float, step: int, tmp_path: Path
) -> None:
    clean = toy()
    if step:
        run_loop(clean, settings(total_steps=step), tmp_path / "clean")
    trainable = toy(nan_at_step=step, nan_in=place, nan_value=value)
    done = run_loop(trainable, settings(), tmp_path, stepper=stepper)
    assert done.ended.outcome is Outcome.ABORTED
    assert f"step {step}" in done.ended.why
    rows = done.run.read_steps()
    assert [row.step for row in rows] == list(range(step + 1))
    assert not (math.isfinite(rows[-1].train_loss) and math.isfinite(rows[-1].grad_norm))
    assert trainable.step == step == done.ended.step
    for name, tensor in clean.state_dict().items():
        assert torch.equal(trainable.state_dict()[name], tensor), name
    assert done.checkpoints.candidates()[0].step == 0
    assert done.checkpoints.load(done.checkpoints.candidates()[0])


@STEPPERS
@pytest.mark.parametrize(
    ("drawn", "accumulate", "samples"),
    [
        (0, 4, [4, 4, 2, 4, 4]),
        (0, 5, [5, 5, 5, 5, 5]),
        (0, 11, [10, 10, 10, 10, 10]),
        (4, 4, [4, 2, 4, 4, 2]),
        (4, 5, [5, 1, 5, 5, 5]),
        (0, 1, [1, 1, 1, 1, 1]),
    ],
)
def test_no_window_of_accumulation_spans_the_end_of_a_pass_wherever_a_run_began(
    stepper: Any, drawn: int, accumulate: int, samples: list[int], tmp_path: Path
) -> None:
    trainable = toy(n=10, batch_size=1)
    for _ in range(drawn):  # as a parent run with another accumulation did
        trainable.next_batch()
    done = run_loop(trainable, settings(accumulate=accumulate, total_steps=5), tmp_path, stepper=stepper)
    assert [row.extra["samples"] for row in done.run.read_steps()] == samples


def test_data_without_an_end_fill_every_window() -> None:
    class Endless(Toy):
        @property
        def micro_batches_left(self) -> int | None:
            return None

    assert micro_batches(Endless.build(toy().setup), 7) == 7


def test_unequal_micro_batches_give_the_gradient_of_the_one_big_batch() -> None:
    def grown(sizes: list[int]) -> dict[str, torch.Tensor]:
        trainable = toy(dropout=0.0)
        whole = Samples(*(part[:60] for part in cast("ToySource", trainable.source)._train))
        parts = iter(zip(torch.split(whole.x_bf, sizes), torch.split(whole.y_b1, sizes), strict=True))
        trainable.next_batch = lambda: Samples(*next(parts))  # type: ignore[method-assign]  # the instance's stands before the class's
        loss, items = gradients(trainable, len(sizes))
        assert items == sum(sizes)
        return {"loss": loss, **{n: p.grad for n, p in trainable.named_parameters() if p.grad is not None}}

    big, small = grown([60]), grown([7, 32, 1, 20])
    for name, tensor in big.items():
        torch.testing.assert_close(small[name], tensor, rtol=1e-5, atol=1e-7)


@STEPPERS
def test_the_logged_norm_is_the_one_before_clipping_and_after_it_the_norm_is_bounded(
    stepper: Any, tmp_path: Path
) -> None:
    class Watched(Toy):
        after: list[float]

        def optimizer_step(self, skip: torch.Tensor | None = None) -> None:
            self.after.append(float(super().clip_gradients(None)))
            super().optimizer_step(skip)

    trainable = Watched.build(toy(loss_scale=100.0).setup)
    trainable.after = []
    done = run_loop(trainable, settings(clip_norm=0.5), tmp_path, stepper=stepper)
    assert max(row.grad_norm for row in done.run.read_steps()) > 1.0
    assert max(trainable.after) <= 0.5 * (1 + 1e-5)


class Spiking(Toy):
    """Its gradients are a thousand times too large at the steps of `spikes`."""

    spikes: tuple[int, ...] = ()

    def backward(self, loss: torch.Tensor) -> None:
        super().backward(loss * 1000 if self.step in self.spikes else loss)


@STEPPERS
@pytest.mark.parametrize(
    ("policy", "outcome", "kind"),
    [
        ("off", Outcome.DONE, None),
        ("warn", Outcome.DONE, "guard"),
        ("skip", Outcome.DONE, "skipped_step"),
        ("abort", Outcome.ABORTED, "guard"),
    ],
)
def test_an_exploding_gradient_is_warned_of_skipped_or_ends_the_run_as_asked(
    stepper: Any, policy: Any, outcome: Outcome, kind: str | None, tmp_path: Path
) -> None:
    trainable = Spiking.build(toy().setup)
    trainable.spikes = (20,)
    section = ExplosionSection(policy=policy, ratio=10.0, window=10)
    done = run_loop(trainable, settings(explosion=section), tmp_path, stepper=stepper)
    assert done.ended.outcome is outcome
    found = [e for e in done.run.read_events() if e.kind in {"guard", "skipped_step"}]
    assert [(e.kind, e.step) for e in found] == ([(kind, 20)] if kind else [])


@STEPPERS
def test_a_skipped_step_changes_no_weight_and_the_run_goes_on(stepper: Any, tmp_path: Path) -> None:
    section = ExplosionSection(policy="skip", ratio=10.0, window=10)
    seen: dict[int, dict[str, Any]] = {}

    class Noted(Spiking):
        def next_batch(self) -> Samples:
            seen[self.step] = weights(self)
            batch: Samples = super().next_batch()
            return batch

    trainable = Noted.build(toy().setup)
    trainable.spikes = (20,)
    done = run_loop(trainable, settings(explosion=section), tmp_path, stepper=stepper)
    assert all(torch.equal(seen[20][name], seen[21][name]) for name in seen[20])
    assert any(not torch.equal(seen[21][name], seen[22][name]) for name in seen[20])
    assert len(done.run.read_steps()) == 30


@STEPPERS
def test_more_skips_than_the_cap_end_the_run(stepper: Any, tmp_path: Path) -> None:
    trainable = Spiking.build(toy().setup)
    trainable.spikes = (15, 17, 19)
    section = ExplosionSection(policy="skip", ratio=10.0, window=10, max_skips=2)
    done = run_loop(trainable, settings(explosion=section), tmp_path, stepper=stepper)
    assert done.ended.outcome is Outcome.ABORTED
    assert done.ended.step == 19
    assert done.kinds().count("skipped_step") == 2
