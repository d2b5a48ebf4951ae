from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import asdict, replace

from tests.contract.facts_tables import facts
from trainwright.contract.judge import judge
from trainwright.contract.load import load_contract
from trainwright.device import check_grammar, cuda_devices
from trainwright.errors import InputError
from trainwright.metrics import encode_line, read_checks
from trainwright.probes import REFUSED, UNDERSTOOD, Check, Machine, probe

GPUS, _ = cuda_devices()


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return Machine(tmp_path_factory.mktemp("probe"))


def verdict_of(gate: str, rows: Sequence[Check], folder: Path) -> str:
    """Judge rows as they come back from their file."""
    file = folder / "checks.jsonl"
    file.write_bytes(b"".join(encode_line(asdict(row)) for row in rows))
    columns = {name: [row[name] for row in read_checks(file)] for name in Check.__struct_fields__}
    found = judge(load_contract("gpu-training-backend-v1"), facts(checks=columns), kinds={"probe"})
    return next(verdict.result for verdict in found if verdict.gate == gate)


def test_the_names_that_are_asked_are_those_of_the_grammar_and_others() -> None:
    assert [check_grammar(name) for name in UNDERSTOOD] == [*UNDERSTOOD]
    for name in REFUSED:
        with pytest.raises(InputError):
            check_grammar(name)


def test_a_name_outside_the_grammar_is_refused_and_one_of_it_is_read(machine: Machine, tmp_path: Path) -> None:
    rows = [machine.grammar("cuda:15", allowed=True), machine.grammar("cuda:16", allowed=False)]
    assert [row.exit_code for row in rows] == [0, 2]
    assert verdict_of("GATE-GPUTRAIN-001", rows, tmp_path) == "pass"
    lenient = [machine.grammar("cuda:14", allowed=False), *rows]
    assert verdict_of("GATE-GPUTRAIN-001", lenient, tmp_path) == "fail"


def test_gpus_that_are_not_there_are_refused_at_once_and_leave_nothing(machine: Machine, tmp_path: Path) -> None:
    rows = machine.no_fallback()
    assert (rows[0].device, rows[0].gpus_hidden) == ("cuda", True)
    assert {(row.exit_code, row.run_directories) for row in rows} == {(5, 0)}
    assert verdict_of("GATE-GPUTRAIN-002", [replace(row, seconds=2.0) for row in rows], tmp_path) == "pass"


def test_a_request_that_fell_back_is_seen_by_its_exit_code_and_its_run_directory(tmp_path: Path) -> None:
    quick = Check(name="no_fallback", device="cuda", exit_code=5, seconds=0.4, run_directories=0)
    assert verdict_of("GATE-GPUTRAIN-002", [quick], tmp_path) == "pass"
    for changed in (replace(quick, exit_code=0), replace(quick, run_directories=1), replace(quick, seconds=2.01)):
        assert verdict_of("GATE-GPUTRAIN-002", [changed], tmp_path) == "fail"


def test_the_version_tells_what_nvml_counts(machine: Machine, tmp_path: Path) -> None:
    row = machine.environment()
    assert (row.exit_code, row.devices_listed) == (0, row.nvml_devices)
    if GPUS == 0:
        assert (row.nvml_devices, str(row.devices_absent)[:6]) == (0, "NVML: ")
    assert verdict_of("GATE-GPUTRAIN-006", [row], tmp_path) == "pass"
    broken = Check(name="environment", exit_code=1, seconds=1.0, nvml_devices=0)
    assert verdict_of("GATE-GPUTRAIN-006", [broken], tmp_path) == "fail"


def test_a_contract_without_probes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no gate of kind probe"):
        probe("training-loop-pretrain-v1", runs_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []
