"""Uploads beside training: one at a time, patient with a store that is down, and never in the training's way."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from tests.stores import Watched, checkpoints, content, new_run, save
from trainwright.checkpoints.memory import MemoryStore
from trainwright.errors import StoreError, StoreRefusedError, StoreUnavailableError
from trainwright.rundir import RunDirectory
from trainwright.telemetry import Telemetry
from trainwright.uploads import LONGEST_PAUSE_SECONDS, Backoff, Left, Uploader, probe, uploading

DEADLINE_SECONDS = 60.0


class Hand:
    """An uploader whose pauses are noted and not waited for; `upload` saves and waits until the thread rests again."""

    def __init__(self, run: RunDirectory, store: Watched) -> None:
        self.pauses: list[float] = []
        self.telemetry = Telemetry()
        self._resting = threading.Semaphore(0)
        self.uploader = Uploader(run, store, self.telemetry, wait=self._wait, draw=lambda: 1.0)
        assert self._resting.acquire(timeout=DEADLINE_SECONDS)

    def _wait(self, condition: threading.Condition, happened: Callable[[], bool], seconds: float | None) -> bool:
        if seconds is not None:
            self.pauses.append(seconds)
            return happened()
        if not happened():
            self._resting.release()
        return condition.wait_for(happened)

    def upload(self) -> None:
        self.uploader.saved()
        assert self._resting.acquire(timeout=DEADLINE_SECONDS)

    def close(self) -> Left | None:
        return self.uploader.close(DEADLINE_SECONDS)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return new_run(tmp_path)


@pytest.fixture
def store() -> Watched:
    return Watched(MemoryStore())


@pytest.fixture
def hand(run: RunDirectory, store: Watched) -> Iterator[Hand]:
    made = Hand(run, store)
    with closing(made):
        yield made


def failing(error: StoreError | Exception, times: int) -> Callable[[str, str], None]:
    """Give what fails so many syncs, each at its first call."""
    left = count()

    def fail(verb: str, _key: str) -> None:
        if verb == "keys" and next(left) < times:
            raise error

    return fail


def kinds(run: RunDirectory) -> list[str]:
    return [row.kind for row in run.read_after()]


def test_a_checkpoint_is_uploaded_counted_and_put_on_record(run: RunDirectory, store: Watched, hand: Hand) -> None:
    saved = save(run, 10)
    hand.upload()
    [row] = run.read_after()
    size = sum(path.stat().st_size for path in run.checkpoints.rglob("*") if path.is_file())
    assert (row.kind, row.detail["checkpoint"], row.detail["bytes"]) == ("uploaded", saved.name, size)
    assert hand.telemetry.uploads("uploaded") == 1
    assert hand.telemetry.registry.get_sample_value("trainwright_checkpoint_upload_bytes_total") == size
    assert hand.close() is None
    assert f"checkpoints/{saved.name}/manifest.json" in content(store.inner)


def test_a_store_that_is_down_is_tried_again_after_longer_and_longer_pauses(
    run: RunDirectory, store: Watched, hand: Hand
) -> None:
    store.before = failing(StoreUnavailableError("answers 500"), 9)
    save(run, 10)
    hand.upload()
    assert hand.pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, *[LONGEST_PAUSE_SECONDS] * 3]
    assert hand.telemetry.uploads("failed") == 9
    assert kinds(run) == ["upload_failed", "uploaded"], "the same failure is told once"
    assert hand.close() is None


def test_pauses_are_drawn_from_the_upper_half_and_begin_anew_after_a_success() -> None:
    draws = iter([0.0, 0.5, 1.0, 0.0])
    backoff = Backoff(lambda: next(draws))
    assert [backoff.next_seconds() for _ in range(3)] == [0.5, 1.5, 4.0]
    backoff.reset()
    assert backoff.next_seconds() == 0.5


def test_after_an_upload_that_worked_the_pauses_begin_anew(run: RunDirectory, store: Watched, hand: Hand) -> None:
    for step in (10, 20):
        store.before = failing(StoreUnavailableError("answers 500"), 3)
        save(run, step)
        hand.upload()
    assert hand.pauses == [1.0, 2.0, 4.0] * 2
    assert kinds(run) == ["upload_failed", "uploaded"] * 2


@pytest.mark.parametrize("error", [StoreRefusedError("wrong key"), StoreError("disk full"), ZeroDivisionError("bug")])
def test_any_other_failure_waits_for_the_next_save(
    run: RunDirectory, store: Watched, hand: Hand, error: Exception
) -> None:
    store.before = failing(error, 1)
    save(run, 10)
    hand.upload()
    assert (kinds(run), hand.pauses) == (["upload_failed"], [])
    assert str(error) in run.read_after()[0].detail["reason"]
    hand.upload()
    assert kinds(run) == ["upload_failed", "uploaded"]
    assert hand.close() is None


def test_a_run_that_was_taken_up_elsewhere_is_not_uploaded_any_more(run: RunDirectory, store: Watched) -> None:
    store.inner.put("attempts/1/start.json", b"{}")
    uploader = Uploader(run, store)
    save(run, 10)
    uploader.saved()
    left = uploader.close(DEADLINE_SECONDS)
    assert left is not None
    assert "was taken up elsewhere" in left.why
    assert left.checkpoints == ["step-00000010.a1"]
    assert kinds(run) == ["uploads_stopped", "uploads_pending"]
    assert store.written() == []
    uploader.saved()


def test_a_save_does_not_wait_for_an_upload_and_one_upload_at_most_is_in_flight(
    run: RunDirectory, store: Watched
) -> None:
    begun, go_on, threads = threading.Event(), threading.Event(), set()

    def hold(verb: str, _key: str) -> None:
        threads.add(threading.get_ident())
        if verb == "put_file":
            begun.set()
            assert go_on.wait(DEADLINE_SECONDS)

    store.before = hold
    uploader = Uploader(run, store)
    for step in range(1, 6):
        save(run, step)
        uploader.saved()
        assert begun.wait(DEADLINE_SECONDS)
    assert store.counts()["put_file"] == 1, "the first is held, and the others wait for it"
    go_on.set()
    assert uploader.close(DEADLINE_SECONDS) is None
    assert len(threads) == 1
    assert threads != {threading.get_ident()}
    assert sum(kind == "uploaded" for kind in kinds(run)) == 5


def test_an_end_that_is_told_as_a_sync_begins_ends_the_thread(run: RunDirectory, store: Watched) -> None:
    threads: list[threading.Thread] = []

    class Interrupted(threading.Condition):
        def __enter__(self) -> bool:
            if not threads:
                threads.append(threading.current_thread())
                uploader.close(0.0)
            return super().__enter__()

    def wait(condition: threading.Condition, happened: Callable[[], bool], seconds: float | None) -> bool:
        due = condition.wait_for(happened, seconds)
        condition.__class__ = Interrupted  # from its next use on: in the thread, once it knows that it is to sync
        return due

    uploader = Uploader(run, store, wait=wait)
    uploader.saved()
    while not threads:
        threading.Event().wait(0.001)
    threads[0].join(5.0)
    assert not threads[0].is_alive()


def test_a_checkpoint_that_stays_damaged_is_told_once(run: RunDirectory, store: Watched, hand: Hand) -> None:
    damaged = save(run, 10)
    (run.checkpoints / damaged.name / "state.json").write_bytes(b"{}")
    for step in (20, 30):
        save(run, step)
        hand.upload()
    assert kinds(run) == ["uploaded", "upload_failed", "uploaded"]


def test_an_end_waits_no_longer_than_its_deadline_and_tells_what_is_not_there(
    run: RunDirectory, store: Watched
) -> None:
    go_on = threading.Event()
    store.before = lambda _verb, _key: go_on.wait(DEADLINE_SECONDS)
    save(run, 10)
    clock = count(step=20)
    uploader = Uploader(run, store, now=lambda: float(next(clock)))
    left = uploader.close(50)
    assert left == Left(["step-00000010.a1"], "the last upload did not end within 50 seconds")
    assert kinds(run) == ["uploads_pending"]
    assert uploader.close(50, give_up=lambda: True) == left
    go_on.set()


def test_an_end_while_a_store_is_down_tries_once_more_and_tells_why_nothing_went_up(
    run: RunDirectory, store: Watched
) -> None:
    store.before = failing(StoreUnavailableError("no answer"), 10**9)
    save(run, 10)
    uploader = Uploader(run, store)
    assert uploader.close(DEADLINE_SECONDS) == Left(["step-00000010.a1"], "no answer")
    assert store.counts()["keys"] == 1
    store.before = lambda _verb, _key: None
    with uploading(run, store) as again:
        assert again.close(DEADLINE_SECONDS) is None


def test_what_retention_removed_on_its_way_up_is_counted_as_skipped(
    run: RunDirectory, store: Watched, hand: Hand
) -> None:
    removed = save(run, 10)

    def retire(_verb: str, key: str) -> None:
        if key.endswith("a1/model.safetensors"):
            store.before = lambda _verb, _key: None
            checkpoints(run).retire([removed])

    store.before = retire
    hand.upload()
    assert [hand.telemetry.uploads(outcome) for outcome in ("uploaded", "failed", "skipped")] == [0, 0, 1]
    assert hand.close() is None


def test_a_run_without_a_store_uploads_nothing(run: RunDirectory) -> None:
    with uploading(run, None) as uploads:
        uploads.saved()
        assert uploads.close() is None
    assert not run.after.exists()


def test_a_probe_leaves_nothing_tells_why_a_store_is_down_and_raises_what_it_refuses(store: Watched) -> None:
    assert probe(store) is None
    assert store.keys() == []
    store.before = lambda _verb, _key: raise_(StoreUnavailableError("no answer"))
    assert probe(store) == "no answer"
    store.before = lambda _verb, _key: raise_(StoreRefusedError("wrong key"))
    with pytest.raises(StoreRefusedError):
        probe(store)


def test_a_store_that_is_still_trying_counts_as_down(store: Watched) -> None:
    go_on = threading.Event()
    store.before = lambda _verb, _key: go_on.wait(DEADLINE_SECONDS)
    assert probe(store, 0.01) == "the store gave no answer within 0.01 seconds"
    go_on.set()


def raise_(error: Exception) -> None:
    raise error
