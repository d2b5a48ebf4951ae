"""Writes the rows of one attempt and tells whoever watches."""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from trainwright.files import sync_directory, write_atomically
from trainwright.illustrations import Illustration
from trainwright.metrics import Audit, Event, StepMetrics, ValidationRow
from trainwright.newruns import storing
from trainwright.redaction import redacted_within
from trainwright.rowfiles import RowWriter
from trainwright.rundir import Attempt
from trainwright.timestamps import now


class Watcher(Protocol):
    """Sees each row after it was written. It must be quick: it runs between steps."""

    def on_step(self, row: StepMetrics) -> None: ...
    def on_validation(self, row: ValidationRow) -> None: ...
    def on_event(self, event: Event) -> None: ...
    def on_plan(self, total_steps: int | None) -> None:
        """Hear, before the first step, how many there will be; None where that is not known."""

    def on_verdicts(self, verdicts: Sequence[Any]) -> None:
        """Hear what the gates that are due at a validation say of the files so far."""


class Silent:
    """Watches and says nothing."""

    def on_step(self, row: StepMetrics) -> None: ...
    def on_validation(self, row: ValidationRow) -> None: ...
    def on_event(self, event: Event) -> None: ...
    def on_plan(self, total_steps: int | None) -> None: ...
    def on_verdicts(self, verdicts: Sequence[Any]) -> None: ...


class Recorder:
    """The row files of one attempt, open for appending."""

    def __init__(self, attempt: Attempt, watcher: Watcher) -> None:
        self.attempt = attempt.number
        self._illustration = attempt.illustration
        self._steps = RowWriter(attempt.steps)
        self._validations = RowWriter(attempt.validations)
        self._events = RowWriter(attempt.events)
        self._audits = RowWriter(attempt.audits)
        self._writers = (self._steps, self._validations, self._events, self._audits)
        sync_directory(attempt.directory)
        self._watcher = watcher
        self.first_row_at: str | None = None

    def step(self, row: StepMetrics) -> None:
        self._steps.write(row.encode())
        if self.first_row_at is None:
            self.first_row_at = self.event("first_step", row.step)
        self._watcher.on_step(row)

    def validation(self, row: ValidationRow) -> None:
        self._validations.write(row.encode())
        self._watcher.on_validation(row)

    def audit(self, row: Audit) -> None:
        self._audits.write(row.encode())

    def illustration(self, illustration: Illustration) -> None:
        """Write illustration.json whole, in the place of an earlier one. Errors: StoreError."""
        with storing(self._illustration):
            write_atomically(self._illustration, msgspec.json.encode(illustration) + b"\n")

    def event(self, kind: str, step: int | None = None, **detail: Any) -> str:
        """Put something that happened on record; give the time that it was given."""
        event = Event(time=now(), kind=kind, step=step, attempt=self.attempt, detail=redacted_within(detail))
        self._events.write(event.encode())
        self._watcher.on_event(event)
        return event.time

    def sync(self) -> None:
        """Make every row so far durable: done before a checkpoint's manifest names their step."""
        for writer in self._writers:
            writer.sync()

    def close(self) -> None:
        for writer in self._writers:
            writer.close()
