"""The rows of a run, and the one reader of them: loop at resume, judge, report and API all read through here."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias, cast

import msgspec

from trainwright.errors import DataError, InputError
from trainwright.rowfiles import line_blocks, whole_lines

NONFINITE_SUFFIX = "_nonfinite"
NONFINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
MEASURED_STEP_FIELDS = ("step", "train_loss", "grad_norm", "lr", "gpu_util_pct", "wall_ms")
THROUGHPUT_FIELDS = ("tokens_per_sec", "samples_per_sec")
Int64: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class StepMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """One row of steps.jsonl, as contract training-loop-pretrain-v1 requires it since version 1.5.0.

    `train_loss` mean over the items of the step · `grad_norm` global L2 over all parameters before clipping · `lr`
    read back from the optimizer that took the step · `tokens_per_sec` (a trainable that counts samples has
    `samples_per_sec` in its place) · `gpu_util_pct` newest NVML sample, None without a sensor · `wall_ms` from before
    the first `next_batch` to after `optimizer_step` · `extra` what the trainable declared, flat in the file.
    Errors: InputError when `wall_ms` is negative or not finite, or no throughput is given.
    """

    step: Int64
    train_loss: float
    grad_norm: float
    lr: float
    tokens_per_sec: float | msgspec.UnsetType = msgspec.UNSET
    samples_per_sec: float | msgspec.UnsetType = msgspec.UNSET
    gpu_util_pct: float | None
    wall_ms: float
    extra: Mapping[str, float | None] = {}
    wall_ms_measured: bool = True

    def __post_init__(self) -> None:
        if not 0.0 <= self.wall_ms < math.inf:
            raise InputError(f"row of step {self.step}: wall_ms is {self.wall_ms}; a clock gives a finite number ≥ 0")
        if self.tokens_per_sec is msgspec.UNSET and self.samples_per_sec is msgspec.UNSET:
            raise InputError(f"row of step {self.step}: neither tokens_per_sec nor samples_per_sec is given")

    @property
    def throughput(self) -> float:
        """Give items a second, of whichever unit the trainable counts."""
        return self.tokens_per_sec if isinstance(self.tokens_per_sec, float) else cast("float", self.samples_per_sec)

    def encode(self) -> bytes:
        """Give the line, newline included; a number that is not finite becomes null and a sibling key."""
        row: dict[str, Any] = {
            "step": self.step,
            "train_loss": self.train_loss,
            "grad_norm": self.grad_norm,
            "lr": self.lr,
        }
        if self.tokens_per_sec is msgspec.UNSET:
            row["samples_per_sec"] = self.samples_per_sec
        else:
            row["tokens_per_sec"] = self.tokens_per_sec
        row["gpu_util_pct"] = self.gpu_util_pct
        if self.wall_ms_measured:
            row["wall_ms"] = self.wall_ms
        row.update(self.extra)
        return encode_line(row)


class ValidationRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of validations.jsonl. `step` counts the updates before it, `patience` the validations without a gain.

    `measures`: what else the trainable measured there, flat in the file.
    """

    step: int
    epoch: int
    metric: str
    value: float
    n: int
    standard_error: float | None
    best: float | None
    is_best: bool
    patience: int
    train_loss_mean: float | None
    tokens_seen: int
    grad_norm_max: float | None
    optimizer_state_sha256: str
    wall_seconds: float
    checkpoint: str
    measures: Mapping[str, float | None] = {}

    def encode(self) -> bytes:
        row = msgspec.structs.asdict(self)
        return encode_line(row | row.pop("measures"))


COMPUTED_OF_VALIDATIONS = (  # columns that the judge adds to the recorded ones
    *("ordinal", "previous", "best_before", "has_manifest", "steps_since", "train_loss_min", "patience_reference"),
)
VALIDATION_FIELDS = tuple(name for name in ValidationRow.__struct_fields__ if name != "measures")


def best_of(rows: Sequence[ValidationRow]) -> ValidationRow | None:
    """Give the best validation of a run, as its rows tell it; None where none was finite."""
    return next((row for row in reversed(rows) if row.is_best), None)


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One row of events.jsonl: something that happened, outside the numbers. `time` is UTC, ISO 8601."""

    time: str
    kind: str
    step: int | None
    attempt: int
    detail: dict[str, Any] = {}

    def encode(self) -> bytes:
        return msgspec.json.encode(self) + b"\n"


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """One row of audits.jsonl: a step looked at from outside the trainable, where a checkpoint or validation follows.

    `lr_scheduled` what the schedule asks for · `lr_groups` as each group of the optimizer states it · `lr_applied` as
    the weights of each group moved, None where that cannot be told · `grad_norm` over all trained parameters, before
    clipping · `tensors` that are trained, `tensors_changed` since the run's first step, `unchanged` the first names of
    those that did not · `batch_repeated`: the batches are those of the step before · `batch_rows` rows of its batches,
    `held_out_rows` those of them that validation reads as well, `held_out_repeats` the share of what validation reads
    that stands there more than once. None: not measured, as on a step that changed nothing.
    """

    step: int
    lr_scheduled: float
    lr_groups: list[float]
    lr_applied: list[float | None]
    grad_norm: float | None
    tensors: int
    tensors_changed: int | None
    unchanged: list[str] = []
    batch_repeated: bool | None = None
    batch_rows: int | None = None
    held_out_rows: int | None = None
    held_out_repeats: float | None = None

    def encode(self) -> bytes:
        return encode_line(msgspec.structs.asdict(self))


def encode_line(row: dict[str, Any]) -> bytes:
    """Give a row as its line, newline included; a number that is not finite becomes null and a sibling key."""
    try:
        finite = math.isfinite(math.fsum(v for v in row.values() if type(v) is float))
    except (OverflowError, ValueError):
        finite = False
    return msgspec.json.encode(row if finite else with_siblings(row)) + b"\n"


def with_siblings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Give `values` for JSON, at any depth: a number that is not finite is null, beside a sibling key that tells it."""
    whole: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            whole[name] = with_siblings(value)
        elif isinstance(value, float) and not math.isfinite(value):
            whole[name] = None
            whole[name + NONFINITE_SUFFIX] = "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
        else:
            whole[name] = value
    return whole


def without_siblings(row: dict[str, Any]) -> dict[str, Any]:
    """Give `row`, changed in place: what `with_siblings` wrote as null beside a word is that number again.

    Errors: InputError for a sibling key whose word is none of nan, inf and -inf.
    """
    for key in [key for key in row if key.endswith(NONFINITE_SUFFIX)]:
        word = row.pop(key)
        if not isinstance(word, str) or word not in NONFINITE:
            raise InputError(f"{key} is {word!r}; expected one of {', '.join(NONFINITE)}")
        row[key.removesuffix(NONFINITE_SUFFIX)] = NONFINITE[word]
    return row


class Stepped(msgspec.Struct, frozen=True):
    """What is asked of a row to tell whether it counts."""

    step: int


_ROW = msgspec.json.Decoder(dict[str, int | float | str | None])
_VALIDATION = msgspec.json.Decoder(dict[str, int | float | str | bool | None])
_EVENT = msgspec.json.Decoder(Event)
_ANY = msgspec.json.Decoder(dict[str, Any])


def read_steps(path: Path) -> list[StepMetrics]:
    """Read steps.jsonl. Rows of contract 1.4.0, without `wall_ms`, load with 0.0 marked as not measured.

    Errors: DataError with file and line number for a broken line that is not the torn last one.
    """
    return list(step_rows(path, whole_lines(path).lines))


def read_validations(path: Path) -> list[ValidationRow]:
    return list(_read(path, _validation_row))


def read_events(path: Path) -> list[Event]:
    return list(_read(path, _EVENT.decode))


def read_audits(path: Path) -> list[Audit]:
    return list(_read(path, lambda line: msgspec.convert(without_siblings(_ANY.decode(line)), Audit)))


def read_checks(path: Path) -> list[dict[str, Any]]:
    """Read checks.jsonl: what a command that compares or probes measured, one comparison a row, flat."""
    return list(_read(path, lambda line: without_siblings(_VALIDATION.decode(line))))


def step_rows(path: Path, lines: Iterable[bytes], first: int = 1) -> Iterator[StepMetrics]:
    """Read lines of steps.jsonl, of which the first has the number `first`. Errors: as `read_steps`."""
    return _decoded(path, lines, _step_row, first)


def _read(path: Path, decode: Any) -> Iterator[Any]:
    return _decoded(path, whole_lines(path).lines, decode)


def _decoded(path: Path, lines: Iterable[bytes], decode: Any, first: int = 1) -> Iterator[Any]:
    for number, line in enumerate(lines, first):
        try:
            yield decode(line)
        except (msgspec.MsgspecError, ValueError, KeyError, TypeError, InputError) as error:
            raise DataError(f"{path}:{number}: is not a valid row: {error}") from error


def _step_row(line: bytes) -> StepMetrics:
    row = without_siblings(_ROW.decode(line))
    core = {name: row.pop(name) for name in (*MEASURED_STEP_FIELDS, *THROUGHPUT_FIELDS) if name in row}
    measured = "wall_ms" in core
    return msgspec.convert(
        {**core, "wall_ms": core.get("wall_ms", 0.0), "extra": row, "wall_ms_measured": measured}, StepMetrics
    )


def _validation_row(line: bytes) -> ValidationRow:
    row = without_siblings(_VALIDATION.decode(line))
    core = {name: row.pop(name) for name in VALIDATION_FIELDS if name in row}
    return msgspec.convert({**core, "measures": row}, ValidationRow)


_STEP = msgspec.json.Decoder(Stepped)


def lines_below(path: Path, step: int | None) -> Iterator[bytes]:
    """Give the whole lines of a row file as they were written, in blocks: those of steps below `step`, or all.

    Errors: DataError with file and line number for a line that tells no step, where a step is asked for.
    """
    first = 1
    for lines in line_blocks(path):
        kept = lines
        if step is not None:
            rows = _decoded(path, lines, _STEP.decode, first)
            kept = [line for line, row in zip(lines, rows, strict=True) if row.step < step]
        first += len(lines)
        yield b"".join(line + b"\n" for line in kept)
