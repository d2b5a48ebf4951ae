"""Statuses: each computed from the contract's file and the evidence beside it, and from nothing that was typed."""

import datetime as dt
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.attached import EQUAL, FINITE, ON_CUDA, QUICK, TEXT, WHOLE, contract_file, sealed_run
from trainwright.attachments import attach
from trainwright.contract.links import sha256_of_folder
from trainwright.contract.load import load_contract, parse_contract, shipped_contracts
from trainwright.contract.schema import EvidenceEntry
from trainwright.contract.validate import Problem, validate
from trainwright.errors import InputError
from trainwright.files import sha256_of_bytes
from trainwright.rundir import EVIDENCE, EVIDENCE_SHA256, RunDirectory
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


def entry_of(file: Path, gate: str = QUICK) -> EvidenceEntry:
    (found,) = [entry for entry in load_contract(file).entry.evidence if entry.gate == gate]
    return found


def hashed_anew(file: Path, gate: str = QUICK) -> None:
    """Give the entry of a gate the hash that its folder has now."""
    digest = sha256_of_folder(file.parent / entry_of(file, gate).folder)
    rewritten(file, lambda data: [one.update(sha256=digest) for one in data["evidence"] if one["gate"] == gate])


def restated(file: Path, text: str) -> None:
    """Put another statement into the folder of a gate, and compute every hash for it."""
    folder = file.parent / entry_of(file).folder
    (folder / EVIDENCE).write_text(text)
    (folder / EVIDENCE_SHA256).write_text(f"{sha256_of_bytes(text.encode())}  {EVIDENCE}\n")
    hashed_anew(file)


def forged(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the statement in the folder of a gate, and compute every hash for it."""
    statement = json.loads((file.parent / entry_of(file).folder / EVIDENCE).read_text())
    change(statement)
    restated(file, json.dumps(statement))


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
    entry = entry_of(file)
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
    entry = entry_of(file)
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
    folder = file.parent / entry_of(file).folder
    rows = "".join(f'{{"step":{step},"wall_ms":1e-3}}\n' for step in range(5, 10))
    for text, told in ((rows, "figures median_ms"), (rows.replace("1e-3", "7e4"), "its rows give fail")):
        (folder / "steps.jsonl").write_text(text)
        hashed_anew(file)
        assert errors(file) == []
        found = of(file)
        assert found.status == STALE
        assert told in found.blocks[0]


def test_evidence_of_another_run_does_not_count(file: Path) -> None:
    rewritten(file, lambda data: [one.update(run="another-run") for one in data["evidence"]])
    assert of(file).status == STALE
    assert "and the contract says another-run" in of(file).blocks[0]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"device": "NVIDIA H200"}, "its device is cpu, and the contract says NVIDIA H200"),
        ({"date": dt.date(2099, 1, 1)}, "and the contract says 2099-01-01"),
        ({"signed_by": "0" * 64}, f"is the key None, and the contract says that {'0' * 64} signed"),
    ],
    ids=str,
)
def test_what_is_typed_in_an_entry_and_not_in_the_statement_does_not_count(
    file: Path, change: dict[str, Any], told: str
) -> None:
    rewritten(file, lambda data: [one.update(change) for one in data["evidence"]])
    assert of(file).status == STALE
    assert told in of(file).blocks[0]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"_type": "nonsense"}, "is of another type: nonsense"),
        ({"predicateType": "nonsense"}, "is of another type: "),
        ({"subject": []}, "seals no contract.yaml, environment.json, result.json"),
    ],
    ids=str,
)
def test_a_statement_that_was_made_by_hand_does_not_count(file: Path, change: dict[str, Any], told: str) -> None:
    forged(file, lambda statement: statement.update(change))
    assert of(file).status == STALE
    assert told in of(file).blocks[0]


def test_a_statement_under_another_contract_or_device_than_the_rows_does_not_count(file: Path) -> None:
    forged(file, lambda statement: statement["predicate"]["contract"].update(id="other-v1"))
    assert "its contract is other-v1, and the contract says demo-v1" in of(file).blocks[0]
    forged(file, lambda statement: statement["predicate"]["contract"].update(id="demo-v1"))
    assert of(file).status == ACTIVE
    forged(file, lambda statement: statement["predicate"]["environment"].update(device="cuda"))
    assert "environment.jsonl: its device is cpu, sealed is cuda" in of(file).blocks[0]


def test_samples_of_a_device_that_were_not_sealed_do_not_count(file: Path) -> None:
    (file.parent / entry_of(file).folder / "devices.csv").write_text("time\n")
    hashed_anew(file)
    assert "devices.csv: is not as it was sealed" in of(file).blocks[0]


def test_a_broken_entry_does_not_hide_the_one_that_stands_nor_is_shown_for_it(file: Path) -> None:
    def twice(data: dict[str, Any]) -> None:
        standing = next(one for one in data["evidence"] if one["gate"] == QUICK)
        data["evidence"].append({**standing, "sha256": "0" * 64, "date": dt.date(2099, 1, 1), "device": "NVIDIA B200"})

    rewritten(file, twice)
    found = of(file)
    assert found.evidence is not None
    assert (found.status, found.evidence.device) == (ACTIVE, "cpu")


def test_evidence_of_another_gate_does_not_count(file: Path) -> None:
    """The folder of one gate under the name of another: of the same run, whose statement has both verdicts."""
    target = file.parent / entry_of(file, FINITE).folder
    shutil.rmtree(target)
    shutil.copytree(file.parent / entry_of(file).folder, target)
    hashed_anew(file, FINITE)
    assert errors(file) == []
    assert (of(file, FINITE).status, of(file, FINITE).figure, of(file).status) == (STALE, "", ACTIVE)
    assert "its rows give no_evidence" in of(file, FINITE).blocks[0]


def test_evidence_of_a_run_that_has_no_verdict_of_the_gate_does_not_count(file: Path) -> None:
    def forge(statement: dict[str, Any]) -> None:
        said = statement["predicate"]
        said["verdicts"] = [verdict for verdict in said["verdicts"] if verdict["gate"] != QUICK]

    forged(file, forge)
    assert f"has no verdict of {QUICK}" in of(file).blocks[0]


def test_a_statement_that_is_none_is_told_as_stale_and_no_crash(file: Path) -> None:
    deep = '{"predicate": {"environment": {"a": ' + "[" * 100_000
    for text in ("{}", "[]", "", deep):
        restated(file, text)
        found = of(file)
        assert (found.status, found.figure) == (STALE, "")
        assert "evidence.json: is no evidence of a run: " in found.blocks[0]


def test_a_statement_that_is_missing_is_told_as_stale_and_no_crash(file: Path) -> None:
    (file.parent / entry_of(file).folder / EVIDENCE).unlink()
    hashed_anew(file)
    assert of(file).status == STALE
    assert "evidence.json" in of(file).blocks[0]


def test_a_verdict_that_names_no_gate_is_told_as_stale_and_no_crash(file: Path) -> None:
    forged(file, lambda statement: statement["predicate"]["verdicts"][0].pop("gate"))
    assert of(file).status == STALE
    assert "a verdict in it names no gate" in of(file).blocks[0]


@pytest.mark.parametrize("figures", [None, [1], {"median_ms": "1"}, {}])
def test_figures_that_were_not_measured_are_told_as_stale_and_no_crash(file: Path, figures: Any) -> None:
    verdict = {"gate": QUICK, "result": "pass", "rows": 5, "figures": figures}
    forged(file, lambda statement: statement["predicate"].update(verdicts=[verdict]))
    assert (of(file).status, of(file).figure) == (STALE, "")
    assert f"{QUICK} figures" in of(file).blocks[0]


def link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


@pytest.mark.parametrize("make", [link, os.mkfifo, Path.mkdir])
def test_what_is_no_regular_file_in_a_folder_is_refused_and_never_opened(
    file: Path, make: Callable[[Path], None]
) -> None:
    folder = entry_of(file).folder
    make(file.parent / folder / "checks.jsonl")
    told = f"{folder}: checks.jsonl is no regular file; evidence is plain files, side by side"
    assert of(file).blocks[0] == f"stale: {told}"
    assert [problem.text for problem in errors(file)] == [told]


@pytest.mark.parametrize("part", range(3))
def test_a_symbolic_link_on_the_way_to_a_folder_is_refused(file: Path, tmp_path: Path, part: int) -> None:
    folder = entry_of(file).folder
    name = "/".join(folder.split("/")[: part + 1])
    (file.parent / name).rename(tmp_path / "elsewhere")
    (file.parent / name).symlink_to(tmp_path / "elsewhere")
    told = f"{folder}: {name} is a symbolic link; put the folder itself there"
    assert of(file).blocks[0] == f"stale: {told}"
    assert told in [problem.text for problem in errors(file)]


def test_a_statement_with_another_byte_in_it_is_found_by_its_seal(file: Path) -> None:
    statement = file.parent / entry_of(file).folder / EVIDENCE
    statement.write_text(statement.read_text().replace('"python"', '"Python"', 1))
    hashed_anew(file)
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
    text = file.read_text().replace(f"- {{gate: {QUICK},", "- {gate: GATE-DEMO-099,")
    file.write_text(text.replace(f"evidence/{QUICK}/", "evidence/GATE-DEMO-099/"))
    (file.parent / "evidence" / QUICK).rename(file.parent / "evidence" / "GATE-DEMO-099")
    (problem,) = errors(file)
    assert problem.text == "GATE-DEMO-099 is no gate of this contract"
    assert "GATE-DEMO-099" in file.read_text().splitlines()[problem.line - 1]


def test_a_contract_with_evidence_is_read_where_no_folder_lies(file: Path) -> None:
    contract = parse_contract(file.read_text(), "contract.yaml")
    assert len(contract.entry.evidence) == 3


@pytest.mark.parametrize(
    "folder",
    [
        *("/etc", "evidence/../..", "evidence/GATE-DEMO-003/../../x", "../evidence/GATE-X-1/a"),
        *(f"evidence/{WHOLE}/..", f"evidence/{WHOLE}/a/b", f"evidence/{WHOLE}/.a", f"evidence/{WHOLE}/a\n"),
    ],
)
def test_evidence_lies_beside_its_contract_and_nowhere_else(file: Path, folder: str) -> None:
    rewritten(file, lambda data: data["evidence"][0].update(folder=folder))
    with pytest.raises(InputError, match=r"evidence\.0\.folder"):
        statuses_of(file)


def test_a_folder_of_another_gate_is_refused(file: Path) -> None:
    folder = entry_of(file).folder
    rewritten(file, lambda data: data["evidence"][0].update(folder=folder))
    with pytest.raises(InputError, match=rf"evidence\.0\.folder: expected a folder of {WHOLE}"):
        statuses_of(file)
    assert any("evidence.0.folder" in problem.text for problem in errors(file))


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


# -- what is shipped -------------------------------------------------------------------------------------------------

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def shipped() -> dict[str, list[GateStatus]]:
    return {file.stem: statuses_of(file) for file in contract_files([])}


def test_the_demo_is_attached_as_live_evidence_on_a_cpu(shipped: dict[str, list[GateStatus]]) -> None:
    found = {one.gate: one for one in shipped["training-loop-pretrain-v1"]}
    for gate in ("GATE-TRAIN-001", "GATE-TRAIN-003", "GATE-TRAIN-APPLIED", "GATE-TRAIN-006", "GATE-TRAIN-RESUME"):
        evidence = found[gate].evidence
        assert found[gate].status == ACTIVE, found[gate].blocks
        assert evidence is not None
        assert evidence.run.startswith("python-lm-")
        assert evidence.device == "cpu"


def test_no_shipped_gate_is_stale_or_unproven(shipped: dict[str, list[GateStatus]]) -> None:
    assert [one for statuses in shipped.values() for one in statuses if one.status in {STALE, PROPOSED}] == []


def test_the_readme_tells_the_tally_that_is_computed(shipped: dict[str, list[GateStatus]]) -> None:
    counted = tally([one for statuses in shipped.values() for one in statuses])
    told = " ".join((ROOT / "README.md").read_text().split())
    active, partial = counted.by_status["active_with_live_evidence"], counted.by_status["partial_algorithm_level"]
    assert f"of {counted.gates} gates {active} are `active_with_live_evidence`" in told
    assert f"{partial} are `partial_algorithm_level`" in told


def test_make_demo_attaches_nothing() -> None:
    command = ["make", "--dry-run", "--always-make", "demo"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "trainwright train" in done.stdout
    assert "attach" not in done.stdout
