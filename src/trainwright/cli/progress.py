"""What a person sees while a run trains: one live line on a terminal, else a plain line at intervals."""

import sys
from collections.abc import Callable, Sequence
from time import monotonic
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from trainwright.contract.judge import Verdict
from trainwright.durations import duration
from trainwright.metrics import Event, StepMetrics, ValidationRow

LIVE_SECONDS = 0.25
PLAIN_SECONDS = 10.0
SMOOTHING = 0.05
SHOWN_EVENTS = frozenset(  # what a person must know of, however quiet the command is
    {"resumed", "not_exact", "checkpoint_rejected", "torn_row", "sensor_lost", "wrapped_data", "skipped_step"}
    | {"early_stopped", "guard", "signal", "store_unavailable"}
)


class Progress:
    """A watcher that writes to stderr. `total_steps` makes an ETA; without it none is told.

    `quiet` leaves out the lines of progress; events that a person must know of are told all the same.
    """

    def __init__(
        self, *, quiet: bool = False, console: Console | None = None, clock: Callable[[], float] = monotonic
    ) -> None:
        self._clock = clock
        self._quiet = quiet
        self._console = console or Console(file=sys.stderr)
        self._terminal = self._console.is_terminal and not quiet
        self._live = Live(console=self._console, auto_refresh=False, transient=True) if self._terminal else None
        self._interval = LIVE_SECONDS if self._terminal else PLAIN_SECONDS
        self._shown_at = clock()
        self._wall_ms: float | None = None
        self._last: StepMetrics | None = None
        self._shown: StepMetrics | None = None
        self._validation: ValidationRow | None = None
        self._failing: Sequence[str] = ()
        self.total_steps: int | None = None

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()
        if self._last is not None and self._last is not self._shown and not self._quiet:
            self._print(self._line(self._last))

    def on_step(self, row: StepMetrics) -> None:
        wall = row.wall_ms
        self._wall_ms = wall if self._wall_ms is None else self._wall_ms + SMOOTHING * (wall - self._wall_ms)
        self._last = row
        moment = self._clock()
        if self._quiet or moment - self._shown_at < self._interval:
            return
        self._shown_at = moment
        if self._live:
            self._live.update(Text(self._line(row), overflow="ellipsis", no_wrap=True), refresh=True)
        else:
            self._shown = row
            self._print(self._line(row))

    def on_validation(self, row: ValidationRow) -> None:
        self._validation = row

    def on_verdicts(self, verdicts: Sequence[Verdict]) -> None:
        self._failing = [verdict.gate for verdict in verdicts if verdict.result == "fail"]

    def on_plan(self, total_steps: int | None) -> None:
        self.total_steps = total_steps

    def on_event(self, event: Event) -> None:
        if event.kind in SHOWN_EVENTS:
            detail = ", ".join(f"{key} {value}" for key, value in event.detail.items())
            self._print(
                f"{event.kind} at step {event.step}: {detail}" if event.step is not None else f"{event.kind}: {detail}"
            )

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _line(self, row: StepMetrics) -> str:
        total = f"/{self.total_steps}" if self.total_steps else ""
        parts = [f"step {row.step + 1}{total}", f"loss {row.train_loss:.4f}"]
        if self._validation is not None:
            best = f" (best {self._validation.best:.4f})" if self._validation.best is not None else ""
            parts.append(f"{self._validation.metric} {self._validation.value:.4f}{best}")
        unit = "tokens" if isinstance(row.tokens_per_sec, float) else "samples"
        parts += [
            f"norm {row.grad_norm:.3f}",
            f"lr {row.lr:.2e}",
            f"{row.throughput:,.0f} {unit}/s",
            f"{row.wall_ms:.1f} ms",
        ]
        if self.total_steps and self._wall_ms:
            parts.append(f"ETA {duration((self.total_steps - row.step - 1) * self._wall_ms / 1000)}")
        if self._failing:
            parts.append(f"failing now: {', '.join(self._failing)}")
        return " · ".join(parts)
