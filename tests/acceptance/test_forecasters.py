"""A forecaster through the one loop: killed and resumed, judged, stopped before a bad step, and evaluated."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import series
from tests.acceptance import harness
from trainwright import runs, yamlfile
from trainwright.config import RunConfig
from trainwright.jsonfile import read_json
from trainwright.rundir import RunDirectory
from trainwright.runs import RunResult

CONTRACT = "training-loop-forecast-v1"
ROWS = 1_600
SPLIT = {"train": 1_000, "validation": 300, "test": 300}
LIES: Mapping[str, set[str]] = {
    "Honest": set(),
    "ScaledByAll": {"GATE-FORECAST-007"},
    "ScaledInSecret": {"GATE-FORECAST-007"},
    "LeakingSplit": {"GATE-FORECAST-015", "GATE-FORECAST-025"},
    "LeakingTest": {"GATE-FORECAST-025"},
    "LeakingEdge": {"GATE-FORECAST-025"},
    "NoBand": {"GATE-FORECAST-006", "GATE-FORECAST-024"},
    "WideBand": {"GATE-FORECAST-006", "GATE-FORECAST-024"},
    "WidestBand": {"GATE-FORECAST-024"},
    "Askew": {"GATE-FORECAST-004", "GATE-FORECAST-006", "GATE-FORECAST-024"},
    "Crossed": {"GATE-FORECAST-005"},
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("series")
    wave = series.wave(ROWS) + np.where(np.arange(ROWS) < 1_300, 0.0, 0.05)
    return series.write(folder / "load.csv", {"time": series.hours(ROWS), "load": wave})


def forecaster(path: Path, **changes: Any) -> dict[str, Any]:
    """Give the configuration of a small forecaster: 971 windows of 24 + 6 hours, batches of 64."""
    return harness.config(
        **{
            "name": "forecaster",
            "contract": CONTRACT,
            "model": {"type": "nlinear", "sort_quantiles": True},
            "data": series.section(path, split=SPLIT),
            "train__batch_size": 64,
            "optimizer__weight_decay": 0.0,
            "validate__every": 40,
            "checkpoint__every": 7,
            **changes,
        }
    )


def execute(path: Path, runs_dir: Path, **changes: Any) -> RunResult:
    return runs.execute(RunConfig.parse(forecaster(path, **changes)), runs_dir=runs_dir)


@pytest.fixture(scope="module")
def finished(path: Path, tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    return execute(path, tmp_path_factory.mktemp("runs"))


def test_a_run_under_the_contract_holds_it(finished: RunResult) -> None:
    assert finished.exit_code == 0, finished.why
    decided = {verdict.gate: verdict.result for verdict in finished.verdicts if verdict.kind == "run"}
    assert len(decided) == 22
    undecided = {gate: found for gate, found in decided.items() if found != "pass"}
    assert undecided == {
        "GATE-FORECAST-003": "not_applicable",  # no target was given
        "GATE-FORECAST-023": "no_evidence",  # of 300 validation rows a half is too short to tell
    }
    baselines = read_json(finished.run.environment)["baselines"]
    assert finished.best is not None
    assert finished.best < baselines["seasonal_naive_mae"] < baselines["naive_mae"]


def test_the_measures_of_every_validation_are_on_record_and_its_forecast_is_shown(finished: RunResult) -> None:
    rows = finished.run.read_validations()
    assert [row.step for row in rows] == [0, 40, 80, 120]
    for row in rows:
        assert row.measures.keys() >= {"quantile_loss", "mse", "coverage", "calibrated_coverage", "crossings"}
        assert row.measures["scaler_shift"] == 0.0
    shown = finished.run.read_illustration()
    assert shown is not None
    assert [panel.title for panel in shown.panels] == ["Forecast of load"]


@pytest.mark.parametrize("name", LIES)
def test_a_planted_liar_fails_the_gates_of_its_lie_and_no_other(name: str, path: Path, tmp_path: Path) -> None:
    model = {"type": f"tests.liars_of_forecasts:{name}", "sort_quantiles": name != "Crossed"}
    result = execute(path, tmp_path, model=model, train__steps=80)
    failing = {
        verdict.gate: verdict.reason for verdict in result.verdicts if verdict.kind == "run" and not verdict.holds
    }
    assert failing.keys() == LIES[name], failing
    assert result.exit_code == (3 if LIES[name] else 0)


def test_a_target_that_is_not_reached_fails_its_gate_alone(path: Path, tmp_path: Path) -> None:
    result = execute(path, tmp_path, train__steps=80, train__target=0.01)
    failing = [verdict.gate for verdict in result.verdicts if verdict.kind == "run" and not verdict.holds]
    assert (failing, result.exit_code) == (["GATE-FORECAST-003"], 3)


@pytest.mark.parametrize("quantiles", [[0.5], [0.25, 0.5, 0.75]])
def test_a_run_of_other_quantiles_holds_the_contract(quantiles: list[float], path: Path, tmp_path: Path) -> None:
    model = {"type": "nlinear", "quantiles": quantiles, "sort_quantiles": True}
    result = execute(path, tmp_path, model=model, train__steps=80)
    assert result.exit_code == 0, result.why


def test_weights_of_a_run_on_other_scales_are_held_against_baselines_on_its_own(path: Path, tmp_path: Path) -> None:
    wave = series.wave(ROWS, level=0.0)
    larger = series.write(tmp_path / "larger.csv", {"time": series.hours(ROWS), "load": 3 * wave + 50})
    first = execute(larger, tmp_path, data=series.section(larger, split=SPLIT))
    result = execute(path, tmp_path, train__init=str(first.run.path), train__steps=40)
    assert result.exit_code == 0, result.why
    plain = execute(path, tmp_path, train__steps=8, contract=None)
    baselines = [read_json(one.run.environment)["baselines"] for one in (result, plain)]
    assert baselines[0] == baselines[1]


@pytest.mark.long  # the suite of trainables kills them, too
@pytest.mark.parametrize("model", ["nlinear", "dlinear"])
def test_a_forecaster_killed_again_and_again_equals_the_uncut_one(model: str, path: Path, tmp_path: Path) -> None:
    values = forecaster(path, model={"type": model, "sort_quantiles": True}, train__steps=60)
    _, cut = harness.assert_exact_when_killed(values, tmp_path, ("step", 9), ("step", 19), ends=(0, 3))
    assert all(row.measures for row in cut.read_validations())


def test_a_forecast_that_is_no_number_stops_before_the_step_and_the_last_checkpoint_stays_good(
    path: Path, tmp_path: Path
) -> None:
    result = execute(path, tmp_path, model={"type": "tests.liars_of_forecasts:Poisoned"})
    assert (result.exit_code, result.step) == (4, 9)
    assert math.isnan(result.run.read_steps()[-1].train_loss)
    assert max(result.run.checkpoints.glob("step-*/manifest.json")).parent.name.startswith("step-00000007")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", "'load' has no value, as in 1 of 1600 rows"),
        ("nan", "has no value"),
        ("inf", "row 51: inf; expected a finite"),
    ],
)
def test_a_value_that_is_no_number_is_refused_before_the_run_with_exit_code_6(
    value: str, message: str, path: Path, tmp_path: Path
) -> None:
    lines = path.read_text().splitlines()
    lines[51] = f"{lines[51].partition(',')[0]},{value}"
    (tmp_path / "bad.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "run.yaml").write_text(yamlfile.dump(forecaster(tmp_path / "bad.csv")))
    completed = harness.command(tmp_path, "train", "run.yaml")
    assert completed.code == 6
    assert message in completed.err
    assert not (tmp_path / "runs").exists()


def test_a_column_that_is_misspelt_is_told_with_its_line_and_the_nearest_name(path: Path, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(yamlfile.dump(forecaster(path, data=series.section(path, target="laod"))))
    completed = harness.command(tmp_path, "train", "run.yaml")
    assert completed.code == 2
    assert "data.target: " in completed.err
    assert "has no column 'laod'; did you mean 'load'?" in completed.err


# -- evaluate --------------------------------------------------------------------------------------------------------


def evaluated(run: RunDirectory, folder: Path, *options: str) -> harness.Completed:
    return harness.command(folder, "evaluate", run.path, *options)


def test_evaluate_shows_the_test_rows_beside_simple_forecasts_and_writes_nothing(
    finished: RunResult, tmp_path: Path
) -> None:
    with harness.left_as_it_was(finished.run.path):
        shown, told = evaluated(finished.run, tmp_path), evaluated(finished.run, tmp_path, "--json")
    assert (shown.code, told.code) == (0, 0), shown.err + told.err
    found = json.loads(told.out)
    assert (found["metric"], found["windows"], found["step"]) == ("mae", 295, 120)
    assert list(found["forecasts"]) == ["model", "naive", "seasonal_naive", "nlinear", "dlinear"]
    errors = {name: one["mae"] for name, one in found["forecasts"].items()}
    assert errors["nlinear"] < errors["model"] < errors["seasonal_naive"] < errors["naive"]
    assert found["value"] == errors["model"]
    band = found["band"]
    assert band["nominal"] == pytest.approx(0.8)
    assert set(band) == {"nominal", "as_forecast", "by_validation"}
    assert shown.out.startswith(
        f"mae {found['value']:.4f} ± {found['standard_error']:.4f} over 295 windows of the test rows"
    )
    assert f"by validation  {band['by_validation']['coverage']:.1%}" in shown.out


def test_a_forecaster_plays_no_episodes(finished: RunResult, tmp_path: Path) -> None:
    completed = evaluated(finished.run, tmp_path, "--episodes", "3")
    assert (completed.code, completed.out) == (2, "")
    assert "a forecaster plays no episodes; leave --episodes and --seed out" in completed.err


def test_a_forecaster_is_not_evaluated_on_data_that_are_not_those_of_its_run(path: Path, tmp_path: Path) -> None:
    own = tmp_path / "load.csv"
    own.write_bytes(path.read_bytes())
    run = execute(own, tmp_path / "runs", train__steps=8, contract=None).run
    own.write_text(f"{path.read_text()}{series.hours(ROWS + 1)[-1]},1.0\n")
    completed = evaluated(run, tmp_path)
    assert completed.code == 6
    assert "the data are not those of the run" in completed.err
