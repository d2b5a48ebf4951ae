"""The Temporal Fusion Transformer as a forecaster: options, what it explains, and that it learns."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import series
from tests.acceptance import harness
from trainwright import runs, yamlfile
from trainwright.config import RunConfig
from trainwright.data.series_options import SeriesOptions
from trainwright.equality import bit_differences, entries_of
from trainwright.errors import InputError
from trainwright.illustrations import Bars, Grid, Lines
from trainwright.jsonfile import read_json
from trainwright.models.build import build
from trainwright.models.starting import starting_file
from trainwright.models.tft import TFT
from trainwright.models.tft_network import Shape
from trainwright.models.tft_options import PRESETS, TFTOptions

CPU = torch.device("cpu")
MODEL = {"type": "tft", "width": 8, "heads": 2}
NAMES = ["hour_of_day", "day_of_month", "day_of_week"]  # of a calendar, numbers before categories
CALENDAR = {"calendar": NAMES, "categorical": NAMES[2:]}


def values(path: Path, *, data: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """Give the configuration of a small transformer for the series in a file."""
    own = {"name": "forecaster", "model": MODEL, "data": series.section(path, **{**CALENDAR, **(data or {})})}
    return harness.config(**{**own, "train__batch_size": 16, "train__learning_rate": 1e-3, **changes})


def forecaster(path: Path, **changes: Any) -> TFT:
    built = build(RunConfig.parse(values(path, **changes)).resolved(), CPU)
    assert isinstance(built, TFT)
    return built


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return series.one_series(tmp_path)


# -- options ---------------------------------------------------------------------------------------------------------


def test_a_given_value_wins_over_the_preset_and_the_rest_has_defaults() -> None:
    assert TFTOptions(preset="medium", dropout=0.3).shape() == Shape(64, 4, 1, 0.3)
    assert TFTOptions(width=24, heads=3).shape() == Shape(24, 3, lstm_layers=1, dropout=0.1)
    assert [TFTOptions(preset=name).shape() for name in PRESETS] == list(PRESETS.values())


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"preset": "smal"}, r"unknown preset 'smal'; did you mean 'small'\?"),
        ({"width": 8}, "give heads, or a preset: small, medium, large"),
        ({"preset": "small", "heads": 3}, r"model\.width 16 is no multiple of model\.heads 3"),
        ({"preset": "small", "layers": 2}, r"unknown key 'model\.layers'; did you mean 'lstm_layers'\?"),
        ({"preset": "small", "dropout": 1.0}, "less than 1"),
    ],
)
def test_wrong_options_are_refused_with_what_to_do(model: dict[str, Any], message: str, path: Path) -> None:
    with pytest.raises(InputError, match=message):
        forecaster(path, model={"type": "tft", **model})


def test_a_series_of_whose_future_nothing_is_known_is_refused_by_the_key_that_would_help(path: Path) -> None:
    with pytest.raises(
        InputError, match=r"data\.known: .* name a column, or ask for data\.calendar or data\.time_index"
    ):
        forecaster(path, data={"calendar": [], "categorical": []})


def test_the_starting_file_names_every_option_of_model_and_data() -> None:
    given = yamlfile.parse(starting_file("tft"), "tft.yaml").data
    assert set(given["model"]) == set(TFTOptions.model_fields)
    assert set(given["data"]) == set(SeriesOptions.model_fields)
    assert TFTOptions.model_validate(given["model"]) == TFTOptions(preset="small")


# -- what it explains ------------------------------------------------------------------------------------------------


def test_an_explanation_gives_attention_by_step_and_shares_by_name(tmp_path: Path) -> None:
    path = series.one_series(tmp_path, wind=series.wave(seed=1))
    made = forecaster(path, data={"observed": ["wind"], "static_series": True, "window_scaling": "standard"})
    found = made.explain(made.next_batch())
    assert found.attention_ht.shape == (6, 30)
    assert {name: list(shares) for name, shares in found.shares.items()} == {
        "static": ["series"],
        "past": [*NAMES, "load", "wind"],
        "future": NAMES,
    }
    for shares in found.shares.values():
        assert sum(shares.values()) == pytest.approx(1.0)


def test_an_explanation_leaves_the_model_and_its_random_streams_as_they_were(path: Path) -> None:
    made, other = forecaster(path, model__dropout=0.5), forecaster(path, model__dropout=0.5)
    made.explain(made.next_batch())
    made.illustrate()
    other.next_batch()
    assert made.training
    assert list(bit_differences(entries_of(made.save_checkpoint()), entries_of(other.save_checkpoint()))) == []


def test_the_shares_are_those_of_the_windows_on_the_scale_that_the_network_sees(path: Path) -> None:
    made = forecaster(path, data={"window_scaling": "last"})
    batch = made.next_batch()
    moved = batch._replace(observed_reals=batch.observed_reals + 100.0)
    before, after = made.explain(batch), made.explain(moved)
    torch.testing.assert_close(before.attention_ht, after.attention_ht, rtol=0, atol=1e-4)


def test_illustrations_show_a_forecast_where_it_looks_and_the_shares_of_variables(path: Path) -> None:
    forecast, attention, past, future = forecaster(path).illustrate()
    assert isinstance(forecast, Lines)
    assert isinstance(attention, Grid)
    assert (len(attention.rows), len(attention.rows[0]), attention.x_first) == (6, 30, -24)
    for panel, names in ((past, [*NAMES, "load"]), (future, NAMES)):
        assert isinstance(panel, Bars)
        assert panel.labels == names


# -- as a trainable --------------------------------------------------------------------------------------------------


def test_one_batch_is_learnt_by_heart(path: Path) -> None:
    made = forecaster(path, model={**MODEL, "dropout": 0.0}, train__batch_size=2, train__learning_rate=3e-2)
    batch, losses = made.next_batch(), []
    for _ in range(40):
        made.zero_grad()
        loss, _ = made.compute_loss(made.forward(batch), batch)
        made.backward(loss)
        made.clip_gradients(1.0)
        made.optimizer_step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 5


def test_the_architecture_tells_what_decides_the_mathematics(path: Path) -> None:
    stamp = json.loads(json.dumps(forecaster(path).architecture))
    assert (stamp["type"], stamp["width"], stamp["heads"], stamp["lstm_layers"]) == ("tft", 8, 2, 1)
    assert stamp["norm_eps"] == 1e-5


def test_a_short_run_under_the_contract_beats_the_naive_forecast_of_a_wave(path: Path, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"contract": "training-loop-forecast-v1", "train__learning_rate": 1e-2}
    result = runs.execute(RunConfig.parse(values(path, train__steps=120, **changes)), runs_dir=tmp_path / "runs")
    decided = {verdict.gate: verdict.result for verdict in result.verdicts if verdict.kind == "run"}
    assert {gate for gate, found in decided.items() if found == "no_evidence"} == {"GATE-FORECAST-023"}  # too few rows
    assert result.best is not None
    assert result.best < read_json(result.run.environment)["baselines"]["naive_mae"] / 2
