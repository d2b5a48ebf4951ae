"""Runs in processes that can be killed; a fork server that has imported torch starts them at once."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import numpy as np

from tests.forkserver import SERVER
from trainwright.config import RunConfig
from trainwright.files import sha256_of_file
from trainwright.metrics import Event, StepMetrics, ValidationRow
from trainwright.recorder import Silent
from trainwright.rundir import RunDirectory

CLOCK_FIELDS = frozenset({"wall_ms", "tokens_per_sec", "samples_per_sec", "gpu_util_pct", "env_steps_per_sec"})
DEADLINE_SECONDS = 120.0


def config(**changes: Any) -> dict[str, Any]:
    """Give the toy's configuration; `train__steps=5` changes `train.steps`."""
    values: dict[str, Any] = {
        "name": "toy",
        "device": "cpu",
        "seed": 7,
        "model": {"type": "tests.toys:Toy", "n": 320, "hidden": 16},
        "train": {"steps": 120, "learning_rate": 1e-2, "batch_size": 32, "threads": 1},
        "validate": {"every": 20},
        "checkpoint": {"every": 7, "keep_last": 2},
    }
    for key, value in changes.items():
        section, _, name = key.partition("__")
        if name:
            values.setdefault(section, {})[name] = value
        else:
            values[section] = value
    return values


def train(values: Mapping[str, Any], runs_dir: Path) -> int:
    from trainwright import runs

    return runs.execute(RunConfig.parse(values), runs_dir=runs_dir).exit_code


def resume(runs_dir: Path) -> int:
    from trainwright import runs

    return runs.resume(only_run(runs_dir)).exit_code


class SignalledAfter(Silent):
    """Sends its own process a signal once the row of step `step` is on disk: at the same moment each time."""

    def __init__(self, step: int, number: int = signal.SIGKILL) -> None:
        self._step, self._number = step, number

    def on_step(self, row: StepMetrics) -> None:
        if row.step == self._step:
            os.kill(os.getpid(), self._number)


class KilledAt(Silent):
    """Kills its own process at the n-th time (from 0) that something of its kind is on disk.

    `step` and `validation` are rows, any other word is a kind of event. A validation's row is on disk before its
    checkpoint counts, so this is the middle of a save.
    """

    def __init__(self, what: str, number: int) -> None:
        self._what, self._left = what, number

    def on_step(self, row: StepMetrics) -> None:
        self._saw("step")

    def on_validation(self, row: ValidationRow) -> None:
        self._saw("validation")

    def on_event(self, event: Event) -> None:
        self._saw(event.kind)

    def _saw(self, what: str) -> None:
        if what == self._what:
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self._left -= 1


def train_killed_at(what: str, number: int, values: Mapping[str, Any], runs_dir: Path) -> int:
    from trainwright import runs

    return runs.execute(RunConfig.parse(values), runs_dir=runs_dir, watcher=KilledAt(what, number)).exit_code


def resume_killed_at(what: str, number: int, runs_dir: Path) -> int:
    from trainwright import runs

    return runs.resume(only_run(runs_dir), watcher=KilledAt(what, number)).exit_code


def train_stopped_after(step: int, values: Mapping[str, Any], runs_dir: Path) -> int:
    from trainwright import runs

    return runs.execute(
        RunConfig.parse(values), runs_dir=runs_dir, watcher=SignalledAfter(step, signal.SIGTERM)
    ).exit_code


def train_killed_after(step: int, values: Mapping[str, Any], runs_dir: Path) -> int:
    from trainwright import runs

    return runs.execute(RunConfig.parse(values), runs_dir=runs_dir, watcher=SignalledAfter(step)).exit_code


def go_on_killed_after(step: int, parent: Path, overrides: Sequence[str], runs_dir: Path) -> int:
    """Go on with a run in a new one, which is killed after `step`."""
    from trainwright import app

    return app.resume(parent, overrides, runs_dir=runs_dir, watcher=SignalledAfter(step)).exit_code


def on_threads(threads: int, target: Callable[..., int], *arguments: Any) -> int:
    import torch

    torch.set_num_threads(threads)
    return target(*arguments)


@dataclass(frozen=True, slots=True)
class Completed:
    code: int
    out: str
    err: str


def command(folder: Path, *arguments: object, variables: Mapping[str, str] | None = None) -> Completed:
    """Run `trainwright …` in `folder`, in a process of the fork server; neither of its outputs is a terminal.

    `variables` stand in its environment beside the others.
    """
    folder.mkdir(parents=True, exist_ok=True)
    code = finish(start(_command, folder, [str(argument) for argument in arguments], variables))
    return Completed(code, *((folder / f".{name}").read_bytes().decode() for name in ("stdout", "stderr")))


def _command(folder: Path, arguments: Sequence[str], variables: Mapping[str, str] | None = None) -> int:
    os.chdir(folder)
    os.environ.update(variables or {})
    for name, stream in (("stdout", sys.stdout), ("stderr", sys.stderr)):
        target = os.open(f".{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(target, stream.fileno())
    return command_here(arguments)


def command_here(arguments: Sequence[str]) -> int:
    """Run `trainwright …` in this process and give the code that it exits with."""
    from trainwright.cli.main import main

    sys.argv = ["trainwright", *arguments]
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def hold(run: RunDirectory, ready: Path) -> int:
    """Hold the lock of a run until killed."""
    with run.locked():
        ready.touch()
        threading.Event().wait(DEADLINE_SECONDS)
    return 0


def contents(folder: Path) -> Mapping[str, str]:
    """Give the hash of every file below a folder."""
    return {str(path.relative_to(folder)): sha256_of_file(path) for path in folder.rglob("*") if path.is_file()}


@contextmanager
def left_as_it_was(folder: Path) -> Iterator[None]:
    before = contents(folder)
    yield
    assert contents(folder) == before, f"{folder} was written to"


def run_ids(runs_dir: Path) -> set[str]:
    return {path.parent.name for path in runs_dir.glob("*/run.yaml")}


def only_run(runs_dir: Path) -> RunDirectory:
    (path,) = runs_dir.glob("*/run.yaml")
    return RunDirectory(path.parent)


def start(target: Callable[..., int], *arguments: Any) -> BaseProcess:
    process = SERVER.Process(target=_exit_with, args=(target, *arguments), daemon=True)
    process.start()
    return process


def _exit_with(target: Callable[..., int], *arguments: Any) -> None:
    os._exit(target(*arguments))


def finish(process: BaseProcess) -> int:
    """Wait for the child's end and give its exit code (negative: the signal that killed it)."""
    process.join(DEADLINE_SECONDS)
    assert process.exitcode is not None, "the child did not end in time"
    return process.exitcode


def kill(process: BaseProcess, number: int = signal.SIGKILL) -> int:
    """Send a signal, unless the child has ended already, and wait for its end."""
    if process.exitcode is None and process.pid is not None:
        os.kill(process.pid, number)
    return finish(process)


def until(condition: Callable[[], object], process: BaseProcess | None = None) -> None:
    """Wait for a fact about files; stop waiting when the child has ended."""
    deadline, pause = monotonic() + DEADLINE_SECONDS, threading.Event()
    while not condition():
        assert monotonic() < deadline, "the condition was not met in time"
        if process is not None and process.exitcode is not None:
            return
        pause.wait(0.001)


def rows_on_disk(runs_dir: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in runs_dir.glob("*/attempts/*/steps.jsonl"))


def until_rows(runs_dir: Path, rows: int, process: BaseProcess) -> None:
    """Wait until the child has written this many rows of steps."""
    until(lambda: rows_on_disk(runs_dir) >= rows, process)


def timeless_rows(run: RunDirectory) -> bytes:
    """Give steps.jsonl, as joined at the end, without its time fields."""
    rows = [msgspec.json.decode(line) for line in run.steps.read_bytes().splitlines()]
    kept = [{key: value for key, value in row.items() if key not in CLOCK_FIELDS} for row in rows]
    return b"\n".join(map(msgspec.json.encode, kept))


def last_tensors(run: RunDirectory) -> Mapping[str, bytes]:
    """Give every tensor file of the last checkpoint: weights, optimizer, random streams."""
    folder = max(run.checkpoints.glob("step-*"))
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.safetensors"))}


def validation_facts(run: RunDirectory) -> Sequence[tuple[Any, ...]]:
    return [
        (
            *(row.step, row.epoch, row.value, row.measures, row.best, row.is_best, row.patience),
            *(row.train_loss_mean, row.tokens_seen),
        )
        for row in run.read_validations()
    ]


def assert_equal_to(uncut: RunDirectory, cut: RunDirectory) -> None:
    """Hold a run that was cut and resumed against the one that was not: bit for bit."""
    assert timeless_rows(cut) == timeless_rows(uncut)
    assert validation_facts(cut) == validation_facts(uncut)
    assert cut.read_audits() == uncut.read_audits()
    ours, theirs = last_tensors(cut), last_tensors(uncut)
    assert ours.keys() == theirs.keys() >= {"model.safetensors", "optimizer.safetensors", "rest.safetensors"}
    for name in ours:
        assert ours[name] == theirs[name], f"{name} differs"


def assert_exact_when_killed(
    values: Mapping[str, Any], folder: Path, *moments: tuple[str, int], ends: Collection[int] = (0,)
) -> tuple[RunDirectory, RunDirectory]:
    """Kill a run at each of these moments (`step` or `validation`, and which), resume it, and hold it against uncut.

    `ends`: the exit codes with which both may end. Gives the uncut run and the other.
    """
    assert finish(start(train, values, folder / "uncut")) in ends
    first, *later = moments
    assert finish(start(train_killed_at, *first, values, folder / "cut")) == -signal.SIGKILL
    for moment in later:
        assert finish(start(resume_killed_at, *moment, folder / "cut")) == -signal.SIGKILL
    assert finish(start(resume, folder / "cut")) in ends
    uncut, cut = only_run(folder / "uncut"), only_run(folder / "cut")
    assert len(cut.attempts()) == len(moments) + 1
    assert [event.detail for event in cut.read_events() if event.kind == "not_exact"] == []
    assert_equal_to(uncut, cut)
    return uncut, cut


def token_shards(folder: Path, *, vocabulary_size: int = 50, tokens: int = 20_000) -> Path:
    """Write a plain folder of uint32 shards whose next token mostly follows from the last: something to learn.

    Noise is at every fifth token at least, so that no window of validation stands in the training shard by chance.
    """
    generator = np.random.default_rng(1)
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("train.bin", tokens), ("val.bin", tokens // 10)):
        noise = (generator.random(count) < 0.2) | (np.arange(count) % 5 == 0)
        values = np.where(noise, generator.integers(0, vocabulary_size, count), np.arange(count) * 7 % vocabulary_size)
        (folder / name).write_bytes(values.astype("<u4").tobytes())
    return folder


def language_model(shards: Path, **changes: Any) -> dict[str, Any]:
    """Give the configuration of a tiny language model on `shards`."""
    model = {"type": "lm", "layers": 2, "width": 32, "heads": 2, "context": 16}
    return config(
        **{
            "name": "lm",
            "model": model,
            "data": {"path": str(shards)},
            "train__steps": 60,
            "train__batch_size": 8,
            **changes,
        }
    )
