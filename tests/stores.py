"""A store whose verbs are seen, and can be made to fail, one by one; and small runs to put into stores."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from trainwright.checkpoints.base import Store
from trainwright.checkpoints.checkpoints import Checkpoints
from trainwright.checkpoints.filesystem import FileStore
from trainwright.jsonfile import write_json
from trainwright.manifest import Checkpoint, Stamp
from trainwright.newruns import create_run
from trainwright.rundir import RunDirectory, Start
from trainwright.state import Segment, StateValue

WRITES = frozenset({"put", "put_new", "put_file", "copy", "delete"})


class Watched:
    """A store that stands before another: `before` hears verb and key, and what it raises is the verb's error."""

    def __init__(self, store: Store, before: Callable[[str, str], object] = lambda _verb, _key: None) -> None:
        self.inner = store
        self.before = before
        self.calls: list[tuple[str, str]] = []
        self._lock = threading.Lock()

    def counts(self) -> Counter[str]:
        return Counter(verb for verb, _ in self.calls)

    def written(self) -> list[str]:
        return [key for verb, key in self.calls if verb in WRITES]

    def _saw(self, verb: str, key: str) -> None:
        with self._lock:
            self.calls.append((verb, key))
        self.before(verb, key)

    def put(self, key: str, *parts: bytes | memoryview) -> None:
        self._saw("put", key)
        self.inner.put(key, *parts)

    def put_new(self, key: str, data: bytes) -> bool:
        self._saw("put_new", key)
        return self.inner.put_new(key, data)

    def put_file(self, key: str, path: Path, *, sha256: str) -> None:
        self._saw("put_file", key)
        self.inner.put_file(key, path, sha256=sha256)

    def get(self, key: str) -> bytes:
        self._saw("get", key)
        return self.inner.get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        self._saw("get_range", key)
        return self.inner.get_range(key, start, length)

    def get_file(self, key: str, path: Path, *, sha256: str) -> None:
        self._saw("get_file", key)
        self.inner.get_file(key, path, sha256=sha256)

    def copy(self, source: str, target: str) -> None:
        self._saw("copy", target)
        self.inner.copy(source, target)

    def size(self, key: str) -> int | None:
        self._saw("size", key)
        return self.inner.size(key)

    def keys(self, prefix: str = "") -> Sequence[str]:
        self._saw("keys", prefix)
        return self.inner.keys(prefix)

    def delete(self, key: str) -> None:
        self._saw("delete", key)
        self.inner.delete(key)

    def sweep(self, prefix: str = "") -> None:
        self._saw("sweep", prefix)
        self.inner.sweep(prefix)

    def free_bytes(self) -> int | None:
        return self.inner.free_bytes()


def content(store: Store) -> dict[str, bytes]:
    return {key: store.get(key) for key in store.keys("")}


def new_run(folder: Path, name: str = "toy") -> RunDirectory:
    """Make a run with one attempt that has rows, and no checkpoint."""
    run = create_run(name, folder, f"name: {name}\n", environment={"config_sha256": "0" * 64})
    begin(run, 0)
    return run


def begin(run: RunDirectory, step: int, *, pid: int = 1) -> None:
    """Begin the next attempt at `step`."""
    attempt = run.new_attempt()
    start = Start(attempt=attempt.number, time="2026-01-01T00:00:00.000Z", step=step, checkpoint=None, pid=pid)
    write_json(attempt.start_file, start)
    attempt.steps.write_bytes(b'{"step":0}\n')


def state_of(step: int) -> dict[str, StateValue]:
    """Give a state of two files and two segments: one of its own, and one that all share."""
    return {
        "model.weight": torch.full((50,), float(step)),
        "optimizer.moment": torch.full((100,), float(-step)),
        "replay.own": Segment(torch.arange(step, step + 30).numpy()),
        "replay.shared": Segment(torch.arange(40).numpy()),
        "loop": {"step": step},
    }


def save(run: RunDirectory, step: int, attempt: int = 1) -> Checkpoint:
    stamp = Stamp(run=run.id, attempt=attempt, model_type="toy", config_sha256="0" * 64)
    time = "2026-01-01T00:00:00.000Z"
    pending = checkpoints(run).write(state_of(step), step=step, stamp=stamp, time=time)
    pending.commit()
    return pending.checkpoint


def checkpoints(run: RunDirectory) -> Checkpoints:
    return Checkpoints(FileStore(run.checkpoints))
