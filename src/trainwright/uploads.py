"""Uploads beside training: one thread that brings a run's copy in a store up to date, and never stops the run."""

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, Protocol, TypeAlias, final

from trainwright.checkpoints.base import Store
from trainwright.errors import RunTakenUpError, StoreError, StoreUnavailableError
from trainwright.files import remove_temporaries
from trainwright.mirror import Mirror, Synced, Uploaded
from trainwright.rundir import RunDirectory
from trainwright.telemetry import Telemetry

MARK: Final = "trainwright-probe/mark"
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0
PROBE_SECONDS: Final = 10.0
LAST_SYNC_SECONDS: Final = 600.0
LOOK_SECONDS: Final = 0.1
Wait: TypeAlias = Callable[[threading.Condition, Callable[[], bool], float | None], bool]


def probe(store: Store, seconds: float = PROBE_SECONDS) -> str | None:
    """Write a mark to a store and remove it; give why the store is down, None when it works.

    One that is still trying after `seconds` counts as down.
    Errors: StoreError when it answers that it will not, or cannot be written: a wrong key, no such bucket, no right.
    """
    found: list[Exception] = []

    def mark() -> None:
        try:
            store.keys(MARK)  # a bucket that is not there is told so; to put into it would make it, on some servers
            store.put(MARK, b"")
            store.delete(MARK)
        except Exception as error:  # noqa: BLE001  it is raised below, in the caller's thread
            found.append(error)

    thread = threading.Thread(target=mark, name="probe", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        return f"the store gave no answer within {seconds:g} seconds"
    if found and not isinstance(found[0], StoreUnavailableError):
        raise found[0]
    return str(found[0]) if found else None


@final
class Backoff:
    """Pauses that double up to a longest one, each drawn from its upper half: many clients do not come at once."""

    def __init__(self, draw: Callable[[], float] = random.random) -> None:
        self._draw = draw
        self._tries = 0

    def next_seconds(self) -> float:
        whole = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(self._tries, 32))
        self._tries += 1
        return whole * (0.5 + self._draw() / 2)

    def reset(self) -> None:
        self._tries = 0


@dataclass(frozen=True, slots=True)
class Left:
    """What is not in the store when uploads end, and why. `checkpoints` are named; records may be missing too."""

    checkpoints: Sequence[str]
    why: str


class Uploads(Protocol):
    """What the loop tells of its saves, and who waits for the last of them to go up."""

    def saved(self) -> None:
        """Hear that a checkpoint counts; comes back at once."""

    def close(self, deadline_seconds: float = ..., *, give_up: Callable[[], bool] = ...) -> Left | None:
        """Bring up what is left, within the deadline; give what is not in the store then, None when all is."""


class NoUploads:
    """A run that has no store."""

    def saved(self) -> None: ...

    def close(self, *_: object, **__: object) -> None: ...


@final
class Uploader:
    """Syncs a run with its store in a thread of its own, one sync at a time, woken by `saved`.

    A store that is down is tried again after pauses; any other failure waits for the next save; a run that was taken
    up elsewhere ends the uploads. Each is put on record in after.jsonl, and none is raised. `wait` waits on a
    condition as `Condition.wait_for` does, `draw` gives numbers from 0 to 1, `now` seconds.
    """

    def __init__(
        self,
        run: RunDirectory,
        store: Store,
        telemetry: Telemetry | None = None,
        *,
        wait: Wait = threading.Condition.wait_for,
        draw: Callable[[], float] = random.random,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self._run = run
        self._mirror = Mirror(run, store, self._note_upload)
        self._telemetry = telemetry or Telemetry()
        self._wait, self._now = wait, now
        self._backoff = Backoff(draw)
        self._changed = threading.Condition()
        self._is_due, self._is_closing = False, False
        self._failure: str | None = None
        self._told: str | None = None
        self._thread = threading.Thread(target=self._work, name="uploads", daemon=True)
        self._thread.start()

    def saved(self) -> None:
        with self._changed:
            self._is_due = True
            self._changed.notify_all()

    def close(
        self, deadline_seconds: float = LAST_SYNC_SECONDS, *, give_up: Callable[[], bool] = lambda: False
    ) -> Left | None:
        until = self._now() + deadline_seconds
        with self._changed:
            self._is_due = self._is_closing = True
            self._changed.notify_all()
        while self._thread.is_alive() and self._now() < until and not give_up():
            self._thread.join(LOOK_SECONDS)
        if not self._thread.is_alive() and self._failure is None:
            return None
        return self._left(deadline_seconds)

    def _left(self, deadline_seconds: float) -> Left:
        why = self._failure or f"the last upload did not end within {deadline_seconds:g} seconds"
        pending = self._mirror.pending()
        self._record("uploads_pending", reason=why, checkpoints=pending)
        return Left(pending, why)

    # -- in the thread -----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while self._await(lambda: self._is_due, None):
            with self._changed:  # at once: an end that is told in between has a sync of its own
                closing, self._is_due = self._is_closing, False
            pause = self._sync()
            if closing or pause is None:
                return
            if pause:
                self._await(lambda: self._is_closing, pause)

    def _await(self, happened: Callable[[], bool], seconds: float | None) -> bool:
        with self._changed:
            return self._wait(self._changed, happened, seconds)

    def _sync(self) -> float | None:
        """Try once. Give the seconds until the next try: 0 when that waits for a save, None when there is none."""
        try:
            done = self._mirror.sync()
        except RunTakenUpError as error:
            self._fail("uploads_stopped", error)
            return None
        except StoreUnavailableError as error:
            self._fail("upload_failed", error)
            self._is_due = True
            return self._backoff.next_seconds()
        except Exception as error:  # noqa: BLE001  whatever it is, the training goes on
            self._fail("upload_failed", error)
            return 0.0
        self._backoff.reset()
        self._failure = None
        for _ in done.passed_over:
            self._telemetry.not_uploaded("skipped")
        if done.damaged:
            self._fail("upload_failed", StoreError("; ".join(f"{name}: {why}" for name, why in done.damaged.items())))
        else:
            self._told = None
        return 0.0

    def _fail(self, kind: str, error: Exception) -> None:
        """Count a failure, and put it on record when it is another than the last: a store may be down for days."""
        self._failure = str(error) if isinstance(error, StoreError) else f"{type(error).__name__}: {error}"
        self._telemetry.not_uploaded("failed")
        if self._failure != self._told:
            self._told = self._failure
            self._record(kind, reason=self._failure)

    def _note_upload(self, uploaded: Uploaded) -> None:
        self._telemetry.uploaded(uploaded.size_bytes, uploaded.seconds)
        self._record("uploaded", **_told(uploaded))

    def _record(self, kind: str, **detail: object) -> None:
        with suppress(StoreError):  # a disk that is full is told by what the training itself writes
            self._run.add_after(kind, **detail)


def sync(run: RunDirectory, store: Store) -> Synced:
    """Bring a run's copy up to date now; what goes up is put on record. Nothing may be training it.

    Errors: as `Mirror.sync`.
    """
    with run.locked():
        remove_temporaries(run.path)
        return Mirror(run, store, lambda uploaded: run.add_after("uploaded", **_told(uploaded))).sync()


def _told(uploaded: Uploaded) -> dict[str, Any]:
    seconds = round(uploaded.seconds, 6)
    return {"checkpoint": uploaded.checkpoint, "bytes": uploaded.size_bytes, "seconds": seconds}


@contextmanager
def uploading(run: RunDirectory, store: Store | None, telemetry: Telemetry | None = None) -> Iterator[Uploads]:
    """Upload while in the block, where there is a store. An error that leaves the block waits for no upload."""
    if store is None:
        yield NoUploads()
        return
    uploader = Uploader(run, store, telemetry)
    uploader.saved()  # the attempt is claimed there before it has a checkpoint
    try:
        yield uploader
    except BaseException:
        uploader.close(0.0)
        raise
