"""`runs ls` and `runs show`: true to the files, quick over many runs, never stopped by a damaged one."""

import json
import math
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
import torch

from trainwright.checkpoints.checkpoints import Checkpoints
from trainwright.checkpoints.open import open_store
from trainwright.cli.listing import print_run, print_runs
from trainwright.contract.judge import Verdict
from trainwright.errors import DataError, InputError
from trainwright.jsonfile import write_json
from trainwright.manifest import Stamp
from trainwright.metrics import StepMetrics, ValidationRow
from trainwright.newruns import create_run
from trainwright.recorder import Recorder, Silent
from trainwright.rundir import RunDirectory, Start
from trainwright.state import State
from trainwright.summaries import checkpoints_of, is_running

ENVIRONMENT = {"model_type": "toy", "device": "cpu", "device_name": "cpu", "parameters": 4225, "planned_steps": 10}
SECONDS = {"training": 1.0, "validation": 0.5, "checkpoint": 0.1, "elapsed": 1.7}
HOLDS_THE_RUN = """
import sys
from pathlib import Path
from trainwright.rundir import RunDirectory
with RunDirectory(Path(sys.argv[1])).locked():
    print("held", flush=True)
    sys.stdin.read()
"""


def new_run(base: Path, name: str = "run") -> RunDirectory:
    run = create_run(name, base, "name: run\n")
    write_json(run.environment, ENVIRONMENT)
    return run


def attempt(run: RunDirectory, losses: list[float], *, start: int = 0, minute: int = 0) -> None:
    made = run.new_attempt()
    time = f"2026-11-30T10:{minute:02}:00.000Z"
    write_json(made.start_file, Start(attempt=made.number, time=time, step=start, checkpoint=None))
    with closing(Recorder(made, Silent())) as recorder:
        for step, loss in enumerate(losses, start):
            recorder.step(
                StepMetrics(
                    step=step,
                    train_loss=loss,
                    grad_norm=1.0,
                    lr=0.1,
                    tokens_per_sec=9.0,
                    gpu_util_pct=None,
                    wall_ms=1.0,
                )
            )
        recorder.validation(best_row(start + len(losses)))


def best_row(step: int) -> ValidationRow:
    return ValidationRow(
        step=step,
        epoch=0,
        metric="val_loss",
        value=1.5,
        n=10,
        standard_error=math.nan,
        best=1.5,
        is_best=True,
        patience=0,
        train_loss_mean=None,
        tokens_seen=step,
        grad_norm_max=None,
        optimizer_state_sha256="0" * 64,
        wall_seconds=0.1,
        checkpoint="step-00000010.a1",
    )


def finish(
    run: RunDirectory,
    outcome: str = "done",
    exit_code: int = 0,
    best: float | None = 1.5,
    verdicts: Sequence[Verdict | dict[str, str]] = (),
) -> None:
    result = {"outcome": outcome, "exit_code": exit_code, "why": "budget reached", "step": 10, "best_validation": best}
    write_json(run.result, {**result, "seconds": SECONDS, "attempts": len(run.attempts()), "verdicts": verdicts})


def save(run: RunDirectory, *steps: int) -> Checkpoints:
    checkpoints = Checkpoints(open_store(run.checkpoints))
    stamp = Stamp(run=run.id, attempt=1, model_type="toy", config_sha256="0" * 64)
    for step in steps:
        state: State = {"model.weight": torch.full((100,), float(step)), "loop": {"step": step}}
        checkpoints.write(state, step=step, stamp=stamp, time="2026-11-30T10:00:00.000Z").commit()
    return checkpoints


def states(run: RunDirectory) -> list[str]:
    return [checkpoint.state for checkpoint in checkpoints_of(run)]


def document(capfd: pytest.CaptureFixture[str]) -> Any:
    """Give stdout as the one JSON document that it must be, no NaN in it."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(capfd.readouterr().out, parse_constant=refuse)


def listed(base: Path, capfd: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    print_runs(base, json=True)
    runs: list[dict[str, Any]] = document(capfd)["runs"]
    return runs


def test_runs_are_listed_newest_first_with_their_outcome(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for minute, outcome in enumerate(("done", "gate_failed", "aborted")):
        run = new_run(tmp_path, outcome)
        attempt(run, [2.0] * 10, minute=minute)
        finish(run, outcome)
    runs = listed(tmp_path, capfd)
    assert [run["state"] for run in runs] == ["aborted", "gate_failed", "done"]
    assert {key: runs[0][key] for key in ("step", "planned_steps", "best_validation", "model_type", "device")} == {
        "step": 10,
        "planned_steps": 10,
        "best_validation": 1.5,
        "model_type": "toy",
        "device": "cpu",
    }
    print_runs(tmp_path, json=False)
    assert re.search(r"gate failed +10/10 +1\.5 +toy +cpu", capfd.readouterr().out)


def test_no_run_is_one_line_for_people_and_an_empty_list_for_programs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    print_runs(tmp_path / "none", json=False)
    assert "no runs below" in capfd.readouterr().out
    assert listed(tmp_path / "none", capfd) == []


def test_a_run_is_running_only_while_another_process_holds_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = new_run(tmp_path)
    attempt(run, [2.0] * 3)
    assert listed(tmp_path, capfd)[0]["state"] == "unfinished"
    command = [sys.executable, "-c", HOLDS_THE_RUN, str(run.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == "held\n"
        assert listed(tmp_path, capfd)[0]["state"] == "running"
        holder.kill()
        holder.wait()
    assert listed(tmp_path, capfd)[0]["state"] == "unfinished"


def test_looking_at_a_run_does_not_keep_it(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    assert not is_running(run)
    with run.locked():
        assert is_running(run)
    with run.locked():
        pass


def test_an_unfinished_run_tells_the_step_that_its_checkpoints_prove(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = new_run(tmp_path)
    attempt(run, [2.0] * 8)
    save(run, 0, 5)
    [found] = listed(tmp_path, capfd)
    assert (found["step"], found["step_at_least"]) == (None, 5)


def test_a_stopped_run_that_was_taken_up_again_and_killed_is_unfinished(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = new_run(tmp_path)
    attempt(run, [2.0] * 3)
    finish(run, "terminated", 143)
    assert listed(tmp_path, capfd)[0]["state"] == "terminated"
    attempt(run, [2.0], start=3)
    assert listed(tmp_path, capfd)[0]["state"] == "unfinished"


@pytest.mark.parametrize("text", ["{", "[]", '{"outcome": 3}', "", '{"outcome": "won", "exit_code": 0}'])
def test_a_damaged_run_is_listed_with_its_reason_and_stops_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], text: str
) -> None:
    good, bad = new_run(tmp_path, "good"), new_run(tmp_path, "bad")
    for run in (good, bad):
        attempt(run, [2.0])
        finish(run)
    bad.result.write_text(text)
    found = {run["run"]: run for run in listed(tmp_path, capfd)}
    assert found[good.id]["state"] == "done"
    assert found[bad.id]["state"] == "damaged"
    assert "result.json" in found[bad.id]["reason"]
    print_runs(tmp_path, json=False)
    assert "damaged" in capfd.readouterr().out


def test_an_outcome_that_is_none_is_damage(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = new_run(tmp_path)
    finish(run, "won")
    [found] = listed(tmp_path, capfd)
    assert (found["state"], "'won' is no outcome" in found["reason"]) == ("damaged", True)


def test_numbers_that_are_not_finite_are_null_in_the_document(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = new_run(tmp_path)
    attempt(run, [2.0, math.nan])
    finish(run, best=None)
    assert listed(tmp_path, capfd)[0]["best_validation"] is None
    print_run(run, json=True)
    shown = document(capfd)
    assert (shown["last_row"]["train_loss"], shown["last_row"]["train_loss_nonfinite"]) == (None, "nan")
    assert shown["best_validation_row"]["standard_error"] is None


def test_a_thousand_runs_are_listed_without_reading_a_row(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for index in range(1000):
        path = tmp_path / f"run-{index:04}"
        (path / "attempts" / "1").mkdir(parents=True)
        (path / "run.yaml").write_text("name: run\n")
        (path / "environment.json").write_text(json.dumps(ENVIRONMENT))
        (path / "attempts/1/start.json").write_text(
            '{"attempt":1,"time":"2026-11-30T10:00:00.000Z","step":0,"checkpoint":null}'
        )
        (path / "attempts/1/steps.jsonl").write_text("not a row\n")
    began = perf_counter()
    runs = listed(tmp_path, capfd)
    assert perf_counter() - began < 5
    assert {run["state"] for run in runs} == {"unfinished"}
    assert len(runs) == 1000


def test_one_run_is_shown_with_all_that_its_files_say(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = new_run(tmp_path)
    attempt(run, [2.0] * 10)
    save(run, 5, 10)
    verdict = Verdict(
        gate="GATE-TEST-001",
        claim="steps are quick",
        kind="run",
        result="pass",
        reason="worst 1 ms",
        figures={"worst": math.nan},
        bound="worst < 500",
        on_fail="fail",
        ship_blocking=False,
        optional=False,
    )
    finish(run, verdicts=[verdict])
    print_run(run, json=False)
    out = capfd.readouterr().out
    for told in (
        "done: budget reached",
        "10 of 10",
        "train_loss 2",
        "val_loss 1.5 at step 10",
        "training 1 s",
        "steps are quick",
    ):
        assert told in out
    assert re.search(r"step-00000010\.a1 +kept", out)
    print_run(run, json=True)
    shown = document(capfd)
    assert (shown["state"], shown["exit_code"], shown["seconds"]) == ("done", 0, SECONDS)
    assert shown["attempts"][0]["attempt"] == 1
    assert shown["verdicts"][0]["figures"] == {"worst": None}


def test_verdicts_that_are_none_are_an_error_with_their_file(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    finish(run, verdicts=[{"gate": "GATE-TEST-001"}])
    with pytest.raises(InputError, match=r"result\.json: verdicts"):
        print_run(run, json=False)


def test_checkpoints_are_kept_removed_or_damaged(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    attempt(run, [2.0] * 10)
    checkpoints = save(run, 0, 5, 10)
    assert states(run) == ["kept", "kept", "kept"]
    checkpoints.retire([checkpoints.committed()[0]])
    (run.checkpoints / "step-00000010.a1" / "model.safetensors").write_bytes(b"cut")
    first, second, third = checkpoints_of(run)
    assert [one.state for one in (first, second, third)] == ["removed", "kept", "damaged"]
    assert (first.size_bytes, second.size_bytes > 400) == (0, True)
    assert "model.safetensors has 3 bytes" in third.reason


def test_a_checkpoint_that_was_set_aside_is_damaged_with_its_reason(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    attempt(run, [2.0] * 10)
    checkpoints = save(run, 5, 10)
    checkpoints.set_aside(checkpoints.committed()[-1], "model.safetensors: its SHA-256 is not the one in its manifest")
    assert states(run) == ["kept", "damaged"]
    assert "model.safetensors" in list(checkpoints_of(run))[1].reason


def test_a_broken_manifest_is_damage_and_a_missing_one_an_interrupted_save(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    attempt(run, [2.0] * 10)
    save(run, 5, 10)
    (run.checkpoints / "step-00000005.a1" / "manifest.json").write_text("{")
    (run.checkpoints / "step-00000010.a1" / "manifest.json").unlink()
    assert states(run) == ["damaged", "incomplete"]


def test_a_checkpoint_beyond_the_step_where_a_later_attempt_began_is_superseded(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    attempt(run, [2.0] * 10)
    save(run, 5, 10)
    attempt(run, [2.0], start=5)
    assert states(run) == ["kept", "superseded"]


def test_a_broken_row_is_an_error_when_its_run_is_shown(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    attempt(run, [2.0])
    with run.attempts()[0].steps.open("ab") as file:
        file.write(b"{broken}\n")
    with pytest.raises(DataError, match=r"steps\.jsonl:2"):
        print_run(run, json=True)
