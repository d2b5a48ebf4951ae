"""Each example is run: in a short form here, in full under the mark `long`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainwright import app
from trainwright.config import RunConfig
from trainwright.data.prepare import PrepareRequest, prepare
from trainwright.evaluation import EpisodeEvaluation, ForecastEvaluation, HeldOutEvaluation, evaluate
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
        "digits-mamba2",
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


def test_shakespeare_by_characters_is_learnt_to_2_4_nats_in_120_steps(shakespeare: Path, tmp_path: Path) -> None:
    result = run_example("tinyshakespeare", shakespeare, tmp_path, "train.steps=120", "train.target=2.4")
    assert result.outcome.label == "done", result.why
    assert result.best is not None
    assert result.best <= 2.4


def test_the_oil_temperature_is_forecast_below_the_seasonal_naive_error_in_200_steps(
    etth1: Path, tmp_path: Path
) -> None:
    changes = ["train.steps=200", "train.target=0.285", "data.validation_stride=31"]
    result = run_example("etth1-tft", etth1, tmp_path, *changes)
    verdicts = {verdict.gate: verdict.result for verdict in result.verdicts}
    assert (verdicts["GATE-FORECAST-003"], verdicts["GATE-FORECAST-004"]) == ("pass", "pass"), result.why


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    subprocess.run([sys.executable, EXAMPLES / "digits-mamba2" / "prepare.py", folder], check=True)
    return folder


def test_digits_read_row_by_row_are_told_apart_in_100_steps(digits: Path, tmp_path: Path) -> None:
    changes = ["train.steps=100", "train.target=0.7", "schedule.warmup_steps=20"]
    result = run_example("digits-mamba2", digits / "digits.npz", tmp_path, *changes)
    assert result.outcome.label == "done", result.why
    passed = {verdict.gate for verdict in result.verdicts if verdict.result == "pass"}
    assert passed >= {"GATE-SEQUENCE-003", "GATE-SEQUENCE-005", "GATE-SEQUENCE-007"}
    found = evaluate(result.run, data=digits / "test.npz")
    assert isinstance(found, HeldOutEvaluation)
    assert (found.n, found.chose_checkpoint) == (899, False)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(3))
def test_digits_of_the_test_part_are_told_right_in_9_of_10_cases(seed: int, digits: Path, tmp_path: Path) -> None:
    result = run_example("digits-mamba2", digits / "digits.npz", tmp_path, f"seed={seed}")
    assert result.outcome.label == "done", result.why
    assert evaluate(result.run, data=digits / "test.npz").value >= 0.9


@pytest.mark.parametrize(
    ("name", "env_steps", "least", "changes"),
    [
        ("cartpole-ppo", 19_968, 150, []),
        ("cartpole-dqn", 7_680, 80, []),
        ("pendulum-ppo", 20_480, -1_000, ["schedule.kind=constant"]),  # a rate that falls so soon learns little
        ("acrobot-ppo", 49_152, -200, []),
    ],
)
def test_an_agent_learns_something_in_few_environment_steps(
    name: str, env_steps: int, least: float, changes: list[str], tmp_path: Path
) -> None:
    short = [f"train.env_steps={env_steps}", f"train.target={least}", "data.validation_episodes=10", "contract=null"]
    result = app.train(EXAMPLES / name / "run.yaml", [*short, *changes], runs_dir=tmp_path)
    assert result.outcome.label == "done", result.why
    assert result.best is not None
    assert least <= result.best <= (500 if least > 0 else 0), "no episode of CartPole gives more, none of the others 0"


def test_mountaincar_is_learnt_from_by_the_rules_of_its_example(tmp_path: Path) -> None:
    changes = ["train.env_steps=2000", "train.target=null", "data.validation_episodes=4", "contract=null"]
    result = app.train(EXAMPLES / "mountaincar-dqn" / "run.yaml", changes, runs_dir=tmp_path)
    assert result.outcome.label == "done", result.why
    q_mean = result.run.read_steps()[-1].extra["q_mean"] or 0.0
    assert q_mean < -1.0, "what a step costs is learnt long before the top is found"


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize(
    ("name", "env_steps", "least"),
    [
        ("cartpole-ppo", 99_840, 495),
        ("cartpole-dqn", 99_840, 495),
        ("acrobot-ppo", 499_712, -90),
        ("mountaincar-dqn", 119_808, -110),
        ("pendulum-ppo", 204_800, -250),
    ],
)
def test_an_agent_reaches_its_return_over_100_episodes_that_did_not_select_the_checkpoint(
    name: str, env_steps: int, least: float, seed: int, tmp_path: Path
) -> None:
    result = app.train(EXAMPLES / name / "run.yaml", [f"seed={seed}"], runs_dir=tmp_path)
    assert result.outcome.label == "done", result.why
    found = evaluate(result.run, episodes=100)
    assert isinstance(found, EpisodeEvaluation)
    assert (found.episodes, result.run.read_steps()[-1].extra["env_steps"]) == (100, env_steps)
    assert found.value >= least


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
@pytest.mark.timeout(1800)
def test_shakespeare_by_characters_reaches_the_published_1_88(shakespeare: Path, tmp_path: Path) -> None:
    result = run_example("tinyshakespeare", shakespeare, tmp_path)
    assert result.outcome.label == "done", result.why
    assert result.best is not None
    assert result.best <= 1.88
