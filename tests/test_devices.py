import re
from pathlib import Path
from threading import Event
from threading import enumerate as enumerate_threads

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.gpus import UUID, FakeNvml
from trainwright.devices import COLUMNS, DeviceSample, Sampler, device_memory, read_devices, sample
from trainwright.errors import DataError
from trainwright.jsonfile import write_json
from trainwright.newruns import create_run
from trainwright.nvml import Process
from trainwright.rundir import RunDirectory, Start
from trainwright.timestamps import now

HEADER = "time,uuid,index,pid,process,used_mib,utilisation_pct,power_w,temperature_c"
TIME = "2026-11-30T12:00:00.000Z"
ROW = f"{TIME},{UUID},1,42,python,900.0,93.0,512.25,61.0"
MEASURED = st.none() | st.floats(min_value=0, max_value=1e9)
SAMPLES = st.builds(
    DeviceSample,
    time=st.just(TIME),
    uuid=st.just(UUID),
    index=st.integers(0, 15),
    pid=st.none() | st.integers(1, 2**22),
    process=st.none() | st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1),
    used_mib=MEASURED,
    utilisation_pct=MEASURED,
    power_w=MEASURED,
    temperature_c=MEASURED,
)


def sampled(nvml: FakeNvml, path: Path, patience_seconds: float = 10.0) -> list[str]:
    """Sample until the fake has been asked often enough; give what the sampler lost."""
    lost: list[str] = []
    sampler = Sampler(path, nvml, UUID, on_lost=lost.append, interval_seconds=0.0005, patience_seconds=patience_seconds)
    sampler.start()
    assert nvml.enough.wait(10)
    sampler.stop()
    return lost


def test_each_process_on_the_device_has_a_row_in_each_sample(tmp_path: Path) -> None:
    nvml = FakeNvml({UUID: [Process(42, "python", 900.0), Process(43, "x,server", None)]}, awaited=3)
    assert sampled(nvml, tmp_path / "devices.csv") == []
    lines = (tmp_path / "devices.csv").read_text().splitlines()
    assert lines[0] == HEADER == ",".join(COLUMNS)
    rows = read_devices(tmp_path / "devices.csv")
    assert [row.pid for row in rows] == [42, 43] * nvml.samples
    assert {(row.uuid, row.index, row.utilisation_pct, row.power_w, row.temperature_c) for row in rows} == {
        (UUID, 1, 93.0, 512.25, 61.0)
    }
    assert {(row.pid, row.process, row.used_mib) for row in rows} == {(42, "python", 900.0), (43, "x,server", None)}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z,.*", lines[1])


def test_a_device_without_processes_has_one_row_without_a_pid() -> None:
    [row] = sample(FakeNvml(), UUID, TIME)
    assert row.encode().decode() == f"{TIME},{UUID},1,,,,93.0,512.25,61.0\n"


def test_what_nvml_does_not_tell_is_an_empty_cell() -> None:
    nvml = FakeNvml({UUID: [Process(42, None, None)]}, utilisation=None, power=None, temperature=None)
    [row] = sample(nvml, UUID, TIME)
    assert row.encode().decode() == f"{TIME},{UUID},1,42,,,,,\n"


def test_the_last_sample_is_taken_when_the_attempt_ends(tmp_path: Path) -> None:
    nvml = FakeNvml({UUID: [Process(42, "python", 900.0)]})
    sampler = Sampler(tmp_path / "devices.csv", nvml, UUID, interval_seconds=3600)
    sampler.start()
    assert nvml.enough.wait(10)
    sampler.stop()
    assert len(read_devices(tmp_path / "devices.csv")) == nvml.samples == 2


def test_a_sampler_that_fails_says_so_once_and_ends_and_keeps_what_it_measured(tmp_path: Path) -> None:
    nvml = FakeNvml({UUID: [Process(42, "python", 900.0)]}, fails_after=2, awaited=3)
    assert sampled(nvml, tmp_path / "devices.csv") == ["NVML: GPU is lost"]
    assert len(read_devices(tmp_path / "devices.csv")) == 2
    assert nvml.samples == 3


def test_a_file_that_takes_no_rows_ends_the_sampler_with_the_reason(tmp_path: Path) -> None:
    nvml = FakeNvml(awaited=0)
    nvml.enough.set()
    [reason] = sampled(nvml, tmp_path / "none" / "devices.csv")
    assert "No such file" in reason
    assert nvml.samples == 0


def test_a_driver_that_does_not_answer_is_given_up_at_the_end_and_writes_nothing_after_it(tmp_path: Path) -> None:
    free = Event()

    class Hanging(FakeNvml):
        def power_w(self, uuid: str) -> float | None:
            self.enough.set()
            free.wait(10)
            return None

    assert sampled(Hanging(), tmp_path / "devices.csv", patience_seconds=0.01) == [
        "NVML did not answer for 0.01 s at the end"
    ]
    [thread] = [thread for thread in enumerate_threads() if thread.name == "trainwright-nvml"]
    free.set()
    thread.join(10)
    assert (tmp_path / "devices.csv").read_text() == f"{HEADER}\n"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(rows=st.lists(SAMPLES, max_size=3))
def test_what_is_written_is_what_is_read(rows: list[DeviceSample], tmp_path: Path) -> None:
    path = tmp_path / "devices.csv"
    path.write_bytes(f"{HEADER}\n".encode() + b"".join(row.encode() for row in rows))
    assert read_devices(path) == rows


def test_a_missing_file_has_no_rows_and_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "devices.csv"
    assert read_devices(path) == []
    path.write_text(f"{HEADER}\n{ROW}\n{ROW}")
    assert len(read_devices(path)) == 1
    path.write_text(HEADER)
    assert read_devices(path) == []


@pytest.mark.parametrize(
    "line",
    [
        ROW.replace(",42,", ",-42,"),
        ROW.replace(",42,", ",4_2,"),
        ROW.replace("900.0", "nan"),
        ROW.replace("900.0", "inf"),
        ROW.replace("900.0", "null"),
        ROW.replace("900.0", "-1.0"),
        ROW.replace("93.0", "９3"),
        ROW.replace(TIME, "2026-11-30T12:00:00Z"),
        ROW.replace(UUID, ""),
        ROW + ",7",
        ROW.rpartition(",")[0],
        ROW.replace("python", '"python'),
        "",
    ],
)
def test_a_broken_line_is_told_by_file_and_number(line: str, tmp_path: Path) -> None:
    path = tmp_path / "devices.csv"
    path.write_text(f"{HEADER}\n{ROW}\n{line}\n{ROW}\n")
    with pytest.raises(DataError, match=f"^{re.escape(str(path))}:3: is not a valid row: "):
        read_devices(path)


def test_another_header_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "devices.csv"
    path.write_text(f"{HEADER},more\n")
    with pytest.raises(DataError, match=":1: is not a valid row: expected the header time,uuid,"):
        read_devices(path)


def run_with(folder: Path, *lines: str) -> RunDirectory:
    run = create_run("gpu", folder, "")
    attempt = run.new_attempt()
    write_json(attempt.start_file, Start(attempt=1, time=now(), step=0, checkpoint=None, device="cuda:0", pid=42))
    attempt.devices.write_text("".join(f"{line}\n" for line in (HEADER, *lines)))
    return run


def test_the_memory_of_the_runs_own_process_is_summed_up(tmp_path: Path) -> None:
    others = [ROW.replace("900.0", "700.0"), ROW.replace("900.0", "1000.0"), ROW.replace(",42,", ",43,")]
    run = run_with(tmp_path, ROW, *others, ROW.replace("900.0", ""))
    assert device_memory(run) == {"rows": 3, "minimum": 700.0, "median": 900.0, "maximum": 1000.0}


def test_memory_that_was_never_measured_is_nothing(tmp_path: Path) -> None:
    assert device_memory(run_with(tmp_path, ROW.replace(",42,", ",43,"))) is None
    assert device_memory(RunDirectory(tmp_path / "none")) is None
