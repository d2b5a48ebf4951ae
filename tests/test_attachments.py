"""Attaching a sealed run: what is copied, what is written into the contract, and what is refused. Runs are real."""

import datetime as dt
import difflib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.attached import EQUAL, FINITE, ON_CUDA, QUICK, TEXT, WHOLE, contract_file, sealed_run
from trainwright.attachments import Attachment, attach
from trainwright.checkrecords import record_checks
from trainwright.contract.links import sha256_of_folder
from trainwright.contract.load import load_contract
from trainwright.contract.validate import validate
from trainwright.devices import COLUMNS
from trainwright.errors import InputError
from trainwright.evidence import seal
from trainwright.evidencefolders import content_problem
from trainwright.jsonfile import read_json
from trainwright.metrics import read_checks
from trainwright.rundir import RunDirectory
from trainwright.seals import write_seal
from trainwright.signing import make_key
from trainwright.statement import value_differences

TODAY = dt.date(2026, 12, 1)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return sealed_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def aborted(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return sealed_run(tmp_path_factory.mktemp("aborted"), model__nan_at_step=10)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return contract_file(tmp_path / "contracts")


def folder_of(file: Path, gate: str, done: Attachment) -> Path:
    (entry,) = [entry for entry in done.entries if entry.gate == gate]
    return file.parent / entry.folder


def test_a_run_is_attached_to_each_gate_that_it_passes_and_the_others_say_why_not(
    run: RunDirectory, file: Path
) -> None:
    done = attach(run, file, today=TODAY)
    assert [entry.gate for entry in done.entries] == [WHOLE, FINITE, QUICK]
    assert done.refused.keys() == {ON_CUDA, EQUAL}
    assert done.refused[ON_CUDA].startswith("not applicable: applies to device cuda")
    assert done.refused[EQUAL].startswith("no evidence: not decided here: kind pair")
    assert done.problems == ()
    for entry in done.entries:
        assert (entry.run, entry.device) == (run.id, "cpu")
        assert entry.folder == f"evidence/{entry.gate}/{entry.date:%Y%m%d}-{run.id}"
        assert entry.sha256 == sha256_of_folder(file.parent / entry.folder)


def test_a_folder_holds_the_statement_its_seal_and_only_what_the_gate_reads(run: RunDirectory, file: Path) -> None:
    done = attach(run, file)
    folder = folder_of(file, QUICK, done)
    assert {path.name for path in folder.iterdir()} == {
        *("evidence.json", "evidence.sha256", "steps.jsonl", "environment.jsonl")
    }
    assert (folder / "evidence.json").read_bytes() == run.evidence.read_bytes()
    rows = run.read_steps()[5:10]
    assert read_checks(folder / "steps.jsonl") == [{"step": row.step, "wall_ms": row.wall_ms} for row in rows]
    assert read_checks(folder / "environment.jsonl") == [{"device": "cpu"}]
    whole = folder_of(file, WHOLE, done)
    assert read_checks(whole / "steps.jsonl") == [{"step": step} for step in range(12)]
    assert read_checks(whole / "environment.jsonl") == [{"steps_done": 12}]


def test_the_contract_gains_lines_and_a_patch_version_and_loses_nothing(run: RunDirectory, file: Path) -> None:
    done = attach(run, file, today=TODAY)
    text = file.read_text()
    diff = list(difflib.ndiff(TEXT.splitlines(), text.splitlines()))
    assert [line for line in diff if line.startswith("- ")] == ["- version: 1.2.3  # bumped by hand"]
    added = [line[2:] for line in diff if line.startswith("+ ")]
    assert added[:5] == [
        "version: 1.2.4  # bumped by hand",
        "  - version: 1.2.4",
        "    date: 2026-12-01",
        "    changes:",
        f'      - "evidence of run {run.id} for {WHOLE}, {FINITE}, {QUICK}"',
    ]
    assert added[5:7] == ["", "evidence:"]
    contract = load_contract(file)
    assert contract.entry.evidence == tuple(done.entries)
    assert contract.entry.changelog[0].date == TODAY


def test_a_second_run_is_added_below_the_first_and_the_same_one_is_refused(
    run: RunDirectory, aborted: RunDirectory, file: Path
) -> None:
    attach(run, file)
    file.write_text(file.read_text() + "\n# after the evidence\n")
    before = file.read_text()
    again = attach(run, file)
    assert again.entries == []
    assert (
        again.refused[WHOLE]
        == f"run {run.id} is attached to it already; to attach it anew, take its entry out of evidence"
    )
    assert file.read_text() == before
    second = attach(aborted, file)
    entries = load_contract(file).entry.evidence
    assert [entry.run for entry in entries] == [*[run.id] * 3, *[aborted.id] * len(second.entries)]
    assert load_contract(file).version == "1.2.5"
    assert file.read_text().endswith("\n\n# after the evidence\n")


def test_an_aborted_run_is_evidence_for_each_gate_that_it_satisfies_by_itself(
    aborted: RunDirectory, file: Path
) -> None:
    assert read_json(aborted.result)["exit_code"] == 4
    done = attach(aborted, file)
    assert [entry.gate for entry in done.entries] == [WHOLE, QUICK]
    assert done.refused[FINITE].startswith("fail: bad 1")


def test_a_number_that_is_not_finite_is_null_beside_its_name_in_valid_json(
    aborted: RunDirectory, tmp_path: Path
) -> None:
    """The gate reads whether losses are finite, of rows in which one is not."""
    text = TEXT.replace("holds: bad = 0", "holds: bad < 2").replace(
        "train_loss: [1.0, .nan]", "train_loss: [.nan, .nan]"
    )
    file = contract_file(tmp_path, text)
    values = {"contract": str(file), "model__nan_at_step": 10}
    run = sealed_run(tmp_path / "other", **values)
    folder = folder_of(file, FINITE, attach(run, file))
    rows = [json.loads(line, parse_constant=pytest.fail) for line in (folder / "steps.jsonl").read_text().splitlines()]
    assert rows[-1] == {"train_loss": None, "train_loss_nonfinite": "nan"}


def test_only_the_named_gates_are_taken_and_an_unknown_one_is_wrong_input(run: RunDirectory, file: Path) -> None:
    with pytest.raises(InputError, match=f"GATE-DEMO-099: is no gate of .*; its gates: {WHOLE}"):
        attach(run, file, gates=["GATE-DEMO-099"])
    assert file.read_text() == TEXT
    done = attach(run, file, gates=[QUICK])
    assert [entry.gate for entry in done.entries] == [QUICK]
    assert done.refused == {}


def test_a_run_whose_evidence_does_not_hold_is_refused_and_nothing_is_written(
    run: RunDirectory, file: Path, tmp_path: Path
) -> None:
    copy = RunDirectory(Path(shutil.copytree(run.path, tmp_path / run.id)))
    copy.steps.write_text(copy.steps.read_text().replace('"lr":', '"lr":1', 1))
    done = attach(copy, file)
    assert done.problems[0].startswith("steps.jsonl: was changed")
    assert done.entries == ()
    assert file.read_text() == TEXT
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize(
    ("old", "new"),
    [("holds: median_ms < 60000", "holds: median_ms < 59999.5"), ("59999.0, 59999.0", "59998.0, 59998.0")],
    ids=["bound", "fixture"],
)
def test_a_gate_that_differs_from_the_one_the_run_was_judged_under_is_refused(
    run: RunDirectory, tmp_path: Path, old: str, new: str
) -> None:
    file = contract_file(tmp_path, TEXT.replace(old, new))
    done = attach(run, file)
    assert done.refused[QUICK] == "it is not the gate that the run was judged under: its definition differs"
    assert [entry.gate for entry in done.entries] == [WHOLE, FINITE]


def test_a_default_that_is_written_out_changes_no_gate(run: RunDirectory, tmp_path: Path) -> None:
    file = contract_file(tmp_path, TEXT.replace("    unit: ms\n", "    unit: ms\n    judged: run_end\n    kind: run\n"))
    assert QUICK in [entry.gate for entry in attach(run, file).entries]


def test_a_record_of_checks_is_evidence_for_a_gate_over_pairs_on_the_day_of_its_id(tmp_path: Path, file: Path) -> None:
    rows = [{"name": "determinism", "compared_steps": 9, "equal_steps": 9}, {"name": "other", "compared_steps": 1}]
    environment = {"device_name": 'Test 9000: "fast"', "device": "cuda"}
    contract = load_contract(file)
    record = record_checks("pairs", tmp_path / "runs", contract, environment=environment, rows=rows).run
    done = attach(record, file)
    (entry,) = done.entries
    assert (entry.gate, entry.device, f"{entry.date:%Y%m%d}") == (EQUAL, 'Test 9000: "fast"', record.id.split("-")[1])
    kept = read_checks(folder_of(file, EQUAL, done) / "checks.jsonl")
    assert kept == [{"name": "determinism", "compared_steps": 9, "equal_steps": 9}]
    assert load_contract(file).entry.evidence == (entry,)


def test_samples_of_a_device_are_copied_as_they_were_recorded(run: RunDirectory, file: Path, tmp_path: Path) -> None:
    copy = RunDirectory(Path(shutil.copytree(run.path, tmp_path / run.id)))
    (copy.path / "attempts" / "1" / "devices.csv").write_text(",".join(COLUMNS) + "\n")
    seal(copy)
    done = attach(copy, file, gates=[WHOLE])
    assert done.problems == ()
    assert (folder_of(file, WHOLE, done) / "devices.csv").read_text() == ",".join(COLUMNS) + "\n"


def test_a_contract_in_another_layout_is_edited_or_refused_but_never_broken(run: RunDirectory, tmp_path: Path) -> None:
    for number, (old, new) in enumerate(
        [
            ("version: 1.2.3  #", "version: '1.2.3'  #"),
            ("# the end\n", "evidence: []\n"),
            ("changelog:\n  # newest first\n", "changelog:\n  # newest first, and\n\n"),
            ("# the end\n", "# no newline"),
            ("# What these toys must hold.\n", "---\n"),
        ]
    ):
        file = contract_file(tmp_path / str(number), TEXT.replace(old, new))
        before = file.read_text()
        if "evidence: []" in before:
            with pytest.raises(InputError, match=r"demo-v1.yaml:\d+: evidence: write it as a block"):
                attach(run, file)
            assert file.read_text() == before
        else:
            attach(run, file)
            assert load_contract(file).version == "1.2.4"
        assert [problem for problem in validate(file) if problem.severity == "error"] == []


def test_what_an_interrupted_attach_left_is_replaced(run: RunDirectory, file: Path) -> None:
    left = file.parent / "evidence" / WHOLE / f"{run.id.split('-')[1]}-{run.id}"
    left.mkdir(parents=True)
    (left / "half.tmp").write_text("x")
    folder = folder_of(file, WHOLE, attach(run, file))
    assert folder == left
    assert not (left / "half.tmp").exists()


def test_the_rows_that_were_copied_give_the_figures_that_were_sealed(run: RunDirectory, file: Path) -> None:
    """What `attach` checks before it writes: here from outside, by plain arithmetic over the copied rows."""
    folder = folder_of(file, QUICK, attach(run, file))
    times = sorted(row["wall_ms"] for row in read_checks(folder / "steps.jsonl"))
    verdicts: list[dict[str, Any]] = read_json(folder / "evidence.json")["predicate"]["verdicts"]
    (sealed,) = [verdict for verdict in verdicts if verdict["gate"] == QUICK]
    assert list(value_differences("", sealed["figures"], {"median_ms": times[2]})) == []
    assert sealed["sentence"].startswith(
        f"median_ms {times[2]:.6g} ms of 5 rows; required: median_ms < 60000; headroom "
    )


def test_a_signed_run_takes_its_public_key_along_and_is_checked_by_it(
    run: RunDirectory, file: Path, tmp_path: Path
) -> None:
    keys = make_key(tmp_path / "mine.pem")
    copy = RunDirectory(Path(shutil.copytree(run.path, tmp_path / run.id)))
    seal(copy, key=keys.private)
    assert attach(copy, file).problems[0].startswith("evidence.dsse.json: its signature was not checked")
    done = attach(copy, file, public=keys.public)
    folder = folder_of(file, WHOLE, done)
    assert {path.name for path in folder.iterdir()} >= {"evidence.json", "evidence.dsse.json", "evidence.pub"}
    assert (folder / "evidence.pub").read_bytes() == keys.public.read_bytes()
    (gate,) = [gate for gate in load_contract(file).gates if gate.id == WHOLE]
    (entry,) = [entry for entry in done.entries if entry.gate == WHOLE]
    assert entry.signed_by == keys.key_id
    assert content_problem(folder, entry, gate, "demo-v1") is None
    stranger = make_key(tmp_path / "other.pem")
    shutil.copyfile(stranger.public, folder / "evidence.pub")
    assert str(content_problem(folder, entry, gate, "demo-v1")).startswith("evidence.dsse.json: is signed by the key ")
    write_seal(folder, (folder / "evidence.json").read_bytes(), stranger.private)
    told = f"evidence.pub: is the key {stranger.key_id}, and the contract says that {keys.key_id} signed"
    assert content_problem(folder, entry, gate, "demo-v1") == told


def test_nothing_is_left_of_folders_when_the_contract_cannot_be_edited(run: RunDirectory, tmp_path: Path) -> None:
    file = contract_file(tmp_path, TEXT.replace("# the end\n", "evidence: []\n"))
    with pytest.raises(InputError, match="write it as a block"):
        attach(run, file)
    assert list(tmp_path.iterdir()) == [file]


def test_nothing_is_written_through_a_symbolic_link(run: RunDirectory, file: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (file.parent / "evidence").mkdir()
    (file.parent / "evidence" / FINITE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=f"evidence/{FINITE}: is a symbolic link"):
        attach(run, file)
    assert file.read_text() == TEXT
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert [path.name for path in (file.parent / "evidence").iterdir()] == [FINITE]
