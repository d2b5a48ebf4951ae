"""The guard of residency and the gate that states the same, held against the same cases."""

import os
import threading
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.gpus import UUID, FakeNvml
from tests.loops import run_loop, settings
from tests.rows import row
from tests.toys import toy
from trainwright.contract.expressions import connect
from trainwright.contract.fixtures import facts_of_fixture
from trainwright.contract.judge import judge_gate
from trainwright.contract.load import load_contract
from trainwright.contract.readings import registered
from trainwright.devices import DeviceSample, is_resident, read_devices
from trainwright.newruns import create_run
from trainwright.nvml import Process
from trainwright.outcome import Outcome
from trainwright.recorder import Recorder, Silent
from trainwright.residency import HINT, ResidencyGuard, watched
from trainwright.rundir import Attempt, RunDirectory
from trainwright.sensors import NoSensor, Sensor

CUDA, CPU = torch.device("cuda:0"), torch.device("cpu")
PID = 42
[GATE] = [gate for gate in load_contract("gpu-training-backend-v1").gates if gate.id == "GATE-GPUTRAIN-003"]
FIXTURES = [*GATE.entry.fixtures.good, *GATE.entry.fixtures.bad]


def at(seconds: float) -> str:
    """Give a time of a record, as seconds after the first step."""
    moment = datetime(2026, 11, 30, 12, tzinfo=UTC) + timedelta(seconds=seconds)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seen(seconds: float, mib: float | None, pid: int | None = PID) -> DeviceSample:
    return DeviceSample(time=at(seconds), uuid=UUID, index=1, pid=pid, used_mib=mib)


def asked(guard_at: float, *rows: DeviceSample, lost: str = "", began: float | None = 0.0) -> str | None:
    """Ask a guard at a moment, when it has seen these rows."""
    guard = ResidencyGuard(PID, lambda: None if began is None else at(began), clock=lambda: at(guard_at))
    guard.saw(rows)
    if lost:
        guard.lost(lost)
    return guard()


# -- the rule --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "mib", "expected"),
    [
        (0.0, 0.25, True),
        (5.0, 0.25, True),
        (-5.0, 0.25, True),
        (5.001, 900.0, False),
        (-5.001, 900.0, False),
        (1.0, 0.0, False),
        (1.0, None, False),
    ],
)
def test_a_process_is_resident_with_memory_within_five_seconds(
    seconds: float, mib: float | None, expected: bool
) -> None:
    assert is_resident([(seconds, mib)]) is expected
    assert is_resident([(seconds, mib), (2.0, 1.0)]) is True


def _columns(table: dict[str, Any]) -> list[dict[str, Any]]:
    """Give the rows of a fixture's table."""
    length = max(len(value) for value in table.values() if isinstance(value, list))
    return [{k: v[n] if isinstance(v, list) else v for k, v in table.items()} for n in range(length)]


@pytest.mark.parametrize("fixture", FIXTURES, ids=map(str, range(len(FIXTURES))))
def test_the_guard_and_the_gate_agree_on_every_fixture(fixture: dict[str, dict[str, Any]]) -> None:
    facts = facts_of_fixture(fixture)
    with connect() as connection, registered(connection, facts):
        verdict = judge_gate(connection, GATE, facts)
    rows = _columns(fixture["devices"])
    attempts = range(1, fixture["events"]["kind"].count("first_step") + 1)
    stopped = [
        asked(
            7.01, *(seen(r["seconds"], r["used_mib"], PID if r["own"] else 43) for r in rows if r["attempt"] == attempt)
        )
        for attempt in attempts
    ]
    assert (verdict.result == "pass") is (stopped == [None] * len(stopped)), verdict.reason
    assert verdict.result in {"pass", "fail"}


# -- the guard -------------------------------------------------------------------------------------------------------


def test_before_the_first_step_nothing_is_asked() -> None:
    assert asked(1000.0, began=None) is None


def test_the_guard_waits_for_a_sample_that_was_taken_in_time() -> None:
    assert asked(7.0) is None
    assert asked(7.001) is not None


def test_a_run_that_was_seen_is_never_stopped_later() -> None:
    moments = iter([1.0, 1000.0])
    guard = ResidencyGuard(PID, lambda: at(0.0), clock=lambda: at(next(moments)))
    guard.saw([seen(0.5, 900.0)])
    assert guard() is None
    guard.saw([seen(1.5, 900.0)])
    guard.lost("NVML: GPU is lost")
    assert guard() is None
    assert guard._own == [(at(0.5), 900.0)], "nothing more is kept once it is settled"


def test_a_run_that_is_not_seen_is_told_who_is_there_and_how_a_container_shows_its_pids() -> None:
    reason = asked(8.0, seen(0.5, 900.0, pid=43), seen(0.5, None, pid=44))
    assert reason == (
        "process 42 was not seen with memory on the device within 5 s of its first step: processes there: 43, 44; "
        + HINT
    )
    assert "--pid=host" in HINT


def test_a_device_without_processes_is_told_as_that() -> None:
    assert "processes there: none" in (asked(8.0, seen(0.5, None, pid=None)) or "")


def test_a_driver_that_tells_no_memory_is_told_as_that() -> None:
    assert "tells no memory of its own" in (asked(8.0, seen(0.5, None)) or "")


def test_a_sampler_that_was_lost_before_the_run_was_seen_stops_it_with_the_reason() -> None:
    assert (asked(8.0, lost="NVML: GPU is lost") or "").endswith("its samples ended: NVML: GPU is lost")


# -- in an attempt ---------------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return create_run("gpu", tmp_path, "")


@pytest.fixture
def attempt(run: RunDirectory) -> Attempt:
    attempt = run.new_attempt()
    attempt.start_file.write_text('{"attempt":1,"time":"","step":0,"checkpoint":null}')
    return attempt


def test_on_a_cpu_there_is_no_file_and_no_thread_and_nothing_is_asked(attempt: Attempt) -> None:
    with closing(Recorder(attempt, Silent())) as recorder:
        before = threading.active_count()
        with watched(CPU, NoSensor("device cpu has no GPU utilisation"), attempt, recorder) as halt:
            assert threading.active_count() == before
            assert halt() is None
    assert not attempt.devices.exists()


def test_while_a_run_is_on_a_gpu_its_device_is_sampled_until_the_attempt_ends(
    attempt: Attempt, run: RunDirectory
) -> None:
    nvml = FakeNvml({UUID: [Process(os.getpid(), "python", 900.0)]})
    with closing(Recorder(attempt, Silent())) as recorder:
        with watched(CUDA, Sensor(nvml, UUID), attempt, recorder) as halt:
            assert [thread.name for thread in threading.enumerate() if thread.daemon].count("trainwright-nvml") == 1
            recorder.step(row(step=0))
            assert halt() is None
            assert nvml.enough.wait(10)
        assert "trainwright-nvml" not in [thread.name for thread in threading.enumerate()]
    assert [event.kind for event in run.read_events()] == ["first_step"]
    assert {row.pid for row in read_devices(attempt.devices)} == {os.getpid()}


def test_a_run_that_is_not_guarded_is_sampled_and_never_stopped(attempt: Attempt) -> None:
    nvml = FakeNvml({UUID: []})
    with (
        closing(Recorder(attempt, Silent())) as recorder,
        watched(CUDA, Sensor(nvml, UUID), attempt, recorder, guarded=False) as halt,
    ):
        assert not isinstance(halt, ResidencyGuard)
        assert halt() is None
    assert read_devices(attempt.devices)[-1].pid is None


def test_a_sampler_that_fails_leaves_an_event_and_the_attempt_goes_on(attempt: Attempt, run: RunDirectory) -> None:
    with closing(Recorder(attempt, Silent())) as recorder:
        with watched(CUDA, Sensor(FakeNvml(), "GPU-none"), attempt, recorder):
            pass
        with watched(CUDA, NoSensor("NVML: Driver Not Loaded"), attempt, recorder):
            pass
    assert [(event.kind, event.detail) for event in run.read_events()] == [
        ("sensor_lost", {"sensor": "devices", "reason": "NVML: Not Found"}),
        ("sensor_lost", {"sensor": "devices", "reason": "NVML: Driver Not Loaded"}),
    ]


def test_the_loop_asks_before_each_step_and_a_reason_aborts_the_run(tmp_path: Path) -> None:
    answers = iter([None, None, None, "not where it should be"])
    done = run_loop(toy(), settings(), tmp_path, halt=lambda: next(answers))
    assert (done.ended.outcome, done.ended.why, done.ended.step) == (Outcome.ABORTED, "not where it should be", 3)
    [guard] = [event for event in done.run.read_events() if event.kind == "guard"]
    assert guard.detail == {"guard": "residency", "action": "abort", "reason": "not where it should be"}


def test_the_first_row_of_an_attempt_leaves_its_time(tmp_path: Path) -> None:
    done = run_loop(toy(), settings(total_steps=3), tmp_path)
    [first] = [event for event in done.run.read_events() if event.kind == "first_step"]
    assert (first.step, first.attempt) == (0, 1)
