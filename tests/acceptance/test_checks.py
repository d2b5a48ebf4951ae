"""`check`, `verify-resume` and `determinism` as a user types them: what each prints, records, and exits with."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.acceptance import harness
from trainwright import yamlfile
from trainwright.evidence import verify
from trainwright.metrics import read_checks
from trainwright.promises import PROMISES

CONTRACT = "training-loop-pretrain-v1"
CUDA = torch.cuda.is_available()
TRIED = len(PROMISES) if CUDA else len(PROMISES) - 1


def run_yaml(folder: Path, **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.yaml").write_text(yamlfile.dump(harness.config(**{"contract": CONTRACT, **changes})))
    return folder


def test_check_of_a_class_tells_each_promise_and_counts_them(tmp_path: Path) -> None:
    completed = harness.command(tmp_path, "check", "tests.toys:Toy", "--model", "hidden=4")
    assert completed.code == 0, completed.err
    *lines, last = completed.out.splitlines()
    assert [line.split()[0] for line in lines] == list(PROMISES)
    told = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines}
    assert told.pop("cuda") == ("holds" if CUDA else "not tried: no CUDA device")
    assert set(told.values()) == {"holds"}
    assert last == f"{TRIED} promises, 0 broken"
    assert not (tmp_path / "runs").exists(), "without a contract nothing is recorded"


def test_check_of_a_liar_says_what_is_broken_and_exits_3(tmp_path: Path) -> None:
    completed = harness.command(tmp_path, "check", "tests.liars_of_promises:KeepsGradients")
    assert completed.code == 3
    [line] = [line for line in completed.out.splitlines() if "BROKEN" in line]
    assert re.fullmatch(
        r"zero_grad +BROKEN: the gradient of layers\.0\.weight is up to \S+ after zero_grad, expected None or zeros",
        line,
    )
    assert completed.out.splitlines()[-1] == f"{TRIED} promises, 1 broken"


def test_check_of_a_run_under_contract_records_accumulation_and_judges_it(tmp_path: Path) -> None:
    completed = harness.command(run_yaml(tmp_path), "check", "run.yaml", "--json")
    assert completed.code == 0, completed.err
    told = json.loads(completed.out)
    assert (told["target"], told["device"], told["broken"]) == ("run.yaml", "cpu", 0)
    assert [promise["name"] for promise in told["promises"]] == list(PROMISES)
    assert [(verdict["gate"], verdict["result"]) for verdict in told["verdicts"]] == [("GATE-TRAIN-ACCUMULATE", "pass")]
    assert verify(tmp_path / told["record"]) == []
    [row] = read_checks(tmp_path / told["record"] / "checks.jsonl")
    assert (row["name"], row["batch_size"], row["micro_batches"], row["updates"]) == ("accumulation", 8, 4, 3)


def test_check_refuses_an_option_that_the_model_does_not_have(tmp_path: Path) -> None:
    completed = harness.command(tmp_path, "check", "tests.toys:Toy", "--model", "hiden=4")
    assert (completed.code, completed.out) == (2, "")
    assert completed.err.startswith(
        "error: argument 'model.hiden=4': unknown key 'model.hiden'; did you mean 'hidden'?"
    )


def test_check_refuses_a_device_that_is_not_there(tmp_path: Path) -> None:
    completed = harness.command(tmp_path, "check", "tests.toys:Toy", "--device", "cuda:15")
    assert (completed.code, completed.out) == (5, "")


def test_determinism_shows_the_drift_of_as_many_runs_as_were_asked_for(tmp_path: Path) -> None:
    folder = run_yaml(tmp_path, validate={"every": 50}, checkpoint={"keep_last": 1})
    completed = harness.command(folder, "determinism", "run.yaml", "--runs", "3")
    assert completed.code == 0, completed.err
    header, figures = completed.out.splitlines()[:2]
    assert re.split(" {2,}", header.strip())[-1] == "least cosine of the weights"
    assert figures.split() == ["3", "100", "0", "0", "1"]
    assert "GATE-TRAIN-006" in completed.out
    assert "GATE-TRAIN-DRIFT" in completed.out
    assert len(list((folder / "runs").glob("*/run.yaml"))) == 4


def test_one_cut_that_is_equal_is_shown_and_is_no_proof(tmp_path: Path) -> None:
    """The processes are those that a user would start, one by one; the gate asks for three cuts."""
    completed = harness.command(run_yaml(tmp_path), "verify-resume", "run.yaml", "--steps", "6", "--cuts", "1")
    assert completed.code == 3, completed.err
    header, line = completed.out.splitlines()[:2]
    assert re.split(" {2,}", header) == ["cut", "killed after row", "resumed from", "beside the uncut run"]
    assert re.fullmatch(r"2 +[2-5] +step-\d{8}\.a1 +equal *", line)
    assert re.search(r"GATE-TRAIN-RESUME +fail", completed.out)
    assert completed.err.count("\n") == 2


@pytest.mark.long
def test_four_cuts_of_a_language_model_are_equal_to_the_uncut_run(tmp_path: Path) -> None:
    values = harness.language_model(harness.token_shards(tmp_path / "shards"), contract=CONTRACT)
    (tmp_path / "run.yaml").write_text(yamlfile.dump(values))
    completed = harness.command(tmp_path, "verify-resume", "run.yaml", "--json")
    assert completed.code == 0, completed.err
    told = json.loads(completed.out)
    assert [(cut["is_equal"], cut["attempts"]) for cut in told["cuts"]] == [(True, 2)] * 4
    assert [(verdict["gate"], verdict["result"]) for verdict in told["verdicts"]] == [("GATE-TRAIN-RESUME", "pass")]
    assert verify(tmp_path / told["record"]) == []
