"""The run directory: the one place that knows every file name of a run, and the joining of its attempts."""

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import sleep
from typing import Any, Final, TypeVar

import msgspec

from trainwright.errors import DataError, InputError
from trainwright.files import make_directory, sync_directory, write_atomically
from trainwright.illustrations import Illustration
from trainwright.jsonfile import read_json
from trainwright.manifest import Checkpoint
from trainwright.metrics import (
    Audit,
    Event,
    StepMetrics,
    ValidationRow,
    lines_below,
    read_audits,
    read_events,
    read_steps,
    read_validations,
)
from trainwright.outcome import Outcome
from trainwright.redaction import redacted_within
from trainwright.rowfiles import append_row, whole_lines
from trainwright.timestamps import now

RowT = TypeVar("RowT")

LOCK_TRIES, LOCK_SECONDS = 20, 0.01
EVIDENCE: Final = "evidence.json"
EVIDENCE_SHA256: Final = "evidence.sha256"
ENVELOPE: Final = "evidence.dsse.json"
ATTEMPT_EVENTS = frozenset(
    {"started", "resumed", "not_exact", "checkpoint_rejected", "signal", "finished", "torn_row", "sensor_lost"}
    | {"first_step"}
)
SEALED: Final = (  # the closed set of records that evidence is made from, as patterns below the run's directory
    *("run.yaml", "contract.yaml", "environment.json"),
    *(
        f"attempts/*/{name}"
        for name in ("start.json", "steps.jsonl", "validations.jsonl", "events.jsonl", "audits.jsonl")
    ),
    *("attempts/*/devices.csv", "attempts/*/illustration.json", "checks.jsonl"),
    *("checkpoints/*/manifest.json", "checkpoints/*/retired.json"),
    *("steps.jsonl", "validations.jsonl", "events.jsonl", "result.json"),
)
ROW_EVENTS = frozenset(  # their step is that of a row, not a count of updates
    {"skipped_step", "wrapped_data", "epoch_began", "guard"}
)


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """start.json of an attempt: what it began from, and what its rows declare."""

    attempt: int
    time: str
    step: int
    checkpoint: str | None
    parent: str | None = None
    parent_directory: str | None = None
    init: dict[str, str] | None = None
    absent: dict[str, str | None] = {}
    unit: str = "tokens"
    metrics: dict[str, str] = {}
    measures: dict[str, str] = {}
    device: str = "cpu"
    pid: int = 0
    command: list[str] = []


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """result.json. `attempts` is the number of the attempt that ended so; `verdicts` are the judge's, as JSON."""

    run: str = ""
    outcome: str
    exit_code: int
    why: str
    step: int
    best_validation: float | None
    best_checkpoint: str | None = None
    seconds: dict[str, float] = {}
    attempts: int
    parent: str | None = None
    verdicts: list[dict[str, Any]] = []


class After(msgspec.Struct, frozen=True, kw_only=True):
    """One row of after.jsonl: what was done with a run beside its training or after its end. It is not sealed."""

    time: str
    kind: str
    detail: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Attempt:
    """The files of one attempt."""

    directory: Path
    number: int

    @property
    def start_file(self) -> Path:
        return self.directory / "start.json"

    @property
    def steps(self) -> Path:
        return self.directory / "steps.jsonl"

    @property
    def validations(self) -> Path:
        return self.directory / "validations.jsonl"

    @property
    def events(self) -> Path:
        return self.directory / "events.jsonl"

    @property
    def audits(self) -> Path:
        return self.directory / "audits.jsonl"

    @property
    def devices(self) -> Path:
        return self.directory / "devices.csv"

    @property
    def illustration(self) -> Path:
        """What the trainable shows of itself, beside its numbers, at the attempt's best validation, if anything."""
        return self.directory / "illustration.json"

    @property
    def row_files(self) -> tuple[Path, ...]:
        return self.steps, self.validations, self.events, self.audits, self.devices

    def start(self) -> Start:
        start: Start = read_json(self.start_file, Start)
        return start


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """A run's directory, there or to be made."""

    path: Path

    @classmethod
    def find(cls, run: str, runs_dir: Path, *, records: bool = False) -> "RunDirectory":
        """Find a run by path, by id below `runs_dir`, by its sealed evidence, or the newest as `latest`.

        With `records` any sealed folder is found as well, and `latest` may be a record of checks. Errors: InputError
        that lists ids.
        """
        if run == "latest" and (newest := all_runs(runs_dir, records=records)):
            return newest[0]
        for path in (Path(run), runs_dir / run):
            found = cls(path.parent if path.is_file() and path.name in {EVIDENCE, ENVELOPE} else path)
            if found.config.is_file() or (records and found.evidence.is_file()):
                return found
        known = [found.path.name for found in all_runs(runs_dir)][:5]
        raise InputError(
            f"{run}: is no run directory and no run id below {runs_dir}; newest runs: {', '.join(known) or 'none'}"
        )

    @property
    def id(self) -> str:
        return self.path.resolve().name

    @property
    def config(self) -> Path:
        return self.path / "run.yaml"

    @property
    def contract(self) -> Path:
        return self.path / "contract.yaml"

    @property
    def environment(self) -> Path:
        return self.path / "environment.json"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def result(self) -> Path:
        return self.path / "result.json"

    @property
    def evidence(self) -> Path:
        return self.path / EVIDENCE

    @property
    def evidence_sha256(self) -> Path:
        return self.path / EVIDENCE_SHA256

    @property
    def after(self) -> Path:
        """What was done with the run and is no record of its training: uploads, registration. It is not sealed."""
        return self.path / "after.jsonl"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def steps(self) -> Path:
        return self.path / "steps.jsonl"

    @property
    def validations(self) -> Path:
        return self.path / "validations.jsonl"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def checks(self) -> Path:
        """What a command that compares runs or probes the machine measured; a run that trained has none."""
        return self.path / "checks.jsonl"

    def attempts(self) -> list[Attempt]:
        """Give the attempts that started, in order."""
        folders = (self.path / "attempts").glob("*/start.json")
        return sorted((Attempt(f.parent, int(f.parent.name)) for f in folders), key=lambda a: a.number)

    def attempt(self, number: int) -> Attempt:
        """Give the attempt of a number, started or not."""
        return Attempt(self.path / "attempts" / str(number), number)

    def read_result(self) -> Result | None:
        """Give result.json while it stands: None before the run's end, and once a later attempt took the run up again.

        Errors: InputError when the file is not what it should be.
        """
        if not self.result.exists():
            return None
        result: Result = read_json(self.result, Result)
        if result.outcome not in {outcome.label for outcome in Outcome}:
            raise InputError(f"{self.result}: {result.outcome!r} is no outcome of a run")
        attempts = self.attempts()
        return None if attempts and attempts[-1].number != result.attempts else result

    def new_attempt(self) -> Attempt:
        """Make the directory of the next attempt; its number is this process's alone."""
        base = self.path / "attempts"
        make_directory(base)
        number = max((int(path.name) for path in base.iterdir()), default=0) + 1
        attempt = self.attempt(number)
        attempt.directory.mkdir()
        sync_directory(base)
        return attempt

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run while it is trained. Errors: InputError when another process holds it.

        Who lists runs looks at the lock for a moment, so a refusal is believed only when it lasts.
        """
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for patience in reversed(range(LOCK_TRIES)):
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError as error:
                    if not patience:
                        told = f"{self.path}: another process is training this run; wait for it or stop it"
                        raise InputError(told) from error
                    sleep(LOCK_SECONDS)
            yield
        finally:
            os.close(descriptor)

    def read_steps(self) -> list[StepMetrics]:
        """Give the rows that count, each step once: those of attempt n up to the start of attempt n + 1."""
        of_attempts = self._counting(lambda one: read_steps(one.steps), lambda later, row: later.keeps_row(row.step))
        return of_attempts or read_steps(self.steps)

    def step_table(self) -> Any:
        """Give the rows of `read_steps` as a pyarrow.Table, as `columns.read_step_table` does of one file."""
        from trainwright.columns import joined, read_step_table  # not before it is asked for: pyarrow is slow to load

        whole = joined([read_step_table(one.steps, below=later.limit) for one, later in self._attempts()])
        return whole if whole.num_rows else read_step_table(self.steps)

    def step_lines(self) -> Iterator[bytes]:
        """Give the rows of `read_steps` as they were written, in blocks of whole lines."""
        found = False
        for one, later in self._attempts():
            for block in lines_below(one.steps, later.limit):
                found = found or bool(block)
                yield block
        if not found:
            yield from lines_below(self.steps, None)

    def steps_are_joined(self) -> bool:
        """Tell whether steps.jsonl holds, byte for byte, the rows that count."""
        if not self.steps.is_file():
            return not any(self.step_lines())
        with self.steps.open("rb") as file:
            return all(file.read(len(block)) == block for block in self.step_lines()) and not file.read(1)

    def read_validations(self) -> list[ValidationRow]:
        """Give the validations that count. Errors: DataError with file and line for a row that is none."""
        of_attempts = self._counting(
            lambda one: read_validations(one.validations), lambda later, row: later.keeps_save(row.step)
        )
        return of_attempts or read_validations(self.validations)

    def read_events(self) -> list[Event]:
        """Give every event, less those that are bound to a step which a later attempt took again."""
        of_attempts = self._counting(lambda one: read_events(one.events), lambda later, event: later.keeps(event))
        return of_attempts or read_events(self.events)

    def read_audits(self) -> list[Audit]:
        """Give the audits of the rows that count."""
        return self._counting(lambda one: read_audits(one.audits), lambda later, row: later.keeps_row(row.step))

    def read_illustration(self) -> Illustration | None:
        """Give the newest illustration that counts: no later attempt took its step again. Errors: InputError."""
        for one, later in reversed(self._attempts()):
            shown = read_json(one.illustration, Illustration) if one.illustration.exists() else None
            if isinstance(shown, Illustration) and later.keeps_save(shown.step):
                return shown
        return None

    def _counting(
        self, read: Callable[[Attempt], Iterable[RowT]], keeps: Callable[["Later", RowT], bool]
    ) -> list[RowT]:
        return [row for attempt, later in self._attempts() for row in read(attempt) if keeps(later, row)]

    def _attempts(self) -> list[tuple[Attempt, "Later"]]:
        attempts = self.attempts()
        starts = [attempt.start() for attempt in attempts]
        return [(attempt, Later(attempt.number, starts[index + 1 :])) for index, attempt in enumerate(attempts)]

    def limits(self) -> dict[int, int]:
        """Give attempt → the step at which a later one took over; what it saved beyond that does not count."""
        return {attempt.number: later.limit for attempt, later in self._attempts() if later.limit is not None}

    def torn_files(self) -> list[Path]:
        """Give the row files whose last line was cut by a crash."""
        of_attempts = [file for attempt in self.attempts() for file in attempt.row_files]
        files = of_attempts or [self.steps, self.validations, self.events]
        return [file for file in files if whole_lines(file).torn]

    def add_after(self, kind: str, **detail: Any) -> None:
        """Append a row to after.jsonl. Errors: StoreError when it cannot be written."""
        row = After(time=now(), kind=kind, detail=redacted_within(detail))
        append_row(self.after, msgspec.json.encode(row) + b"\n")

    def read_after(self) -> list[After]:
        """Give what was done beside or after the training. Errors: DataError with the line of a row that is none."""
        rows = []
        for number, line in enumerate(whole_lines(self.after).lines, 1):
            try:
                rows.append(msgspec.json.decode(line, type=After))
            except msgspec.MsgspecError as error:
                raise DataError(f"{self.after}:{number}: is no row of what was done with a run: {error}") from error
        return rows

    def join(self) -> None:
        """Write the rows that count into the run's own files; the attempts' files stay."""
        write_atomically(self.steps, b"".join(self.step_lines()))
        write_atomically(self.validations, b"".join(row.encode() for row in self.read_validations()))
        write_atomically(self.events, b"".join(event.encode() for event in self.read_events()))


@dataclass(frozen=True, slots=True)
class Later:
    """What the attempts after attempt `number` leave of its records."""

    number: int
    starts: Sequence[Start]

    @property
    def limit(self) -> int | None:
        """Give the least step at which a later attempt began; None where there is none."""
        return min((start.step for start in self.starts), default=None)

    def keeps_row(self, step: int) -> bool:
        """Tell whether the row of update `step` counts: no later attempt took that update again."""
        return all(step < start.step for start in self.starts)

    def keeps_save(self, step: int) -> bool:
        """Tell whether a validation or checkpoint after `step` updates counts.

        A later attempt that began at that very step went on from it, or from a save of an earlier attempt, when this
        one was killed before its own save was whole; then it is made again.
        """
        return all(step < start.step or (step == start.step and self._is_at_or_after(start)) for start in self.starts)

    def _is_at_or_after(self, start: Start) -> bool:
        saved = Checkpoint.named(start.checkpoint or "")
        return start.parent is None and saved is not None and saved.attempt >= self.number

    def keeps(self, event: Event) -> bool:
        if event.step is None or event.kind in ATTEMPT_EVENTS:
            return True
        return self.keeps_row(event.step) if event.kind in ROW_EVENTS else self.keeps_save(event.step)


def all_runs(runs_dir: Path, *, records: bool = False) -> list[RunDirectory]:
    """Give the runs below `runs_dir`, newest first; with `records` the records of checks as well."""
    marks = [file for name in ("run.yaml", *["checks.jsonl"] * records) for file in runs_dir.glob(f"*/{name}")]
    marks.sort(key=lambda path: (path.stat().st_mtime, path.parent.name), reverse=True)
    return [RunDirectory(path.parent) for path in marks]
