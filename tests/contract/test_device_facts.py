"""The table `devices`, and what the gates over it say of a run's own files."""

from pathlib import Path
from typing import Any

import pytest

from tests.rows import row as step_row
from trainwright.contract.device_facts import devices_table
from trainwright.contract.facts import load_facts
from trainwright.contract.judge import Verdict, judge
from trainwright.contract.load import load_contract
from trainwright.contract.rules import TABLES
from trainwright.devices import COLUMNS, DeviceSample
from trainwright.jsonfile import write_json
from trainwright.metrics import Event
from trainwright.newruns import create_run
from trainwright.rundir import RunDirectory, Start

GPU_CONTRACT = load_contract("gpu-training-backend-v1")
UUID = "GPU-8f2c1d3e"
PID = 42
HEADER = (",".join(COLUMNS) + "\n").encode()


def time(seconds: float, minute: int = 0) -> str:
    return f"2026-11-30T12:{minute:02d}:{10 + seconds:06.3f}Z"


def row(moment: str, pid: int | None = PID, mib: float | None = 900.0) -> bytes:
    return DeviceSample(time=moment, uuid=UUID, index=0, pid=pid, used_mib=mib, utilisation_pct=93.0).encode()


def attempt(run: RunDirectory, step: int, *rows: bytes, first: str | None, pid: int = PID, **start: Any) -> None:
    """Write an attempt from `step` to 59 on a GPU, with these samples of it."""
    made = run.new_attempt()
    begin = Start(attempt=made.number, time=time(0), step=step, checkpoint=None, device="cuda:0", pid=pid, **start)
    write_json(made.start_file, begin)
    made.devices.write_bytes(b"".join((HEADER, *rows)))
    events = [Event(time=time(0), kind="started", step=step, attempt=made.number)]
    if first:
        events.append(Event(time=first, kind="first_step", step=step, attempt=made.number))
        written = range(step, 60)
        made.steps.write_bytes(b"".join(step_row(step=n, gpu_util_pct=n / 2, wall_ms=499.0).encode() for n in written))
    made.events.write_bytes(b"".join(event.encode() for event in events))


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = create_run("gpu", tmp_path, "name: gpu\n")
    write_json(run.environment, {"device": "cuda", "parameters": 372_600_000})
    return run


def verdicts(run: RunDirectory) -> dict[str, Verdict]:
    return {verdict.gate.rpartition("-")[2]: verdict for verdict in judge(GPU_CONTRACT, load_facts(run))}


def test_a_sample_stands_as_recorded_with_whose_it_is_and_when(run: RunDirectory) -> None:
    attempt(run, 0, row(time(-1.5)), row(time(0.5), pid=43), row(time(0.5), pid=None, mib=None), first=time(0))
    table = devices_table(run)
    assert set(table.column_names) == TABLES["devices"]
    assert table["seconds"].to_pylist() == [-1.5, 0.5, 0.5]
    assert table["own"].to_pylist() == [True, False, False]
    assert table["pid"].to_pylist() == [PID, 43, None]
    assert table["used_mib"].to_pylist() == [900.0, 900.0, None]
    assert table["attempt"].to_pylist() == [1, 1, 1]


def test_each_attempt_has_its_own_process_and_first_step(run: RunDirectory) -> None:
    attempt(run, 0, row(time(1)), first=time(0))
    attempt(run, 30, row(time(2, minute=5), pid=77), row(time(2, minute=5)), first=time(0, minute=5), pid=77)
    table = devices_table(run)
    assert table["seconds"].to_pylist() == [1.0, 2.0, 2.0]
    assert table["own"].to_pylist() == [True, True, False]
    assert verdicts(run)["003"].result == "pass"


def test_a_run_without_samples_has_the_columns_and_no_rows(run: RunDirectory) -> None:
    table = devices_table(run)
    assert (table.num_rows, {*table.column_names}) == (0, {*TABLES["devices"]})


def test_a_run_that_was_seen_in_time_on_a_quick_gpu_holds_every_gate(run: RunDirectory) -> None:
    attempt(run, 0, row(time(5.0)), first=time(0))
    found = verdicts(run)
    assert {name: found[name].result for name in ("003", "004", "UTIL")} == {
        "003": "pass",
        "004": "pass",
        "UTIL": "fail",
    }
    assert found["UTIL"].figures == {"median_pct": 19.75}
    assert found["UTIL"].on_fail == "warn"


@pytest.mark.parametrize(
    ("samples", "result"),
    [
        ([row(time(5.001))], "no_evidence"),
        ([row(time(0.5), pid=43), row(time(5.001))], "fail"),
        ([row(time(0.5), mib=0.0)], "fail"),
        ([row(time(0.5), mib=None)], "fail"),
        ([row(time(0.5), pid=None, mib=None)], "fail"),
        ([], "no_evidence"),
    ],
)
def test_a_run_that_was_not_seen_in_time_does_not_hold(run: RunDirectory, samples: list[bytes], result: str) -> None:
    attempt(run, 0, *samples, first=time(0))
    assert verdicts(run)["003"].result == result


def test_an_attempt_that_was_never_sampled_is_not_covered_by_another(run: RunDirectory) -> None:
    attempt(run, 0, row(time(1)), first=time(0))
    attempt(run, 30, first=time(0, minute=5))
    assert verdicts(run)["003"].result == "fail"


def test_an_attempt_that_took_no_step_need_not_be_seen(run: RunDirectory) -> None:
    attempt(run, 0, row(time(1)), first=time(0))
    attempt(run, 60, row(time(1), pid=43), first=None)
    assert devices_table(run)["seconds"].to_pylist() == [1.0, None]
    assert verdicts(run)["003"].result == "pass"


def test_on_a_cpu_none_of_it_applies(run: RunDirectory) -> None:
    write_json(run.environment, {"device": "cpu", "parameters": 372_600_000})
    assert {verdicts(run)[name].result for name in ("003", "004", "UTIL")} == {"not_applicable"}
    assert all(verdict.holds for verdict in verdicts(run).values() if verdict.kind == "run")


def test_the_step_budget_says_the_same_in_both_contracts() -> None:
    both = [
        gate.entry
        for contract in (GPU_CONTRACT, load_contract("training-loop-pretrain-v1"))
        for gate in contract.gates
        if gate.id == "GATE-GPUTRAIN-004"
    ]
    assert both == [both[0]] * 2
