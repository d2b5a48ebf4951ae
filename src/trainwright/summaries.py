"""Runs and checkpoints in a line each, told without reading rows or tensors."""

import fcntl
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from trainwright.errors import DamagedCheckpointError, TrainwrightError
from trainwright.jsonfile import read_json
from trainwright.manifest import (
    MANIFEST,
    RETENTION,
    RETIRED,
    SEGMENTS,
    Checkpoint,
    Manifest,
    decode_manifest,
    decode_retired,
    saved_in,
)
from trainwright.outcome import Outcome
from trainwright.rundir import Result, RunDirectory, Start, all_runs


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What a listing needs of environment.json."""

    model_type: str | None = None
    device: str | None = None
    device_name: str | None = None
    planned_steps: int | None = None


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """One run in a list, told without reading its rows.

    `state` is the outcome, or running, unfinished, damaged. `step` is None until the run ends; then `step_at_least` is
    where its newest attempt began or its newest checkpoint stands. `reason` says why it ended, or what is damaged.
    """

    run: str
    state: str
    reason: str = ""
    step: int | None = None
    step_at_least: int = 0
    planned_steps: int | None = None
    best_validation: float | None = None
    model_type: str | None = None
    device: str | None = None
    started: str | None = None
    age_seconds: float | None = None


class CheckpointSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint: `state` is kept, removed, damaged, superseded or incomplete; `size_bytes` what is on disk now."""

    name: str
    step: int
    state: str
    reason: str = ""
    size_bytes: int


def summarise_all(runs_dir: Path, now: datetime) -> list[Summary]:
    """Give every run, the newest start first; ages are told as of `now`."""
    return sorted((_summary(run, now) for run in all_runs(runs_dir)), key=lambda one: one.started or "", reverse=True)


def _summary(run: RunDirectory, now: datetime) -> Summary:
    try:
        return summarise(run, now)
    except (TrainwrightError, OSError, ValueError) as error:
        return Summary(run=run.id, state="damaged", reason=str(error), started=_made(run))


def _made(run: RunDirectory) -> str:
    """Give when run.yaml was written, for a run without a readable start."""
    return datetime.fromtimestamp(run.config.stat().st_mtime, UTC).isoformat(timespec="milliseconds")


def summarise(run: RunDirectory, now: datetime) -> Summary:
    """Give one run without reading its rows. Errors: InputError, OSError for a file that is not what it should be."""
    attempts = run.attempts()
    result, state = standing(run)
    starts = [attempt.start() for attempt in attempts[:1] + attempts[1:][-1:]]
    environment: Surroundings = (
        read_json(run.environment, Surroundings) if run.environment.exists() or result else Surroundings()
    )
    started = starts[0].time if starts else _made(run)
    return Summary(
        run=run.id,
        state=state,
        reason=result.why if result else "",
        step=result.step if result else None,
        step_at_least=result.step if result else _step_at_least(run, starts),
        planned_steps=environment.planned_steps,
        best_validation=result.best_validation if result else None,
        model_type=environment.model_type,
        device=environment.device_name or environment.device,
        started=started,
        age_seconds=(now - datetime.fromisoformat(started)).total_seconds(),
    )


def standing(run: RunDirectory) -> tuple[Result | None, str]:
    """Give the result while it stands, and the run's state: an outcome, running or unfinished."""
    result = run.read_result()
    if result and not Outcome.of(result.outcome).resumable:
        return result, result.outcome
    if is_running(run):
        return None, "running"
    return result, result.outcome if result else "unfinished"


def is_running(run: RunDirectory) -> bool:
    """Tell whether a process holds the run. The look is a shared lock, so that two lists do not see each other."""
    descriptor = os.open(run.path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)


def _step_at_least(run: RunDirectory, starts: list[Start]) -> int:
    saved = saved_in(run.checkpoints, of=MANIFEST)
    return max([*(start.step for start in starts), *(checkpoint.step for checkpoint in saved)], default=0)


def checkpoints_of(run: RunDirectory) -> Iterator[CheckpointSummary]:
    """Give every checkpoint of the run, oldest first. Sizes are compared with the manifest; hashes are not read."""
    limits = run.limits()
    for checkpoint in saved_in(run.checkpoints):
        yield _checkpoint(run.checkpoints / checkpoint.name, checkpoint, limits.get(checkpoint.attempt))


def _checkpoint(folder: Path, checkpoint: Checkpoint, limit: int | None) -> CheckpointSummary:
    manifest, retired = folder / MANIFEST, folder / RETIRED
    size = sum(file.stat().st_size for file in folder.glob("*") if file not in {manifest, retired})
    try:
        if not manifest.exists():
            state, reason = "incomplete", "the save was interrupted before its manifest was written"
        elif retired.exists():
            reason = decode_retired(retired.read_bytes(), RETIRED)
            state = "removed" if reason == RETENTION else "damaged"
        else:
            size, problem = _sizes(folder, decode_manifest(manifest.read_bytes(), MANIFEST))
            superseded = limit is not None and checkpoint.step > limit
            state = "damaged" if problem else "superseded" if superseded else "kept"
            reason = problem or (f"a later attempt went on from step {limit}" if superseded else "")
    except (DamagedCheckpointError, OSError) as error:
        state, reason = "damaged", str(error)
    return CheckpointSummary(name=checkpoint.name, step=checkpoint.step, state=state, reason=reason, size_bytes=size)


def _sizes(folder: Path, manifest: Manifest) -> tuple[int, str]:
    """Give the bytes on disk, and the first file that is missing or has another size than its manifest says."""
    files = {folder / name: record.size for name, record in manifest.files.items()}
    files |= {folder.parent / SEGMENTS / record.sha256: record.size for record in manifest.segments.values()}
    found = {path: path.stat().st_size if path.is_file() else None for path in files}
    problems = (
        f"{path.name} is missing"
        if found[path] is None
        else f"{path.name} has {found[path]} bytes, its manifest says {size}"
        for path, size in files.items()
        if found[path] != size
    )
    return sum(filter(None, found.values())), next(problems, "")
