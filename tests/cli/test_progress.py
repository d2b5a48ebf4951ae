import io
from dataclasses import dataclass, field

import pytest
from rich.console import Console

from tests.rows import row, validation
from trainwright.cli.progress import PLAIN_SECONDS, Progress
from trainwright.contract.judge import Result, Verdict
from trainwright.metrics import Event


@dataclass
class Clock:
    seconds: float = 1000.0

    def __call__(self) -> float:
        return self.seconds


@dataclass
class Screen:
    """What a progress writes, and the time that it reads."""

    terminal: bool = False
    quiet: bool = False
    clock: Clock = field(default_factory=Clock)
    file: io.StringIO = field(default_factory=io.StringIO)

    def progress(self) -> Progress:
        console = Console(file=self.file, force_terminal=self.terminal, width=200, legacy_windows=False)
        return Progress(quiet=self.quiet, console=console, clock=self.clock)

    @property
    def text(self) -> str:
        return self.file.getvalue()

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()


@pytest.mark.parametrize("step_seconds", [0.001, 0.9, 9.9, 10.0, 25.0])
def test_without_a_terminal_there_is_at_most_one_line_in_an_interval_and_one_at_the_end(step_seconds: float) -> None:
    screen = Screen()
    steps = 200
    with screen.progress() as progress:
        for step in range(steps):
            screen.clock.seconds += step_seconds
            progress.on_step(row(step=step))
    elapsed = steps * step_seconds
    assert len(screen.lines) <= elapsed / PLAIN_SECONDS + 1
    assert len(screen.lines) >= min(steps, elapsed // (PLAIN_SECONDS + step_seconds))
    assert not {"\r", "\x1b"} & set(screen.text)
    assert screen.lines[-1].startswith(f"step {steps} ·")
    assert len(set(screen.lines)) == len(screen.lines), "the last step is not shown twice"


def verdict(gate: str, result: Result) -> Verdict:
    return Verdict(
        gate=gate,
        claim="",
        kind="run",
        result=result,
        reason="",
        bound="",
        on_fail="fail",
        ship_blocking=False,
        optional=False,
    )


def test_a_line_tells_loss_validation_norm_rate_speed_time_and_failing_gates() -> None:
    screen = Screen()

    with screen.progress() as progress:
        progress.on_plan(103)
        progress.on_validation(validation(value=2.25, best=2.0))
        progress.on_verdicts([verdict("GATE-A-001", "pass"), verdict("GATE-B-002", "fail")])
        progress.on_step(row(step=2, train_loss=1.5, grad_norm=0.25, lr=3e-4, tokens_per_sec=12345.6, wall_ms=600.0))
    expected = (
        "step 3/103 · loss 1.5000 · val_loss 2.2500 (best 2.0000) · norm 0.250 · lr 3.00e-04 · 12,346 tokens/s · "
        "600.0 ms · ETA 1 min 0 s · failing now: GATE-B-002"
    )
    assert screen.lines == [expected]


def test_a_long_line_is_not_broken() -> None:
    screen = Screen()
    with screen.progress() as progress:
        progress.on_verdicts([])
        progress.on_event(Event(time="", kind="guard", step=7, attempt=1, detail={"reason": "x" * 300}))
    assert screen.lines == [f"guard at step 7: reason {'x' * 300}"]


def test_events_that_a_person_must_know_of_are_shown_and_others_are_not() -> None:
    screen = Screen()
    with screen.progress() as progress:
        for kind in ("started", "checkpoint_saved", "wrapped_data", "early_stopped", "finished"):
            progress.on_event(Event(time="", kind=kind, step=1, attempt=1, detail={"epoch": 1}))
    assert screen.lines == ["wrapped_data at step 1: epoch 1", "early_stopped at step 1: epoch 1"]


@pytest.mark.parametrize("terminal", [False, True])
def test_quiet_is_without_progress_and_tells_what_a_person_must_know(terminal: bool) -> None:
    screen = Screen(terminal=terminal, quiet=True)
    with screen.progress() as progress:
        screen.clock.seconds += 60
        progress.on_step(row())
        for kind in ("started", "not_exact", "guard"):
            progress.on_event(Event(time="", kind=kind, step=1, attempt=1, detail={"reason": "this"}))
    assert screen.lines == ["not_exact at step 1: reason this", "guard at step 1: reason this"]


def test_on_a_terminal_the_line_is_live_and_the_last_one_stays() -> None:
    screen = Screen(terminal=True)
    with screen.progress() as progress:
        for step in range(3):
            screen.clock.seconds += 1.0
            progress.on_step(row(step=step))
    assert "\x1b" in screen.text
    assert screen.lines[-1].endswith("2.0 ms")
    assert "step 1 ·" in screen.text


def test_a_run_without_a_step_ends_without_a_line() -> None:
    screen = Screen()
    with screen.progress():
        pass
    assert screen.text == ""
