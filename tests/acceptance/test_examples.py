"""Each example is run: in a short form here, in full under the mark `long`."""

import os
from pathlib import Path

import pytest

from trainwright import app
from trainwright.config import RunConfig
from trainwright.data.prepare import PrepareRequest, prepare
from trainwright.evaluation import EpisodeEvaluation, ForecastEvaluation, evaluate
from trainwright.runs import RunResult

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLES = ROOT / "examples"
DATA = Path(os.environ.get("TRAINWRIGHT_TEST_DATA", ROOT.parent / "shared" / "data"))
SHAKESPEARE = DATA / "tinyshakespeare.txt"
ETTH1 = DATA / "ETTh1.csv"


def run_example(name: str, data: Path, folder: Path, *changes: str) -> RunResult:
    return app.train(EXAMPLES / name / "run.yaml", [f"data.path={data}", "device=cpu", *changes], runs_dir=folder)


@pytest.fixture(scope="module")
def shakespeare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not SHAKESPEARE.exists():
        pytest.skip(f"{SHAKESPEARE.name} is not there; name its folder by TRAINWRIGHT_TEST_DATA")
    out = tmp_path_factory.mktemp("shakespeare") / "data"
    prepare(PrepareRequest(SHAKESPEARE, out, tokenizer="characters", split="tail"))
    return out


@pytest.fixture(scope="module")
def etth1() -> Path:
    if not ETTH1.exists():
        pytest.skip(f"{ETTH1.name} is not there; name its folder by TRAINWRIGHT_TEST_DATA")
    return ETTH1


def test_every_example_has_a_page_and_a_configuration_that_loads() -> None:
    folders = sorted(path for path in EXAMPLES.iterdir() if path.is_dir())
    assert [folder.name for folder in folders] == [
        "acrobot-ppo",
        "cartpole-dqn",
        "cartpole-ppo",
        "etth1-seven-tft",
        "etth1-tft",
        "gpu-evidence",
        "mamba2-python",
        "mountaincar-dqn",
        "mqar",
        "pendulum-ppo",
        "python-lm",
        "tinyshakespeare",
    ]
    for folder in folders:
        assert (folder / "README.md").exists()
        RunConfig.load(folder / "run.yaml")


@pytest.mark.parametrize(("name", "changes"), [("python-lm", []), ("mamba2-python", ["model.layers=2"])])
def test_python_source_is_learnt_below_its_unigram_entropy_in_60_steps(
    name: str, changes: list[str], tmp_path: Path
) -> None:
    prepare(PrepareRequest(Path(pytest.__file__).parent.parent / "_pytest", tmp_path / "data", vocabulary_size=1024))
    result = run_example(name, tmp_path / "data", tmp_path, "train.steps=60", "validate.every=30", *changes)
    assert result.outcome.label == "done", result.why
    assert {verdict.gate for verdict in result.verdicts if verdict.result == "pass"} >= {"GATE-TRAIN-003"}


@pytest.mark.parametrize("net", ["trainwright", "transformers"])
def test_recall_of_a_few_pairs_is_learnt_in_200_steps(net: str, tmp_path: Path) -> None:
    small = ["length=8", "pairs=2", "vocabulary_size=8", "width=32", "held_out=200", f"net={net}"]
    changes = ["train.steps=200", "train.target=0.75", "validate.every=100", *(f"model.{change}" for change in small)]
    result = app.train(EXAMPLES / "mqar" / "run.yaml", changes, runs_dir=tmp_path)
    assert result.outcome.label == "done", result.why


def test_shakespeare_by_characters_is_learnt_to_2_3_nats_in_300_steps(shakespeare: Path, tmp_path: Path) -> None:
    result = run_example("tinyshakespeare", shakespeare, tmp_path, "train.steps=300", "train.target=2.3")
    assert result.outcome.label == "done", result.why
    assert result.best is not None
    assert result.best <= 2.3


def test_the_oil_temperature_is_forecast_below_the_seasonal_naive_error_in_200_steps(
    etth1: Path, tmp_path: Path
) -> None:
    changes = ["train.steps=200", "train.target=0.285", "data.validation_stride=31"]
    result = run_example("etth1-tft", etth1, tmp_path, *changes)
    verdicts = {verdict.gate: verdict.result for verdict in result.verdicts}
    assert (verdicts["GATE-FORECAST-003"], verdicts["GATE-FORECAST-004"]) == ("pass", "pass"), result.why


def test_cartpole_is_learnt_to_a_return_of_150_in_19_968_environment_steps(tmp_path: Path) -> None:
    changes = ["train.env_steps=19968", "train.target=150", "data.validation_episodes=10", "contract=null"]
    result = app.train(EXAMPLES / "cartpole-ppo" / "run.yaml", changes, runs_dir=tmp_path)
    assert result.outcome.label == "done", result.why
    assert result.best is not None
    assert result.best >= 150


def test_pendulum_is_learnt_to_a_return_of_minus_1000_in_20_480_environment_steps(tmp_path: Path) -> None:
    budget = ["train.env_steps=20480", "schedule.kind=constant"]  # a rate that falls so soon learns little
    changes = [*budget, "train.target=-1000", "data.validation_episodes=10", "contract=null"]
    result = app.train(EXAMPLES / "pendulum-ppo" / "run.yaml", changes, runs_dir=tmp_path)
    assert result.outcome.label == "done", result.why
    assert result.best is not None
    assert -1000 <= result.best < 0


def test_acrobot_is_learnt_to_a_return_of_minus_200_in_49_152_environment_steps(tmp_path: Path) -> None:
    changes = ["train.env_steps=49152", "train.target=-200", "data.validation_episodes=10", "contract=null"]
    result = app.train(EXAMPLES / "acrobot-ppo" / "run.yaml", changes, runs_dir=tmp_path)
    assert result.outcome.label == "done", result.why
    assert result.best is not None
    assert -200 <= result.best < 0


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(1, 6))
def test_acrobot_reaches_minus_90_over_100_episodes_that_did_not_select_the_checkpoint(
    seed: int, tmp_path: Path
) -> None:
    result = app.train(EXAMPLES / "acrobot-ppo" / "run.yaml", [f"seed={seed}"], runs_dir=tmp_path)
    assert result.outcome.label == "done", result.why
    assert evaluate(result.run, episodes=100).value >= -90


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(1, 4))
def test_the_oil_temperature_is_forecast_as_well_as_autoformer_is_published_to(
    seed: int, etth1: Path, tmp_path: Path
) -> None:
    result = run_example("etth1-tft", etth1, tmp_path, f"seed={seed}")
    assert result.outcome.label == "done", result.why
    found = evaluate(result.run)
    assert isinstance(found, ForecastEvaluation)
    assert found.forecasts["model"].mae <= 0.206
    assert found.forecasts["model"].mae < found.forecasts["seasonal_naive"].mae
    assert found.band.by_validation is not None
    assert found.band.by_validation.coverage == pytest.approx(0.8, abs=0.05)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(3))
def test_recall_of_8_pairs_is_right_in_99_of_100_cases(seed: int, tmp_path: Path) -> None:
    result = app.train(EXAMPLES / "mqar" / "run.yaml", [f"seed={seed}"], runs_dir=tmp_path)
    assert result.outcome.label == "done", result.why


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(1, 6))
def test_pendulum_reaches_minus_250_over_100_episodes_that_did_not_select_the_checkpoint(
    seed: int, tmp_path: Path
) -> None:
    result = app.train(EXAMPLES / "pendulum-ppo" / "run.yaml", [f"seed={seed}"], runs_dir=tmp_path)
    assert result.outcome.label == "done", result.why
    assert evaluate(result.run, episodes=100).value >= -250


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(1, 6))
def test_cartpole_reaches_495_over_100_episodes_that_did_not_select_the_checkpoint(seed: int, tmp_path: Path) -> None:
    result = app.train(EXAMPLES / "cartpole-ppo" / "run.yaml", [f"seed={seed}"], runs_dir=tmp_path)
    assert result.outcome.label == "done", result.why
    found = evaluate(result.run, episodes=100)
    assert isinstance(found, EpisodeEvaluation)
    assert (found.episodes, result.run.read_steps()[-1].extra["env_steps"]) == (100, 99_840)
    assert found.value >= 495


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_shakespeare_by_characters_reaches_the_published_1_88(shakespeare: Path, tmp_path: Path) -> None:
    result = run_example("tinyshakespeare", shakespeare, tmp_path)
    assert result.outcome.label == "done", result.why
    assert result.best is not None
    assert result.best <= 1.88
