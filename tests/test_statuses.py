"""Statuses: each computed from the contract's file and the evidence beside it, and from nothing that was typed."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.attached import EQUAL, FINITE, ON_CUDA, QUICK, TEXT, WHOLE, contract_file, sealed_run
from trainwright.attachments import attach
from trainwright.contract.links import sha256_of_folder
from trainwright.contract.load import load_contract, parse_contract, shipped_contracts
from trainwright.contract.validate import Problem, validate
from trainwright.errors import InputError
from trainwright.rundir import RunDirectory
from trainwright.statuses import ADVICE, STATUSES, GateStatus, contract_files, statuses_of, tally

PARTIAL, ACTIVE, STALE, PROPOSED = "partial_algorithm_level", "active_with_live_evidence", "stale", "proposed"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return sealed_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def attached(run: RunDirectory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = contract_file(tmp_path_factory.mktemp("contracts"))
    attach(run, file)
    return file


@pytest.fixture
def file(attached: Path, tmp_path: Path) -> Path:
    """Give a copy of the contract with its evidence, to be changed."""
    return Path(shutil.copytree(attached.parent, tmp_path / "copy")) / attached.name


def of(file: Path, gate: str = QUICK) -> GateStatus:
    (found,) = [one for one in statuses_of(file) if one.gate == gate]
    return found


def errors(file: Path) -> list[Problem]:
    return [problem for problem in validate(file) if problem.severity == "error"]


def rewritten(file: Path, change: Any) -> None:
    """Change the contract as data and write it anew."""
    data = yaml.safe_load(file.read_text())
    change(data)
    file.write_text(yaml.safe_dump(data, sort_keys=False))


def test_a_gate_whose_fixtures_prove_it_waits_for_evidence(tmp_path: Path) -> None:
    found = {one.gate: one for one in statuses_of(contract_file(tmp_path))}
    assert {one.status for one in found.values()} == {PARTIAL}
    assert found[QUICK].blocks == (ADVICE, "evidence of a run on cpu is missing")
    assert found[ON_CUDA].blocks == (ADVICE, "evidence of a run on cuda is missing")
    assert found[EQUAL].blocks == (ADVICE,)
    assert found[QUICK].evidence is None


def test_a_gate_with_evidence_that_stands_is_active_and_shows_it(run: RunDirectory, attached: Path) -> None:
    found = {one.gate: one for one in statuses_of(attached)}
    assert [gate for gate, one in found.items() if one.status == ACTIVE] == [WHOLE, FINITE, QUICK]
    assert found[QUICK].evidence in load_contract(attached).entry.evidence
    assert found[QUICK].blocks == ()
    assert found[QUICK].figure.startswith("median_ms ")
    assert found[QUICK].figure.endswith(" ms (cpu)")
    assert validate(attached) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("good: [{steps: {train_loss: [1.0, 2.0]}}]", "good: [{steps: {train_loss: [1.0, .inf]}}]"),
        ("bad: [{steps: {train_loss: [1.0, .nan]}}]", "bad: [{steps: {train_loss: [1.0, 1.0]}}]"),
        ("holds: bad = 0", "holds: bad >= 0"),
    ],
    ids=["good fixture fails", "bad fixture passes", "constant rule"],
)
def test_a_gate_whose_fixtures_do_not_prove_it_is_proposed_whatever_its_evidence(
    file: Path, old: str, new: str
) -> None:
    assert of(file, FINITE).status == ACTIVE
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    found = of(file, FINITE)
    assert found.status == PROPOSED
    assert found.blocks


def test_any_byte_of_any_attached_file_that_was_changed_makes_the_gate_stale_and_is_an_error(file: Path) -> None:
    (entry,) = [entry for entry in load_contract(file).entry.evidence if entry.gate == QUICK]
    files = sorted((file.parent / entry.folder).iterdir())
    assert len(files) >= 4
    for changed in files:
        before = changed.read_bytes()
        changed.write_bytes(bytes([before[0] ^ 1]) + before[1:])
        found = of(file)
        assert (found.status, found.evidence) == (STALE, entry)
        assert found.blocks[0].startswith(f"stale: {entry.folder}: was changed: its SHA-256 is ")
        (problem,) = errors(file)
        assert problem.text.startswith(f"{entry.folder}: was changed")
        assert file.read_text().splitlines()[problem.line - 1].startswith(f"  - {{gate: {QUICK}")
        changed.write_bytes(before)
    assert of(file).status == ACTIVE


def test_a_file_that_was_added_or_a_folder_that_is_gone_makes_the_gate_stale_and_is_an_error(file: Path) -> None:
    (entry,) = [entry for entry in load_contract(file).entry.evidence if entry.gate == QUICK]
    folder = file.parent / entry.folder
    (folder / "more.txt").write_text("")
    assert of(file).status == STALE
    shutil.rmtree(folder)
    assert of(file).blocks[0] == f"stale: {entry.folder}: is no folder beside the contract"
    assert [problem.text for problem in errors(file)] == [f"{entry.folder}: is no folder beside the contract"]


@pytest.mark.parametrize(
    ("old", "new"),
    [("holds: median_ms < 60000", "holds: median_ms < 59999.5"), ("59999.0, 59999.0", "59998.0, 59998.0")],
    ids=["rule", "fixture"],
)
def test_a_gate_that_was_changed_since_is_stale_and_a_warning(file: Path, old: str, new: str) -> None:
    file.write_text(file.read_text().replace(old, new))
    found = of(file)
    assert found.status == STALE
    assert found.blocks[0].startswith("stale: the gate was changed since evidence of run toy-")
    assert found.blocks[1:] == (ADVICE, "evidence of a run on cpu is missing")
    (problem,) = validate(file)
    assert problem.severity == "warning"
    assert problem.text.startswith(f"{QUICK} was changed since this evidence was attached")
    assert of(file, WHOLE).status == ACTIVE


def test_rows_that_were_typed_with_every_hash_computed_anew_are_judged_and_found(file: Path) -> None:
    """Quicker rows than those that were sealed: the gate passes, and the figure is not the sealed one."""
    (entry,) = [entry for entry in load_contract(file).entry.evidence if entry.gate == QUICK]
    folder = file.parent / entry.folder
    rows = "".join(f'{{"step":{step},"wall_ms":1e-3}}\n' for step in range(5, 10))
    for text, told in ((rows, "figures median_ms"), (rows.replace("1e-3", "7e4"), "its rows give fail")):
        (folder / "steps.jsonl").write_text(text)
        digest = sha256_of_folder(folder)

        def change(data: dict[str, Any], digest: str = digest) -> None:
            for one in data["evidence"]:
                one["sha256"] = digest if one["gate"] == QUICK else one["sha256"]

        rewritten(file, change)
        assert errors(file) == []
        found = of(file)
        assert found.status == STALE
        assert told in found.blocks[0]


def test_evidence_of_another_gate_or_run_does_not_count(file: Path) -> None:
    def change(data: dict[str, Any]) -> None:
        for one in data["evidence"]:
            one["run"] = "another-run"

    rewritten(file, change)
    assert of(file).status == STALE
    assert "is not that of run another-run" in of(file).blocks[0]


def test_a_statement_with_another_byte_in_it_is_found_by_its_seal(file: Path) -> None:
    (entry,) = [entry for entry in load_contract(file).entry.evidence if entry.gate == QUICK]
    folder = file.parent / entry.folder
    statement = folder / "evidence.json"
    statement.write_text(statement.read_text().replace('"python"', '"Python"', 1))

    def change(data: dict[str, Any]) -> None:
        for one in data["evidence"]:
            one["sha256"] = sha256_of_folder(folder) if one["gate"] == QUICK else one["sha256"]

    rewritten(file, change)
    assert of(file).blocks[0] == "stale: evidence.json: its SHA-256 is not the one in evidence.sha256"


def test_one_entry_that_stands_is_enough_and_it_is_the_one_that_is_shown(file: Path, tmp_path: Path) -> None:
    second = sealed_run(tmp_path / "second")
    attach(second, file, gates=[QUICK])
    entries = [entry for entry in load_contract(file).entry.evidence if entry.gate == QUICK]
    assert of(file).evidence == entries[1]
    shutil.rmtree(file.parent / entries[1].folder)
    assert (of(file).status, of(file).evidence) == (ACTIVE, entries[0])
    shutil.rmtree(file.parent / entries[0].folder)
    assert (of(file).status, of(file).evidence) == (STALE, entries[1])


def test_a_typed_status_is_refused_at_the_contract_and_at_a_gate(tmp_path: Path) -> None:
    file = contract_file(tmp_path, TEXT.replace("purpose:", "status: active_with_live_evidence\npurpose:"))
    (problem,) = errors(file)
    assert (problem.line, problem.text) == (5, "statuses are computed, never typed; take it out")
    with pytest.raises(InputError, match="unknown key 'status'"):
        statuses_of(file)


def test_evidence_of_a_gate_that_is_not_there_is_an_error_at_its_line(file: Path) -> None:
    file.write_text(file.read_text().replace(f"- {{gate: {QUICK},", "- {gate: GATE-DEMO-099,"))
    (problem,) = errors(file)
    assert problem.text == "GATE-DEMO-099 is no gate of this contract"
    assert "GATE-DEMO-099" in file.read_text().splitlines()[problem.line - 1]


def test_a_contract_with_evidence_is_read_where_no_folder_lies(file: Path) -> None:
    contract = parse_contract(file.read_text(), "contract.yaml")
    assert len(contract.entry.evidence) == 3


@pytest.mark.parametrize(
    "folder", ["/etc", "evidence/../..", "evidence/GATE-DEMO-003/../../x", "../evidence/GATE-X-1/a"]
)
def test_evidence_lies_beside_its_contract_and_nowhere_else(file: Path, folder: str) -> None:
    rewritten(file, lambda data: data["evidence"][0].update(folder=folder))
    with pytest.raises(InputError, match=r"evidence\.0\.folder"):
        statuses_of(file)


def test_a_tally_counts_each_status_and_the_share_with_live_evidence(attached: Path) -> None:
    counted = tally(statuses_of(attached))
    assert counted.by_status == {PROPOSED: 0, PARTIAL: 2, ACTIVE: 3, STALE: 0}
    assert tuple(counted.by_status) == STATUSES
    assert (counted.gates, counted.live_percent) == (5, 60.0)
    assert tally([]).live_percent == 0


def test_contracts_are_those_shipped_or_named_or_in_a_folder(attached: Path, tmp_path: Path) -> None:
    assert [file.stem for file in contract_files([])] == shipped_contracts()
    assert contract_files([str(attached), str(attached.parent)]) == [attached]
    inside = contract_file(tmp_path / "project" / "contracts")
    assert contract_files([str(tmp_path / "project")]) == [inside]
    (tmp_path / "empty").mkdir()
    for place, told in (
        (tmp_path / "empty", "no contract lies there"),
        (tmp_path / "none", "is no file and no shipped"),
    ):
        with pytest.raises(InputError, match=told):
            contract_files([str(place)])
