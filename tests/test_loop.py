from pathlib import Path

import pytest
import torch

from tests.loops import Scripted, run_loop, settings
from tests.toys import Toy, ToyOptions, toy
from trainwright.config import EarlyStoppingSection
from trainwright.outcome import Outcome
from trainwright.schedules import Schedule
from trainwright.signals import StopRequest
from trainwright.trainable import Setup

UNIFORM_ENTROPY_OF_GPT2 = 10.824893


def scripted(*values: float) -> Scripted:
    trainable = Scripted.build(Setup(model=ToyOptions(), data={}, batch_size=32))
    trainable.script = values
    return trainable


@pytest.mark.parametrize("steps", [1, 3, 17])
def test_a_budget_of_n_steps_runs_n_steps_and_not_a_rounded_up_epoch(steps: int, tmp_path: Path) -> None:
    done = run_loop(toy(n=64), settings(total_steps=steps), tmp_path)
    assert [row.step for row in done.run.read_steps()] == list(range(steps))
    assert done.ended.outcome is Outcome.DONE


def test_a_budget_of_samples_ends_with_the_step_that_reaches_it(tmp_path: Path) -> None:
    done = run_loop(toy(n=70), settings(total_steps=None, total_items=100), tmp_path)
    assert [row.extra["samples"] for row in done.run.read_steps()] == [32, 32, 6, 32]


def test_a_budget_of_seconds_ends_the_run(tmp_path: Path) -> None:
    done = run_loop(toy(), settings(total_steps=None, max_seconds=0.05), tmp_path)
    assert done.ended.outcome is Outcome.DONE
    assert "seconds" in done.ended.why


def test_a_validation_stands_at_the_start_at_each_interval_and_at_the_end(tmp_path: Path) -> None:
    done = run_loop(toy(), settings(total_steps=25), tmp_path)
    assert [row.step for row in done.run.read_validations()] == [0, 10, 20, 25]


def test_validations_change_nothing_of_the_training(tmp_path: Path) -> None:
    often = run_loop(toy(dropout=0.3), settings(validate_every=1), tmp_path / "often")
    never = run_loop(toy(dropout=0.3), settings(validate_every=10**6, validate_at_start=False), tmp_path / "never")
    assert [r.train_loss for r in often.run.read_steps()] == [r.train_loss for r in never.run.read_steps()]


def test_each_validation_has_a_checkpoint_whose_manifest_outlives_retention(tmp_path: Path) -> None:
    done = run_loop(toy(), settings(total_steps=50, keep_last=1), tmp_path)
    names = {checkpoint.name for checkpoint in done.checkpoints.committed()}
    assert {row.checkpoint for row in done.run.read_validations()} == names
    assert len(done.checkpoints.candidates()) <= 2


@pytest.mark.parametrize(
    ("values", "aborts"), [((3.5, 7.1), True), ((3.5, 7.0), False), ((3.0, 2.0, 4.1), True), ((3.0, 2.0, 4.0), False)]
)
def test_a_validation_above_twice_the_previous_or_best_aborts_and_exactly_twice_goes_on(
    values: tuple[float, ...], aborts: bool, tmp_path: Path
) -> None:
    done = run_loop(scripted(*values), settings(total_steps=10 * (len(values) - 1)), tmp_path)
    assert done.ended.outcome is (Outcome.ABORTED if aborts else Outcome.DONE)
    assert ("guard" in done.kinds()) is aborts


@pytest.mark.parametrize(
    ("value", "cap", "aborts"),
    [
        (10.31, 10.0, True),
        (10.31, 2 * UNIFORM_ENTROPY_OF_GPT2, False),
        (25.0, 2 * UNIFORM_ENTROPY_OF_GPT2, True),
        (25.0, None, False),
    ],
    ids=["finetune", "from scratch at V = 50,257", "from scratch, far off", "no cap"],
)
def test_a_first_validation_above_its_cap_aborts(value: float, cap: float | None, aborts: bool, tmp_path: Path) -> None:
    done = run_loop(scripted(value, value), settings(total_steps=10, first_validation_cap=cap), tmp_path)
    assert done.ended.outcome is (Outcome.ABORTED if aborts else Outcome.DONE)
    assert done.ended.outcome.exit_code == (4 if aborts else 0)


def test_early_stopping_with_patience_3_stops_at_the_fourth_of_rising_validations(tmp_path: Path) -> None:
    done = run_loop(scripted(1.0, 1.1, 1.2, 1.3), settings(early_stopping=EarlyStoppingSection(patience=3)), tmp_path)
    assert [row.patience for row in done.run.read_validations()] == [0, 1, 2, 3]
    assert done.ended.outcome is Outcome.DONE
    assert "early_stopped" in done.kinds()


def test_the_best_of_a_series_is_kept_however_often_later_ones_are_saved(tmp_path: Path) -> None:
    done = run_loop(scripted(1.0, 0.5, 0.8, 0.9, 0.7), settings(total_steps=40, keep_last=1), tmp_path)
    kept = {checkpoint.step for checkpoint in done.checkpoints.candidates()}
    assert kept == {10, 40}
    assert done.ended.best == 0.5


def test_a_validation_that_is_not_finite_aborts_and_is_on_record(tmp_path: Path) -> None:
    done = run_loop(scripted(1.0, float("nan")), settings(), tmp_path)
    assert done.ended.outcome is Outcome.ABORTED
    assert b'"value_nonfinite":"nan"' in done.attempt.validations.read_bytes()


def test_each_pass_over_the_data_beyond_the_first_is_on_record_once(tmp_path: Path) -> None:
    done = run_loop(toy(n=96), settings(total_steps=9), tmp_path)
    wraps = [(event.step, event.detail["epoch"]) for event in done.run.read_events() if event.kind == "wrapped_data"]
    assert wraps == [(3, 1), (6, 2)]


def test_data_that_halt_end_the_run_with_a_checkpoint_and_no_made_up_loss(tmp_path: Path) -> None:
    done = run_loop(toy(n=96, exhaustion="halt"), settings(validate_every=100), tmp_path)
    assert done.ended.outcome is Outcome.DATA_EXHAUSTED
    assert done.ended.outcome.exit_code == 6
    assert len(done.run.read_steps()) == 3
    assert done.checkpoints.candidates()[0].step == 3


def test_a_stop_that_came_before_the_first_step_saves_and_ends(tmp_path: Path) -> None:
    stop = StopRequest()
    stop.received = 15
    done = run_loop(toy(), settings(), tmp_path, stop=stop)
    assert done.ended.outcome is Outcome.TERMINATED
    assert done.run.read_steps() == []
    assert done.checkpoints.candidates()[0].step == 0


def test_a_gate_that_does_not_hold_at_a_validation_ends_the_run(tmp_path: Path) -> None:
    reasons = iter([None, "GATE-X: too high"])
    done = run_loop(toy(), settings(), tmp_path, judge=lambda: next(reasons))
    assert done.ended.outcome is Outcome.ABORTED
    assert done.ended.why == "GATE-X: too high"
    assert done.ended.step == 10


def test_the_seconds_of_the_phases_are_nearly_all_of_the_elapsed_time_and_never_more(tmp_path: Path) -> None:
    done = run_loop(toy(), settings(total_steps=200), tmp_path)
    phases = {name: seconds for name, seconds in done.ended.seconds.items() if name != "elapsed"}
    assert 0.95 * done.elapsed <= sum(phases.values()) <= done.ended.seconds["elapsed"] <= done.elapsed
    assert set(phases) == {"training", "validation", "checkpoint"}
    assert min(phases.values()) > 0


def test_the_logged_rate_is_the_one_that_the_optimizer_took_and_follows_the_schedule(tmp_path: Path) -> None:
    schedule = Schedule(1e-2, "cosine", total_steps=30, warmup_steps=5)
    done = run_loop(toy(), settings(schedule=schedule), tmp_path)
    rates = [row.lr for row in done.run.read_steps()]
    assert rates == [schedule.at(step) for step in range(30)]
    assert len(set(rates)) > 25


def test_throughput_times_wall_time_gives_the_items_of_the_step(tmp_path: Path) -> None:
    done = run_loop(toy(n=70), settings(), tmp_path)
    for row in done.run.read_steps():
        items = row.extra["samples"] or 0
        assert row.throughput * row.wall_ms / 1000 == pytest.approx(items, rel=1e-6)


def test_every_parameter_changes_and_the_norm_is_over_all_of_them(tmp_path: Path) -> None:
    trainable = toy(dropout=0.0)
    before = {name: tensor.clone() for name, tensor in trainable.state_dict().items()}
    batch = Toy.build(trainable.setup).next_batch()
    loss, _ = trainable.compute_loss(trainable.forward(batch), batch)
    gradients = torch.autograd.grad(loss, list(trainable.parameters()))
    norm = torch.sqrt(sum((g.square().sum() for g in gradients), torch.zeros(())))
    done = run_loop(trainable, settings(total_steps=1), tmp_path)
    assert done.run.read_steps()[0].grad_norm == pytest.approx(norm.item(), rel=1e-5)
    assert all(not torch.equal(before[name], tensor) for name, tensor in trainable.state_dict().items())
