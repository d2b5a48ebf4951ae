import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.loops import Finished, run_loop, settings
from tests.toys import Samples, Toy, ToyOptions, toy
from trainwright.audits import Auditor, due, global_norm, telling_tensor
from trainwright.clocks import HostClock
from trainwright.config import ExplosionSection
from trainwright.loop import Loop
from trainwright.loopstate import LoopState
from trainwright.metrics import Audit
from trainwright.schedules import Schedule
from trainwright.state import State
from trainwright.steps import DeviceStepper, HostStepper, Stepper
from trainwright.trainable import Setup

STEPPERS = pytest.mark.parametrize("stepper", [HostStepper, DeviceStepper], ids=["on the host", "ahead of the host"])
SETUP = Setup(model=ToyOptions(), data={}, batch_size=32)


def audits_of(done: Finished) -> dict[int, Audit]:
    rows = done.run.read_audits()
    assert len({row.step for row in rows}) == len(rows)
    return {row.step: row for row in rows}


def steps_due(steps: int, **changes: Any) -> list[int]:
    return [step for step in range(steps) if due(settings(**changes), step)]


@STEPPERS
def test_steps_before_a_validation_a_periodic_checkpoint_and_the_end_and_powers_of_two_are_audited(
    stepper: Any, tmp_path: Path
) -> None:
    done = run_loop(toy(), settings(total_steps=25, checkpoint_every=7), tmp_path, stepper=stepper)
    assert list(audits_of(done)) == [0, 1, 3, 6, 7, 9, 13, 15, 19, 20, 24]


def test_first_steps_are_audited_so_that_a_run_which_ends_early_has_an_audit() -> None:
    assert steps_due(50, total_steps=None, validate_every=20) == [0, 1, 3, 7, 15, 19, 31, 39]
    assert steps_due(50, total_steps=50, max_seconds=1.0, validate_every=20) == [0, 1, 3, 7, 15, 19, 31, 39, 49]


@STEPPERS
def test_an_audit_of_an_honest_step_agrees_with_its_row(stepper: Any, tmp_path: Path) -> None:
    schedule = Schedule(1e-2, "cosine", total_steps=30, warmup_steps=5)
    done = run_loop(toy(loss_scale=100.0), settings(schedule=schedule), tmp_path, stepper=stepper)
    rows = done.run.read_steps()
    for step, audit in audits_of(done).items():
        assert audit.lr_scheduled == rows[step].lr == schedule.at(step)
        assert audit.lr_groups == [audit.lr_scheduled] * 2
        assert audit.lr_applied == pytest.approx(audit.lr_groups, rel=1e-3)
        assert audit.grad_norm == pytest.approx(rows[step].grad_norm, rel=1e-5)
        assert (audit.tensors, audit.tensors_changed, audit.unchanged) == (4, 4, [])
        assert (audit.batch_repeated, audit.batch_rows) == (False if step else None, 32)
        assert (audit.held_out_rows, audit.held_out_repeats) == (0, 0.0)


def test_a_device_that_runs_ahead_gives_the_audits_of_the_host(tmp_path: Path) -> None:
    host, device = (
        run_loop(toy(), settings(validate_every=3), tmp_path / kind.__name__, stepper=kind)
        for kind in (HostStepper, DeviceStepper)
    )
    assert host.run.read_audits() == device.run.read_audits()


def unwatched(trainable: Any, told: Any, explosion: Any, _auditor: Any) -> Stepper:
    return HostStepper(trainable, told, explosion)


def test_audits_change_nothing_of_the_training(tmp_path: Path) -> None:
    watched, alone = toy(dropout=0.3), toy(dropout=0.3)
    torch.manual_seed(3)
    rows = run_loop(watched, settings(checkpoint_every=2), tmp_path / "watched").run.read_steps()
    torch.manual_seed(3)
    others = run_loop(alone, settings(), tmp_path / "alone", stepper=unwatched)
    assert [row.train_loss for row in rows] == [row.train_loss for row in others.run.read_steps()]
    assert others.run.read_audits() == []
    for name, tensor in watched.state_dict().items():
        assert torch.equal(alone.state_dict()[name], tensor)


BEFORE_19 = [0, 1, 3, 7, 9, 15]


class Spike(Toy):
    """Its loss is 1000 times as steep at step 19."""

    def compute_loss(self, predictions: Tensor, batch: Samples) -> tuple[Tensor, int]:
        loss, items = super().compute_loss(predictions, batch)
        return loss * (1000.0 if self.training and self.step == 19 else 1.0), items


@STEPPERS
@pytest.mark.parametrize(("policy", "audited"), [("skip", [29]), ("warn", [19, 29]), ("abort", [])])
def test_a_step_that_was_not_taken_has_no_audit(stepper: Any, policy: Any, audited: list[int], tmp_path: Path) -> None:
    section = ExplosionSection(policy=policy, ratio=10.0, window=10)
    done = run_loop(Spike.build(SETUP), settings(explosion=section), tmp_path, stepper=stepper)
    assert list(audits_of(done)) == [*BEFORE_19, *audited]


@STEPPERS
def test_a_step_that_is_not_finite_has_no_audit(stepper: Any, tmp_path: Path) -> None:
    done = run_loop(toy(nan_at_step=19, nan_in="gradients"), settings(), tmp_path, stepper=stepper)
    assert list(audits_of(done)) == BEFORE_19


class StillBias(Toy):
    """Never moves its last bias, though it takes gradients; its first weight is frozen at first."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.get_parameter("layers.0.weight").requires_grad = False

    def optimizer_step(self, skip: Tensor | None = None) -> None:
        bias = self.get_parameter("layers.3.bias")
        kept = bias.detach().clone()
        super().optimizer_step(skip)
        with torch.no_grad():
            bias.copy_(kept)


def test_a_tensor_that_does_not_move_is_named_and_a_frozen_one_is_not_counted(tmp_path: Path) -> None:
    audit = audits_of(run_loop(StillBias.build(SETUP), settings(), tmp_path))[29]
    assert (audit.tensors, audit.tensors_changed, audit.unchanged) == (3, 2, ["layers.3.bias"])


def test_a_tensor_that_is_thawed_on_the_way_is_held_against_its_beginning(tmp_path: Path) -> None:
    class Thawing(StillBias):
        def zero_grad(self, set_to_none: bool = True) -> None:
            super().zero_grad(set_to_none)
            self.get_parameter("layers.0.weight").requires_grad = self.step >= 10

    audits = audits_of(run_loop(Thawing.build(SETUP), settings(), tmp_path))
    assert {step: audit.tensors for step, audit in audits.items()} == {
        0: 3,
        1: 3,
        3: 3,
        7: 3,
        9: 4,
        15: 4,
        19: 4,
        29: 4,
    }
    assert "layers.0.weight" in audits[29].unchanged, "it takes gradients, and no group of the optimizer holds it"


class Repeating(Toy):
    """Gives its first batch at every step from `since` on."""

    since = 0
    kept: Samples | None = None

    def next_batch(self) -> Samples:
        drawn: Samples = super().next_batch()
        if self.step < self.since:
            return drawn
        self.kept = self.kept or drawn
        return self.kept


@STEPPERS
def test_a_batch_that_comes_again_is_seen(stepper: Any, tmp_path: Path) -> None:
    trainable = Repeating.build(SETUP)
    trainable.since = 9
    done = run_loop(trainable, settings(total_steps=12, checkpoint_every=1), tmp_path, stepper=stepper)
    repeated = [audit.batch_repeated for audit in done.run.read_audits()]
    assert repeated == [None, *[False] * 9, True, True]


def test_all_micro_batches_of_a_step_are_its_batch(tmp_path: Path) -> None:
    class HalfNew(Toy):
        """Gives one batch again and again, and each time a new one after it."""

        calls = 0
        kept: Samples | None = None

        def next_batch(self) -> Samples:
            drawn: Samples = super().next_batch()
            self.kept, self.calls = self.kept or drawn, self.calls + 1
            return self.kept if self.calls % 2 else drawn

    done = run_loop(HalfNew.build(SETUP), settings(accumulate=2), tmp_path)
    assert {(audit.batch_repeated, audit.batch_rows) for audit in done.run.read_audits()[1:]} == {(False, 64)}


def test_a_batch_is_seen_as_it_was_drawn_whatever_the_model_does_to_it(tmp_path: Path) -> None:
    class Erasing(Toy):
        def forward(self, batch: Samples) -> Tensor:
            predictions = super().forward(Samples(batch.x_bf.clone(), batch.y_b1))
            if self.training:
                batch.x_bf.zero_()
                batch.y_b1.zero_()
            return predictions

        def compute_loss(self, predictions: Tensor, batch: Samples) -> tuple[Tensor, int]:
            return predictions.square().mean(), len(predictions)

    audits = run_loop(Erasing.build(SETUP), settings(), tmp_path).run.read_audits()
    assert {audit.step: audit.batch_repeated for audit in audits if audit.step} == dict.fromkeys(
        (*BEFORE_19[1:], 19, 29), False
    )


@STEPPERS
def test_rows_that_validation_reads_as_well_are_counted(stepper: Any, tmp_path: Path) -> None:
    class Leaking(Toy):
        def next_batch(self) -> Samples:
            drawn: Samples = super().next_batch()
            held_out = next(iter(self.source.validation_batches()))
            return Samples(*(torch.cat((mine, theirs[:5])) for mine, theirs in zip(drawn, held_out, strict=True)))

    done = run_loop(Leaking.build(SETUP), settings(), tmp_path, stepper=stepper)
    assert {(audit.batch_rows, audit.held_out_rows) for audit in done.run.read_audits()} == {(37, 5)}


def test_what_cannot_be_measured_is_none_and_never_made_up(tmp_path: Path) -> None:
    class NoTensors(Toy):
        def next_batch(self) -> Any:
            return "a word"

        def forward(self, batch: Any) -> Tensor:
            predictions: Tensor = self.layers(torch.ones(4, 64))
            return predictions

        def compute_loss(self, predictions: Tensor, batch: Any) -> tuple[Tensor, int]:
            return predictions.square().mean(), 4

        def save_checkpoint(self) -> State:
            return {name: value for name, value in super().save_checkpoint().items() if name != "optimizer.groups"}

    audit = run_loop(NoTensors.build(SETUP), settings(total_steps=10), tmp_path).run.read_audits()[-1]
    assert (audit.batch_repeated, audit.batch_rows, audit.held_out_rows) == (None, None, None)
    assert (audit.lr_groups, audit.lr_applied) == ([], [])
    assert audit.grad_norm is not None


def test_without_a_source_that_holds_out_rows_their_number_is_not_measured() -> None:
    class Sourceless:
        device, source = torch.device("cpu"), object()

    assert Auditor(Sourceless(), settings()).held_out() is None  # type: ignore[arg-type]  # no more of it is asked


def test_the_share_of_held_out_rows_that_repeat_is_told() -> None:
    trainable, row = toy(), torch.rand(1, 64)
    batch = Samples(torch.cat((row, row, torch.rand(2, 64))), torch.ones(4, 1))
    trainable.source.validation_batches = lambda: iter([batch])  # type: ignore[method-assign]  # the instance's stands before the class's
    held_out = Auditor(trainable, settings()).held_out()
    assert held_out is not None
    assert (len(held_out.rows), held_out.repeats) == (3, 0.25)


def test_of_many_held_out_rows_the_first_4096_are_taken_and_no_stream_is_drawn_from() -> None:
    trainable, given = toy(), []

    def batches() -> Iterator[Samples]:
        for number in range(100):
            given.append(number)
            yield Samples(torch.rand(100, 64), torch.rand(100, 1))

    trainable.source.validation_batches = batches  # type: ignore[method-assign]  # the instance's stands before the class's
    before = torch.get_rng_state()
    held_out = Auditor(trainable, settings()).held_out()
    assert held_out is not None
    assert (len(held_out.rows), held_out.repeats, len(given)) == (4_096, 0.0, 41)
    assert torch.equal(torch.get_rng_state(), before)


EACH_STEP = settings(total_steps=8, validate_every=8, checkpoint_every=1, keep_last=99)


@pytest.fixture(scope="module")
def uncut(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return run_loop(toy(), EACH_STEP, tmp_path_factory.mktemp("uncut"))


def resumed(uncut: Finished, step: int, folder: Path, *, of_parent: bool = False) -> list[Audit]:
    """Go on from the checkpoint of `step`; give the audits from there on."""
    checkpoint = next(found for found in uncut.checkpoints.candidates() if found.step == step)
    _, state = uncut.checkpoints.load(checkpoint)
    trainable = toy()
    trainable.load_checkpoint(state)

    def prepare(loop: Loop) -> None:
        loop.restore(state, of_parent=of_parent)

    return run_loop(trainable, EACH_STEP, folder, prepare=prepare).run.read_audits()


def test_a_resumed_run_has_the_audits_of_the_uncut_one(uncut: Finished, tmp_path: Path) -> None:
    assert resumed(uncut, 5, tmp_path) == uncut.run.read_audits()[5:]


def test_a_child_run_holds_its_weights_against_its_own_first_step(uncut: Finished, tmp_path: Path) -> None:
    state = LoopState(step=5, fingerprints={"a": "b"}, batches="c").for_a_child()
    assert (state.fingerprints, state.batches) == ({}, None)
    first = resumed(uncut, 5, tmp_path, of_parent=True)[0]
    assert (first.step, first.tensors_changed, first.batch_repeated) == (5, 4, None)


def test_a_checkpoint_without_fingerprints_leaves_the_change_unmeasured(tmp_path: Path) -> None:
    def prepare(loop: Loop) -> None:
        loop.state = LoopState(step=5)

    done = run_loop(toy(), settings(), tmp_path, prepare=prepare)
    assert {audit.tensors_changed for audit in done.run.read_audits()} == {None}


class Costly(Toy):
    """Its checkpoints and batches take 100 seconds of a clock that moves for nothing else."""

    now = 0.0

    def save_checkpoint(self) -> State:
        self.now += 100.0
        return super().save_checkpoint()


@STEPPERS
def test_the_time_of_an_audit_is_not_the_steps(stepper: Any, tmp_path: Path) -> None:
    trainable = Costly.build(SETUP)

    def timed(*arguments: Any) -> Any:
        made = stepper(*arguments)
        made._clock = HostClock(lambda: trainable.now)
        return made

    rows = run_loop(trainable, settings(total_steps=3, checkpoint_every=1), tmp_path, stepper=timed).run.read_steps()
    assert {row.wall_ms for row in rows} == {0.0}


def test_the_tensor_that_tells_a_groups_rate_is_the_largest_of_at_most_a_million_elements() -> None:
    def tensors(**sizes: int) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {name: nn.Parameter(torch.zeros(size)) for name, size in sizes.items()}
        for tensor in found.values():
            tensor.grad = torch.zeros_like(tensor)
        return found

    some = tensors(small=3, middle=1 << 20, large=(1 << 20) + 1)
    assert telling_tensor({"parameters": list(some)}, some) == "middle"
    assert telling_tensor({"parameters": ["small", "large"]}, some) == "small"
    large = tensors(larger=(1 << 20) + 2, large=(1 << 20) + 1)
    assert telling_tensor({"parameters": list(large)}, large) == "large"
    some["small"].grad = None
    assert telling_tensor({"parameters": ["small"]}, some) is None
    assert telling_tensor({}, some) is None


def test_the_norm_is_over_the_gradients_of_all_tensors_in_double_precision() -> None:
    parameters = [nn.Parameter(torch.zeros(size)) for size in (3, 4, 5)]
    assert global_norm(parameters) is None
    parameters[0].grad, parameters[1].grad = torch.full((3,), 1e30), torch.full((4,), 1e-3)
    norm = global_norm(parameters)
    assert norm is not None
    assert norm.item() == pytest.approx(math.sqrt(3) * 1e30, rel=1e-6)
