"""The commands as a user types them: what each prints, where, and that it is nothing else."""

import json
import os
import pty
import random
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.acceptance import harness
from trainwright import yamlfile
from trainwright.cli import verdicts
from trainwright.config import RunConfig
from trainwright.device import AUTO_NOTICE, cuda_devices
from trainwright.jsonfile import read_json, write_json
from trainwright.outcome import Outcome
from trainwright.rundir import RunDirectory
from trainwright.runs import RunResult

CONTRACT = "training-loop-pretrain-v1"
OTHER_CONTRACT = """
id: other
version: 1.0.0
title: Another contract
purpose: one bound that these runs do not hold
changelog:
  - {version: 1.0.0, date: 2026-01-01, changes: [first]}
metrics:
  - {name: step, unit: count, since: 1.0.0, meaning: number of the update}
gates:
  - id: GATE-OTHER-001
    claim: the run ends by step 5
    rows: steps
    figures: {last: max(step)}
    holds: last <= 5
    fixtures: {good: [{steps: {step: 5}}], bad: [{steps: {step: 6}}]}
"""


def run_yaml(folder: Path, **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.yaml").write_text(yamlfile.dump(harness.config(**{"train__steps": 12, **changes})))
    return folder


def ok(folder: Path, *arguments: object) -> str:
    completed = harness.command(folder, *arguments)
    assert completed.code == 0, completed.err
    return completed.out


def document(text: str) -> Any:
    """Give the one JSON document that a text is, to its end."""
    assert text.endswith("\n")
    return json.loads(text)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with a prepared data set (`shards`, of characters) and a trained language model's run (`runs`)."""
    folder = tmp_path_factory.mktemp("corpus")
    draw = random.Random(1)
    words = ("".join(draw.choice("dfgklmn") + draw.choice("aeiou") for _ in range(3)) for _ in range(5000))
    (folder / "text.txt").write_text("def f(x): " + " ".join(words))
    prepare = ["data", "prepare", "--input", "text.txt", "--tokenizer", "characters", "--split", "tail"]
    told = document(ok(folder, *prepare, "--out", "shards", "--json"))
    assert told["tokens"]["train"] > told["tokens"]["validation"] > 0
    values = harness.language_model(
        folder / "shards", contract=CONTRACT, train__target="unigram_entropy", model__preset=None
    )
    (folder / "run.yaml").write_text(yamlfile.dump(values))
    ok(folder, "train", "run.yaml")
    return folder


@pytest.fixture(scope="module")
def lm(corpus: Path) -> RunDirectory:
    return harness.only_run(corpus / "runs")


# -- train -----------------------------------------------------------------------------------------------------------


def test_json_is_one_document_on_stdout_and_every_notice_goes_elsewhere(tmp_path: Path) -> None:
    folder = run_yaml(tmp_path, device="auto", train__steps=25)
    completed = harness.command(folder, "train", "run.yaml", "--json")
    assert completed.code == 0
    told, run = document(completed.out), harness.only_run(folder / "runs")
    assert told == {"directory": f"runs/{run.id}", **read_json(run.result)}
    notices = [] if cuda_devices()[0] else [AUTO_NOTICE]
    events = ["wrapped_data at step 10: epoch 1", "wrapped_data at step 20: epoch 2"]
    assert completed.err.splitlines() == [*notices, *events], "no line of progress"


def test_json_of_a_run_that_was_refused_is_nothing_and_the_error_goes_to_stderr(tmp_path: Path) -> None:
    completed = harness.command(run_yaml(tmp_path, model__hiden=3), "train", "run.yaml", "--json")
    assert (completed.code, completed.out) == (2, "")
    assert completed.err.startswith("error: ")


def test_json_of_a_run_that_was_aborted_is_still_one_document(tmp_path: Path) -> None:
    completed = harness.command(run_yaml(tmp_path, model__nan_at_step=5), "train", "run.yaml", "--json")
    assert completed.code == 4
    told = document(completed.out)
    assert (told["outcome"], told["exit_code"], told["step"]) == ("aborted", 4, 5)


def test_the_document_of_a_run_whose_result_could_not_be_written_tells_how_it_ended(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    ended = {"outcome": "store_failed", "exit_code": 7, "why": "No space left on device", "step": 5}
    result = RunResult(Outcome.STORE_FAILED, "No space left on device", run, [], 5, None)
    assert verdicts.document(result) == {"directory": str(tmp_path), **ended}
    write_json(run.result, {"outcome": "terminated", "exit_code": 143, "why": "stopped", "step": 3, "attempts": 1})
    assert verdicts.document(result) == {"directory": str(tmp_path), "attempts": 1, **ended}


def test_progress_goes_to_stderr_in_whole_lines_where_there_is_no_terminal(tmp_path: Path) -> None:
    completed = harness.command(run_yaml(tmp_path, device="auto", train__steps=25), "train", "run.yaml")
    *others, last = completed.err.splitlines()
    assert "\r" not in completed.err + completed.out
    assert "\x1b" not in completed.err + completed.out
    assert last.startswith("step 25/25 · loss ")
    assert [line for line in others if line.startswith("step ")] == [], "a run of a moment has one line of progress"
    assert "wrapped_data at step 20: epoch 2" in others
    run = harness.only_run(tmp_path / "runs")
    assert completed.out.splitlines() == [
        "done (exit 0): budget of 25 steps reached",
        f"run runs/{run.id}",
        f"report runs/{run.id}/report.html",
    ]


def test_on_a_terminal_a_line_is_kept_alive(tmp_path: Path) -> None:
    folder = run_yaml(tmp_path, train__steps=1_000_000, train__seconds=0.6, validate__every=100_000)
    ours, theirs = pty.openpty()
    child = harness.start(train_on_terminal, folder, os.ttyname(theirs))
    harness.until((folder / "out").exists, child)  # the terminal lives while someone has it open
    os.close(theirs)
    shown = b""
    while part := read(ours):
        shown += part
    os.close(ours)
    assert harness.finish(child) == 0
    lines = shown.decode().split("\r")
    assert sum("step " in line and "/1000000 · loss" in line for line in lines) >= 2
    assert "ETA" in shown.decode()
    assert (folder / "out").read_text().startswith("done (exit 0): budget of 0.6 seconds reached")


def read(descriptor: int) -> bytes:
    """Read what a terminal shows; nothing once its last writer is gone."""
    try:
        return os.read(descriptor, 65_536)
    except OSError:
        return b""


def train_on_terminal(folder: Path, terminal: str) -> int:
    os.chdir(folder)
    os.environ["TERM"] = "xterm"
    os.dup2(os.open(terminal, os.O_RDWR), 2)
    os.dup2(os.open("out", os.O_WRONLY | os.O_CREAT), 1)
    return harness.command_here(["train", "run.yaml"])


def test_arguments_win_over_the_file(tmp_path: Path) -> None:
    folder = run_yaml(tmp_path)
    ok(folder, "train", "run.yaml", "train.steps=4", "optimizer.betas=[0.8, 0.9]", "name=mine", "--runs-dir", "there")
    run = harness.only_run(folder / "there")
    resolved = RunConfig.load(run.config)
    assert run.id.startswith("mine-")
    assert (resolved.train.steps, resolved.optimizer.betas) == (4, (0.8, 0.9))
    assert len(run.read_steps()) == 4


def test_the_table_of_verdicts_ends_a_run_under_contract(corpus: Path, lm: RunDirectory) -> None:
    shown = ok(corpus, "gates", lm.id)
    assert shown.splitlines()[0].split() == ["gate", "result", "claim", "why"]
    verdicts = read_json(lm.result)["verdicts"]
    rows, _, closing = shown.partition("\nnot decided here: ")
    for verdict in verdicts:
        assert verdict["gate"] in (rows if verdict["kind"] == "run" else closing)
    passed = [verdict["gate"] for verdict in verdicts if verdict["result"] == "pass"]
    assert re.findall(r"^(\S+) +pass  ", rows, re.MULTILINE) == passed


def test_init_takes_weights_of_a_run_that_is_named_by_its_id(tmp_path: Path) -> None:
    folder = run_yaml(tmp_path)
    first = document(ok(folder, "train", "run.yaml", "--json", "--runs-dir", "there"))
    second = document(
        ok(folder, "train", "run.yaml", "--json", "--runs-dir", "there", "--init", first["run"], "train.steps=1")
    )
    begun = RunDirectory(folder / second["directory"])
    assert begun.read_validations()[0].value == RunDirectory(folder / first["directory"]).read_validations()[-1].value


# -- resume ----------------------------------------------------------------------------------------------------------


def test_latest_is_the_newest_run_and_a_resume_of_it_with_more_steps_is_its_child(tmp_path: Path) -> None:
    folder = run_yaml(tmp_path)
    first = document(ok(folder, "train", "run.yaml", "--json"))
    second = document(ok(folder, "train", "run.yaml", "--json"))
    child = document(ok(folder, "resume", "latest", "train.steps=20", "--json"))
    assert (child["parent"], child["step"]) == (second["run"], 20)
    assert document(ok(folder, "runs", "show", "latest", "--json"))["run"] == child["run"]
    assert {first["run"], second["run"], child["run"]} == harness.run_ids(folder / "runs")


def test_resume_of_a_finished_run_is_refused_in_one_message(corpus: Path, lm: RunDirectory) -> None:
    with harness.left_as_it_was(lm.path):
        completed = harness.command(corpus, "resume", lm.id)
    assert (completed.code, completed.out) == (2, "")
    assert completed.err.startswith(f"error: {lm.id}: has ended (done: ")
    assert completed.err.count("\n") == 1


# -- what reads ------------------------------------------------------------------------------------------------------


def test_config_prints_what_reads_back_as_the_same_run(tmp_path: Path) -> None:
    folder = run_yaml(tmp_path, train={"steps": 3, "mode": "finetune", "threads": 1})
    printed = ok(folder, "config", "run.yaml", "seed=5")
    (folder / "printed.yaml").write_text(printed)
    again, given = RunConfig.load(folder / "printed.yaml"), RunConfig.load(folder / "run.yaml", ["seed=5"])
    assert again.sha256() == given.resolved().sha256() != given.sha256()
    assert "# learning_rate: set by train.mode finetune" in printed
    assert document(ok(folder, "config", "run.yaml", "seed=5", "--json")) == given.resolved().to_dict()
    assert not (folder / "runs").exists()


def test_gates_judge_again_from_the_files_in_another_process(corpus: Path, lm: RunDirectory) -> None:
    with harness.left_as_it_was(lm.path):
        assert document(ok(corpus, "gates", lm.id, "--json")) == read_json(lm.result)["verdicts"]


def test_gates_of_a_copy_elsewhere_are_the_same(lm: RunDirectory, tmp_path: Path) -> None:
    shutil.copytree(lm.path, tmp_path / "copy")
    assert document(ok(tmp_path, "gates", "copy", "--json")) == read_json(lm.result)["verdicts"]


def test_gates_judge_by_another_contract_and_leave_the_run_as_it_was(corpus: Path, lm: RunDirectory) -> None:
    (corpus / "other.yaml").write_text(OTHER_CONTRACT)
    with harness.left_as_it_was(lm.path):
        completed = harness.command(corpus, "gates", lm.id, "--contract", "other.yaml", "--json")
    [verdict] = document(completed.out)
    assert completed.code == 3
    assert (verdict["gate"], verdict["result"]) == ("GATE-OTHER-001", "fail")
    assert verdict["figures"] == {"last": len(lm.read_steps()) - 1}


def test_a_number_that_was_changed_on_disk_is_judged_as_it_now_stands(lm: RunDirectory, tmp_path: Path) -> None:
    """The verdicts of result.json count for nothing: the rows are judged."""
    copy = RunDirectory(Path(shutil.copytree(lm.path, tmp_path / "copy")))
    rows = copy.attempts()[0].steps.read_text().splitlines(keepends=True)
    copy.attempts()[0].steps.write_text("".join(rows[:30] + rows[31:]))
    completed = harness.command(tmp_path, "gates", "copy", "--json")
    failed = {verdict["gate"] for verdict in document(completed.out) if verdict["result"] == "fail"}
    assert completed.code == 3
    assert "GATE-TRAIN-001" in failed


def test_report_writes_the_page_again_and_prints_where(lm: RunDirectory, tmp_path: Path) -> None:
    copy = RunDirectory(Path(shutil.copytree(lm.path, tmp_path / "copy")))
    copy.report.unlink()
    assert ok(tmp_path, "report", "copy") == "copy/report.html\n"
    assert copy.report.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize("words", [("gates",), ("gates", "--json"), ("report",), ("runs", "show", "--json")])
def test_a_torn_last_row_is_told_on_stderr_by_whoever_reads(
    words: Sequence[str], lm: RunDirectory, tmp_path: Path
) -> None:
    copy = RunDirectory(Path(shutil.copytree(lm.path, tmp_path / "copy")))
    with copy.attempts()[0].events.open("ab") as file:
        file.write(b'{"time": "2026')
    completed = harness.command(tmp_path, *words, "copy")
    assert completed.code == 0
    assert completed.err == "copy/attempts/1/events.jsonl: ends in a torn row, which is left out\n"


def test_a_gate_over_pairs_says_which_command_decides_it(corpus: Path, lm: RunDirectory) -> None:
    closing = " ".join(ok(corpus, "gates", lm.id).split("not decided here: ")[1].split())
    assert closing.startswith("GATE-TRAIN-006, ")
    assert "; decided by trainwright determinism FILE, " in closing


def test_runs_are_listed_and_shown(corpus: Path, lm: RunDirectory) -> None:
    listed = document(ok(corpus, "runs", "ls", "--json"))
    assert [(run["run"], run["state"], run["step"]) for run in listed["runs"]] == [(lm.id, "done", 60)]
    shown = ok(corpus, "runs", "show", lm.id)
    assert "step-00000060.a1" in shown
    assert "GATE-TRAIN-EXHAUST" in shown
    assert lm.id in ok(corpus, "runs", "ls")


def test_version_is_told_with_the_build_and_the_devices(tmp_path: Path) -> None:
    told = document(ok(tmp_path, "version", "--json"))
    assert told["torch"] == torch.__version__
    assert told["cuda_build"] == torch.version.cuda
    assert (told["cuda_devices"], told["cuda_devices_source"]) == cuda_devices()
    assert ok(tmp_path, "version") == f"trainwright {told['trainwright']}\n"


# -- before and after a run ------------------------------------------------------------------------------------------


def test_init_prints_a_starting_file_that_config_accepts(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(ok(tmp_path, "init", "lm"))
    assert RunConfig.load(tmp_path / "run.yaml").model.type == "lm"
    assert "type: lm" in ok(tmp_path, "config", "run.yaml")
    completed = harness.command(tmp_path, "init", "ml")
    assert (completed.code, completed.out) == (2, "")
    assert "did you mean 'lm'?" in completed.err


def test_plan_tells_what_a_run_will_need_and_trains_nothing(corpus: Path, lm: RunDirectory) -> None:
    with harness.left_as_it_was(corpus / "runs"):
        told = document(ok(corpus, "plan", "run.yaml", "--json"))
        shown = ok(corpus, "plan", "run.yaml")
    parameters = read_json(lm.environment)["parameters"]
    assert told["memory"]["parameters"] == parameters
    assert f"parameters   {parameters:,}" in shown


def test_sample_continues_a_prompt_and_equal_seeds_give_equal_text(corpus: Path, lm: RunDirectory) -> None:
    words = ["sample", lm.id, "--prompt", "def f", "--max-tokens", "12"]
    text = ok(corpus, *words, "--seed", "3")
    assert text.startswith("def f")
    assert len(text) > len("def f\n")
    assert ok(corpus, *words, "--seed", "3") == text
    assert len({ok(corpus, *words, "--seed", seed) for seed in (4, 5)} | {text}) > 1


def test_export_writes_a_folder_for_other_tools_and_prints_it(corpus: Path, lm: RunDirectory, tmp_path: Path) -> None:
    assert ok(corpus, "export", lm.id, "--format", "hf", "--out", tmp_path / "hf") == f"{tmp_path / 'hf'}\n"
    assert {"config.json", "model.safetensors", "trainwright.json"} <= {
        path.name for path in (tmp_path / "hf").iterdir()
    }
    assert read_json(tmp_path / "hf" / "trainwright.json")["run"] == lm.id


# -- all of them -----------------------------------------------------------------------------------------------------

ALONE = [
    "train",
    "resume",
    "check",
    "verify-resume",
    "determinism",
    "probe",
    "gates",
    "report",
    "config",
    "version",
    "init",
    "plan",
    "sample",
    "export",
    "evaluate",
    "doctor",
    "data",
    "runs",
    "checkpoints",
    "models",
    "contract",
    "evidence",
]
COMMANDS: Sequence[Sequence[str]] = [
    [],
    *([word] for word in ALONE),
    ["data", "prepare"],
    ["runs", "ls"],
    ["runs", "show"],
    ["checkpoints", "ls"],
    ["checkpoints", "verify"],
    ["checkpoints", "pull"],
    ["checkpoints", "gc"],
    ["checkpoints", "sync"],
    ["contract", "diff"],
    ["contract", "validate"],
    ["contract", "status"],
    ["models", "ls"],
    ["models", "show"],
    ["models", "register"],
    ["models", "diff"],
    ["models", "alias"],
    ["models", "tag"],
    ["models", "note"],
    ["models", "verify"],
    ["models", "pull"],
    ["models", "delete"],
    ["models", "export"],
    ["models", "audit"],
    ["models", "migrate"],
    ["evidence", "verify"],
    ["evidence", "keygen"],
    ["evidence", "attach"],
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_a_help_page(words: Sequence[str], tmp_path: Path) -> None:
    text = ok(tmp_path, *words, "--help")
    assert f"Usage: trainwright {' '.join(words)}".strip() in text
    assert text == ok(tmp_path, *words, "-h")


def test_the_help_page_names_every_command(tmp_path: Path) -> None:
    text = ok(tmp_path, "--help")
    assert sorted(re.findall(r"^\W* ([a-z][a-z-]*)  ", text, re.MULTILINE)) == sorted(ALONE)


@pytest.mark.parametrize(
    "words",
    [
        ["train", "none.yaml"],
        ["config", "none.yaml"],
        ["plan", "none.yaml"],
        ["resume", "none"],
        ["gates", "none"],
        ["gates", "--steps", "none.jsonl", "--contract", CONTRACT],
        ["contract", "diff", CONTRACT, "none"],
        ["report", "none"],
        ["sample", "none"],
        ["export", "none", "--out", "out"],
        ["evaluate", "none"],
        ["runs", "show", "none"],
        ["init", "none"],
        ["data", "prepare", "--input", "none", "--out", "out"],
    ],
    ids=" ".join,
)
def test_an_error_is_one_message_on_stderr(words: Sequence[str], tmp_path: Path) -> None:
    completed = harness.command(tmp_path, *words)
    assert completed.code in {2, 6}
    assert completed.out == ""
    assert completed.err.startswith("error: ")
    assert completed.err.count("\n") == 1
    assert "none" in completed.err
    assert {path.name for path in tmp_path.iterdir()} == {".stdout", ".stderr"}
