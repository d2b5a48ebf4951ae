"""report.html: drawn from any run's files, whatever its state; nothing from outside, nothing made up."""

import math
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from trainwright.contract.load import load_contract
from trainwright.contract.run import judge_run
from trainwright.errors import DataError, StoreError
from trainwright.files import write_atomically
from trainwright.illustrations import Band, Bars, Illustration, Line, Lines
from trainwright.jsonfile import write_json
from trainwright.metrics import StepMetrics, ValidationRow
from trainwright.newruns import create_run
from trainwright.recorder import Recorder, Silent
from trainwright.report import write_report
from trainwright.rundir import RunDirectory, Start
from trainwright.timestamps import now

CONFIG = "name: run\nmodel:\n  type: toy\ntrain:\n  steps: 10\n"
ENVIRONMENT = {
    "model_type": "toy",
    "device": "cpu",
    "device_name": "cpu",
    "parameters": 4225,
    "planned_steps": 10,
    "absent": {"gpu_util_pct": "device cpu has no GPU utilisation"},
}
SECONDS = {"training": 1.0, "validation": 0.5, "checkpoint": 0.1, "elapsed": 1.7}


def step_row(step: int, **changes: Any) -> StepMetrics:
    values = {"train_loss": 2.0 - step / 100, "grad_norm": 1.0, "lr": 1e-3, "wall_ms": 5.0 + step, **changes}
    return StepMetrics(step=step, gpu_util_pct=None, samples_per_sec=100.0, **values)


def validation_row(step: int, value: float, metric: str = "val_loss", **changes: Any) -> ValidationRow:
    row = ValidationRow(
        step=step,
        epoch=0,
        metric=metric,
        value=value,
        n=10,
        standard_error=None,
        best=1.5,
        is_best=value == 1.5,
        patience=0,
        train_loss_mean=None,
        tokens_seen=step,
        grad_norm_max=None,
        optimizer_state_sha256="0" * 64,
        wall_seconds=0.1,
        checkpoint=f"step-{step:08d}.a1",
    )
    return msgspec.structs.replace(row, **changes)


def new_run(base: Path, *, contract: bool = False) -> RunDirectory:
    run = create_run("run", base, CONFIG)
    write_json(run.environment, ENVIRONMENT)
    if contract:
        write_atomically(run.contract, load_contract("training-loop-pretrain-v1").text.encode())
    return run


def attempt(
    run: RunDirectory,
    steps: Sequence[StepMetrics] = (),
    validations: Sequence[ValidationRow] = (),
    *,
    start: int = 0,
    **declared: Any,
) -> None:
    made = run.new_attempt()
    begun = Start(attempt=made.number, time=now(), step=start, checkpoint=None, unit="samples", **declared)
    write_json(made.start_file, begun)
    with closing(Recorder(made, Silent())) as recorder:
        recorder.event("started", start)
        for row in steps:
            recorder.step(row)
        for validation in validations:
            recorder.validation(validation)
            recorder.event("checkpoint_saved", validation.step, checkpoint=validation.checkpoint)


def finish(run: RunDirectory, outcome: str = "done", exit_code: int = 0) -> None:
    result = {
        "outcome": outcome,
        "exit_code": exit_code,
        "why": "budget of 10 steps reached",
        "step": 10,
        "best_validation": 1.5,
        "seconds": SECONDS,
        "attempts": len(run.attempts()),
        "verdicts": judge_run(run),
    }
    write_json(run.result, result)


def page_of(run: RunDirectory) -> str:
    return write_report(run).read_text(encoding="utf-8")


def text_of(page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<style>.*?</style>|<[^>]+>", " ", page, flags=re.DOTALL))


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return new_run(tmp_path)


def test_a_finished_run_is_told_with_its_numbers(run: RunDirectory) -> None:
    attempt(run, [step_row(step) for step in range(10)], [validation_row(0, 1.9), validation_row(10, 1.5)])
    finish(run)
    text = text_of(page_of(run))
    for told in (run.id, "Done (exit 0): budget of 10 steps reached", "4,225", "10 of 10", "val_loss 1.5 at step 10"):
        assert told in text
    for title in ("Loss", "Learning rate", "Gradient norm", "Wall time of a step", "Throughput", "samples per second"):
        assert title in text
    assert "checkpoint saved 2" in text
    assert "type: toy" in text
    assert "device cpu has no GPU utilisation" in text


def test_the_page_stands_alone(run: RunDirectory) -> None:
    attempt(run, [step_row(step) for step in range(10)])
    page = page_of(run)
    assert not re.search(r"https?:|<script|<link|@import|url\(|src=", page)
    assert "prefers-color-scheme: dark" in page


def test_a_run_that_was_killed_has_not_ended(run: RunDirectory) -> None:
    attempt(run, [step_row(step) for step in range(4)])
    text = text_of(page_of(run))
    assert "Has not ended" in text
    assert "4 of 10" in text


def test_a_torn_last_row_is_left_out_and_the_page_says_so(run: RunDirectory) -> None:
    attempt(run, [step_row(step) for step in range(4)])
    file = run.attempts()[0].steps
    file.write_bytes(file.read_bytes()[:-7])
    text = text_of(page_of(run))
    assert "3 of 10" in text
    assert "attempts/1/steps.jsonl ends in a torn row, which is left out." in text


def test_the_result_of_an_attempt_that_was_taken_up_again_is_not_the_end(run: RunDirectory) -> None:
    attempt(run, [step_row(step) for step in range(4)])
    finish(run, "terminated", 143)
    assert "Terminated (exit 143)" in text_of(page_of(run))
    attempt(run, [step_row(step) for step in range(4, 6)], start=4)
    text = text_of(page_of(run))
    assert "Has not ended" in text
    assert "6 of 10" in text
    assert "first steps, not counted: 5 ms (step 0), 9 ms (step 4)" in text


def test_a_run_without_a_step_says_so(run: RunDirectory) -> None:
    attempt(run)
    text = text_of(page_of(run))
    assert "No step is on record" in text
    assert "0 of 10" in text


def test_a_run_that_wrote_only_its_configuration_has_a_page(tmp_path: Path) -> None:
    text = text_of(page_of(create_run("run", tmp_path, CONFIG)))
    assert "No environment is on record" in text
    assert "No event is on record" in text


def test_without_a_contract_nothing_was_claimed(run: RunDirectory) -> None:
    attempt(run, [step_row(0)])
    finish(run)
    assert "no contract" in text_of(page_of(run))


def test_verdicts_stand_with_claim_reason_bound_and_headroom(tmp_path: Path) -> None:
    run = new_run(tmp_path, contract=True)
    attempt(run, [step_row(step) for step in range(10)], [validation_row(0, 1.9), validation_row(10, 1.5)])
    finish(run)
    text = text_of(page_of(run))
    for verdict in judge_run(run):
        assert verdict.gate in text
    assert "without_manifest 2 validations; required: without_manifest = 0" in text
    assert re.search(r"do not hold: GATE-TRAIN-0", text)


def test_an_unfinished_run_is_judged_from_its_files_so_far(tmp_path: Path) -> None:
    run = new_run(tmp_path, contract=True)
    attempt(run, [step_row(step) for step in range(4)])
    assert "judged now from the files so far" in text_of(page_of(run))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_validation_that_is_not_finite_is_a_gap_with_a_note(run: RunDirectory, value: float) -> None:
    validations = [validation_row(0, 1.9), validation_row(5, value), validation_row(10, 1.5)]
    attempt(run, [step_row(step) for step in range(10)], validations)
    page = page_of(run)
    assert f"1 validation not finite: {value} at step 5; a gap in the line" in text_of(page)
    assert page.count('<circle class="second"') == 2
    assert "val_loss 1.5 at step 10" in text_of(page)


def test_a_loss_that_is_not_finite_is_on_the_page_as_a_gap(run: RunDirectory) -> None:
    attempt(run, [step_row(step, train_loss=math.nan if step in {3, 4} else 1.0) for step in range(10)])
    assert "2 values not finite: nan at step 3, nan at step 4; a gap in the line" in text_of(page_of(run))


def test_steps_without_a_row_are_a_gap(run: RunDirectory) -> None:
    attempt(run, [step_row(step) for step in (0, 1, 2, 6, 7)])
    found = re.search(r'<path class="line first" d="([^"]*)"', page_of(run))
    assert found
    assert found[1].count("M") == 2


def test_a_validation_that_is_no_loss_has_an_axis_of_its_own(run: RunDirectory) -> None:
    attempt(run, [step_row(0)], [validation_row(1, 200.0, "episode_return")])
    page = page_of(run)
    assert "<strong>Episode return</strong>" in page
    assert "episode_return on held-out data or fixed episodes" in text_of(page)


AGENT = {"env_steps": "steps", "episode_return": "reward", "q_mean": "reward", "q_limit": "reward", "epsilon": "share"}


def agent_row(step: int, **changes: float | None) -> StepMetrics:
    extra = {
        "env_steps": 64.0 * (step // 4 + 1),
        "episode_return": 20.0,
        "q_mean": 1.0,
        "q_limit": 50.0,
        "epsilon": 0.1,
    }
    return step_row(step, extra={**extra, **changes})


def agent_run(run: RunDirectory, **changes: float | None) -> str:
    validations = [validation_row(step, 100.0 + step, "episode_return", standard_error=7.0) for step in (0, 4, 8)]
    attempt(run, [agent_row(step, **changes) for step in range(8)], validations, metrics=AGENT)
    return page_of(run)


def figure(page: str, title: str) -> str:
    figures: list[str] = re.findall(r"<figure.*?</figure>", page, re.DOTALL)
    [found] = [one for one in figures if f"<strong>{title}</strong>" in one]
    return found


def titles(page: str) -> list[str]:
    return re.findall(r"<figcaption><strong>(.*?)</strong>", page)


def test_the_return_of_an_agent_is_drawn_over_its_environment_steps_beside_that_of_training(run: RunDirectory) -> None:
    shown = figure(agent_run(run), "Episode return")
    assert "training, validation by env steps" in shown
    assert "episode_return on held-out data or fixed episodes, ± 1 standard error; line: that of training" in shown
    assert shown.count('<circle class="second"') == 3
    assert shown.count('class="band second"') == 1
    places = [float(x) for x in re.findall(r'<circle class="second" cx="([\d.]+)"', shown)]
    assert places[1] - places[0] == pytest.approx(places[2] - places[1]), "64 steps each, the first from none"


def test_each_declared_metric_is_drawn_once_and_a_limit_beside_what_it_bounds(run: RunDirectory) -> None:
    page = agent_run(run)
    assert titles(page)[-2:] == ["Q mean", "Epsilon"]
    assert "mean, limit by step" in figure(page, "Q mean")
    assert "of each step, share" in figure(page, "Epsilon")


def test_a_declared_metric_that_was_never_measured_has_no_chart(run: RunDirectory) -> None:
    assert "Epsilon" not in titles(agent_run(run, epsilon=None))


def test_measures_of_validations_are_drawn_over_them(run: RunDirectory) -> None:
    rows = [validation_row(step, 0.3, "mae", measures={"coverage": 0.7 + step / 100}) for step in (0, 5, 10)]
    attempt(run, [step_row(step) for step in range(10)], rows, measures={"coverage": "share"})
    shown = figure(page_of(run), "Coverage")
    assert "of each validation, share" in shown
    line = re.search(r'class="line first" d="([^"]*)"', shown)
    assert line
    assert len(re.findall(r"[\d.]+ [\d.]+", line[1])) == 3


def test_the_panels_that_a_trainable_left_are_drawn_with_their_step(run: RunDirectory) -> None:
    attempt(run, [step_row(step) for step in range(10)])
    bars = Bars(title="Importance <i>", about="of the inputs", unit="weight", labels=["OT"], values=[0.5])
    x = [0.0, 1.0]
    lines = Lines(
        title="Forecast", about="of one", x_unit="h", y_unit="OT", lines=[Line("m", x, x)], bands=[Band("b", x, x, x)]
    )
    write_json(run.attempts()[0].illustration, Illustration(7, [lines, bars]))
    page = page_of(run)
    assert titles(page)[-2:] == ["Forecast", "Importance &lt;i&gt;"]
    assert "of the inputs; at step 7" in page
    assert 'class="band second"' in figure(page, "Forecast")
    assert 'class="bar"' in figure(page, "Importance &lt;i&gt;")


def as_1_4_0(run: RunDirectory, which: Callable[[int], bool]) -> None:
    """Take wall_ms out of rows, as contract 1.4.0 wrote them."""
    file = run.attempts()[0].steps
    lines = file.read_bytes().splitlines(keepends=True)
    pattern = rb'"wall_ms":[0-9.]+,?'
    rows = [re.sub(pattern, b"", line).replace(b",}", b"}") if which(i) else line for i, line in enumerate(lines)]
    file.write_bytes(b"".join(rows))


def test_rows_without_a_measured_wall_time_are_not_counted_and_the_page_says_so(run: RunDirectory) -> None:
    attempt(run, [step_row(step, wall_ms=100.0) for step in range(10)])
    as_1_4_0(run, lambda step: step >= 6)
    text = text_of(page_of(run))
    assert "4 of 10 rows hold no wall_ms (contract 1.4.0 and older) and are not counted" in text
    assert "median 100 ms" in text
    assert "p95 100 ms" in text


def test_a_run_of_1_4_0_has_no_wall_time_at_all(run: RunDirectory) -> None:
    attempt(run, [step_row(step) for step in range(10)])
    as_1_4_0(run, lambda _step: True)
    text = text_of(page_of(run))
    assert "10 of 10 rows hold no wall_ms" in text
    assert "no value that can be drawn" in text
    assert "median" not in text


def test_the_first_step_stands_apart_from_the_distribution(run: RunDirectory) -> None:
    attempt(run, [step_row(step, wall_ms=9000.0 if step == 0 else 10.0) for step in range(10)])
    text = text_of(page_of(run))
    assert "first step, not counted: 9,000 ms (step 0)" in text
    assert "p95 10 ms" in text


def test_steps_far_beyond_p95_are_counted_and_told_apart(run: RunDirectory) -> None:
    attempt(run, [step_row(step, wall_ms=800.0 if step == 50 else 10.0) for step in range(100)])
    assert "not drawn: the slowest 1 of them, up to 800 ms" in text_of(page_of(run))


def test_only_the_last_events_are_listed_and_all_are_counted(run: RunDirectory) -> None:
    attempt(run, [step_row(0)], [validation_row(step, 1.9) for step in range(60)])
    text = text_of(page_of(run))
    assert "The last 40 of 62" in text
    assert "checkpoint saved 60" in text


def test_what_a_run_wrote_cannot_become_markup(tmp_path: Path) -> None:
    run = create_run("run", tmp_path, "name: <script>alert(1)</script>\n")
    write_json(run.environment, {**ENVIRONMENT, "model_type": "<img src=x>"})
    attempt(run, [], [validation_row(0, 1.5, "<i>loss")])
    page = page_of(run)
    assert not re.search(r"<script|<img|<i>", page)


def test_a_broken_row_is_an_error_with_its_line(run: RunDirectory) -> None:
    attempt(run, [step_row(0)])
    with run.attempts()[0].steps.open("ab") as file:
        file.write(b"{broken}\n")
    with pytest.raises(DataError, match=r"steps\.jsonl:2"):
        write_report(run)


def test_a_page_that_cannot_be_written_is_an_error_of_the_store(run: RunDirectory) -> None:
    run.report.mkdir()
    with pytest.raises(StoreError, match=r"report\.html"):
        write_report(run)
    assert not list(run.path.glob("*.tmp"))


def test_the_report_needs_no_torch() -> None:
    code = "import sys, trainwright.report; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
