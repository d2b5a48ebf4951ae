"""Checkpoints that are written while training goes on: the same rows and files as those that are written at once."""

import json
import threading
from pathlib import Path
from typing import TypeVar

import pytest
from torch import Tensor

from tests.loops import Finished, Scripted, run_loop, settings
from tests.toys import Samples, Toy, ToyOptions, toy
from trainwright.checkpoints.checkpoints import Checkpoints
from trainwright.checkpoints.memory import MemoryStore
from trainwright.errors import StoreError
from trainwright.manifest import MANIFEST, Checkpoint
from trainwright.metrics import StepMetrics
from trainwright.outcome import Outcome
from trainwright.recorder import Silent
from trainwright.trainable import Setup

T = TypeVar("T", bound=Toy)
DEADLINE_SECONDS = 60.0
CLOCKS = {"wall_ms", "samples_per_sec", "wall_seconds"}


class Gated(MemoryStore):
    """A store that takes the weights of `step` once it is opened."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self._held = f"{Checkpoint(step, 1).name}/model.safetensors"
        self._opened = threading.Event()
        self.in_time = True

    def open(self) -> None:
        self._opened.set()

    def put(self, key: str, *parts: bytes | memoryview) -> None:
        if key == self._held:
            self.in_time = self._opened.wait(DEADLINE_SECONDS)
        super().put(key, *parts)


class Full(MemoryStore):
    """A store that has no room for weights of a step after `step`."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self._last = step

    def put(self, key: str, *parts: bytes | memoryview) -> None:
        checkpoint = Checkpoint.named(key.partition("/")[0])
        if checkpoint and checkpoint.step > self._last:
            raise StoreError(f"{key}: there is no room")
        super().put(key, *parts)


class OpensAfter(Silent):
    def __init__(self, store: Gated, step: int) -> None:
        self._store, self._step = store, step

    def on_step(self, row: StepMetrics) -> None:
        if row.step == self._step:
            self._store.open()


def compared(done: Finished) -> list[dict[str, object]]:
    """Give the rows, less what clocks measured."""
    lines = [line for file in (done.attempt.steps, done.attempt.validations) for line in file.read_text().splitlines()]
    return [{name: value for name, value in json.loads(line).items() if name not in CLOCKS} for line in lines]


def built(kind: type[T]) -> T:
    return kind.build(Setup(model=ToyOptions(), data={}, batch_size=32))


def guarded(done: Finished) -> list[tuple[int | None, object]]:
    return [(event.step, event.detail["reason"]) for event in done.run.read_events() if event.kind == "guard"]


def test_training_goes_on_while_a_checkpoint_is_written_and_the_file_holds_the_weights_of_its_step(
    tmp_path: Path,
) -> None:
    told = settings(keep_last=10)
    at_once = MemoryStore()
    run_loop(toy(), told, tmp_path / "at_once", store=at_once)
    store = Gated(10)
    run_loop(
        toy(), settings(keep_last=10, background=True), tmp_path / "beside", store=store, watcher=OpensAfter(store, 15)
    )
    assert store.in_time
    key = f"{Checkpoint(10, 1).name}/model.safetensors"
    assert store.get(key) == at_once.get(key)


def test_rows_are_those_of_a_run_that_saves_at_once(tmp_path: Path) -> None:
    one = run_loop(toy(), settings(checkpoint_every=7), tmp_path / "at_once")
    other = run_loop(toy(), settings(checkpoint_every=7, background=True), tmp_path / "beside")
    assert compared(one) == compared(other)
    assert one.checkpoints.candidates() == other.checkpoints.candidates()
    assert sorted(one.kinds()) == sorted(other.kinds())


def test_a_validation_is_on_record_before_its_checkpoint_counts(tmp_path: Path) -> None:
    class Ordered(MemoryStore):
        def put(self, key: str, *parts: bytes | memoryview) -> None:
            if key.endswith(MANIFEST):
                rows = next(tmp_path.glob("*/attempts/1/validations.jsonl")).read_text(encoding="utf-8")
                assert f'"{key.partition("/")[0]}"' in rows
            super().put(key, *parts)

    done = run_loop(toy(), settings(background=True), tmp_path, store=Ordered())
    assert len(done.checkpoints.committed()) == 4


@pytest.mark.parametrize("step", [0, 10, 20])
def test_a_write_that_fails_beside_training_is_told_as_one_that_fails_at_once(step: int, tmp_path: Path) -> None:
    store = Full(step)
    with pytest.raises(StoreError, match="there is no room"):
        run_loop(toy(), settings(background=True), tmp_path, store=store)
    folders = {Checkpoint.named(key.partition("/")[0]) for key in list(store.keys())}
    assert max(found.step for found in folders if found) == step


def test_a_gate_that_does_not_hold_ends_the_run_once_its_validation_is_on_record(tmp_path: Path) -> None:
    store = Gated(10)
    reasons = iter([None, "GATE-X: too high"])
    done = run_loop(
        toy(),
        settings(background=True),
        tmp_path,
        store=store,
        watcher=OpensAfter(store, 12),
        judge=lambda: next(reasons),
    )
    assert (done.ended.outcome, done.ended.why) == (Outcome.ABORTED, "GATE-X: too high")
    assert 13 <= done.ended.step <= 20
    assert [event.step for event in done.run.read_events() if event.kind == "guard"] == [10]


def test_a_run_that_its_gate_ends_takes_no_validation_after_the_one_that_the_gate_judged(tmp_path: Path) -> None:
    store = Gated(10)
    reasons = iter([None, "GATE-X: too high", "GATE-X: higher"])
    done = run_loop(
        toy(),
        settings(background=True),
        tmp_path,
        store=store,
        watcher=OpensAfter(store, 19),
        judge=lambda: next(reasons),
    )
    assert (done.ended.outcome, done.ended.why) == (Outcome.ABORTED, "GATE-X: too high")
    assert [row.step for row in done.run.read_validations()] == [0, 10]
    assert guarded(done) == [(10, "GATE-X: too high")]


def test_a_validation_that_ends_the_run_is_not_taken_for_the_one_still_written(tmp_path: Path) -> None:
    store, judged = Gated(10), list[None]()
    diverging = built(Scripted)
    diverging.script = [1.0, 0.5, 5.0]
    done = run_loop(
        diverging,
        settings(background=True),
        tmp_path,
        store=store,
        watcher=OpensAfter(store, 19),
        judge=lambda: judged.append(None),
    )
    assert done.ended.outcome is Outcome.ABORTED
    assert guarded(done) == [(20, done.ended.why)]
    assert len(judged) == 2, "the validations of steps 0 and 10"


def test_a_number_that_is_not_finite_is_told_once_though_a_validation_is_still_written(tmp_path: Path) -> None:
    store = Gated(10)
    done = run_loop(
        toy(nan_at_step=12), settings(background=True), tmp_path, store=store, watcher=OpensAfter(store, 12)
    )
    assert done.ended.outcome is Outcome.ABORTED
    assert guarded(done) == [(12, done.ended.why)]
    assert Checkpoint(10, 1) in done.checkpoints.candidates()


def test_a_save_counts_though_the_next_step_fails(tmp_path: Path) -> None:
    store = Gated(10)

    class Failing(Toy):
        def forward(self, batch: Samples) -> Tensor:
            if self.step == 12:
                store.open()
                raise RuntimeError("the user's own mistake")
            return super().forward(batch)

    with pytest.raises(RuntimeError, match="own mistake"):
        run_loop(built(Failing), settings(background=True), tmp_path, store=store)
    assert Checkpoint(10, 1) in Checkpoints(store).candidates()
