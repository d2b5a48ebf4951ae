"""`make gpu-evidence`, at toy size on the CPU; and that nothing here claims what no GPU has shown."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance import harness
from trainwright import yamlfile
from trainwright.config import RunConfig
from trainwright.contract.load import file_of, load_contract
from trainwright.evidence import verify
from trainwright.models.lm import PRESETS
from trainwright.rundir import EVIDENCE
from trainwright.statuses import STATUSES, statuses_of

ROOT = Path(__file__).resolve().parent.parent.parent
CONTRACT = "gpu-training-backend-v1"
NEED_A_GPU = ("GATE-GPUTRAIN-003", "GATE-GPUTRAIN-004")
TOY = "model.preset=0.8m model.layers=2 model.context=32 model.vocabulary_size=512 train.precision=fp32"
SHORT = "train.compile=false train.batch_size=2 train.threads=1 validate.every=50 train.steps=50"


def statuses(file: Path) -> dict[str, str]:
    return {one.gate: one.status for one in statuses_of(file)}


# -- the command -----------------------------------------------------------------------------------------------------


def on_cpu() -> str:
    """Give the contract without evidence, its step budget applied to the CPU."""
    text = without_evidence()
    bound = "applies: {device: cuda, min_parameters: 366_000_000}"
    assert text.count(bound) == 1
    return text.replace(bound, "applies: {device: cpu}").replace("device: cuda, parameters", "device: cpu, parameters")


def without_evidence() -> str:
    return file_of(CONTRACT).read_text(encoding="utf-8").partition("\nevidence:\n")[0]


def make(folder: Path, contract: str, environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    (folder / "copy.yaml").write_text(contract, encoding="utf-8")
    variables = {
        "BIN": str(Path(sys.executable).parent),
        "GPU_DEVICE": "cpu",
        "GPU_CONTRACT": str(folder / "copy.yaml"),
        "GPU_DATA": str(folder / "data"),
        "GPU_PREPARE": f"--input {ROOT / 'src'} --vocab-size 512",
        "GPU_RUNS": str(folder / "runs"),
        "GPU_TRAIN": f"{TOY} {SHORT}",
    }
    words = [f"{name}={value}" for name, value in variables.items()]
    command = ["make", "-C", str(ROOT), "-o", ".venv/installed", "gpu-evidence", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, child_environment: dict[str, str]) -> tuple[Path, str]:
    """Make it once, in a copy of the contract whose step budget applies to the CPU; give the folder and the output."""
    folder = tmp_path_factory.mktemp("evidence")
    (folder / "shipped.yaml").write_text(without_evidence(), encoding="utf-8")
    done = make(folder, on_cpu(), child_environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout


def test_a_run_that_misses_its_budget_does_not_keep_the_probes_from_being_attached(
    tmp_path: Path, child_environment: dict[str, str]
) -> None:
    text = on_cpu()
    assert text.count("holds: median_ms < 500") == 1
    done = make(tmp_path, text.replace("holds: median_ms < 500", "holds: median_ms < 1e-6"), child_environment)
    assert (done.returncode, "Error 3" in done.stderr) == (2, True), done.stdout + done.stderr
    found = statuses(tmp_path / "copy.yaml")
    assert (found["GATE-GPUTRAIN-002"], found["GATE-GPUTRAIN-004"]) == ("active_with_live_evidence", "proposed")


def test_one_command_trains_probes_and_attaches_what_the_device_shows(made: tuple[Path, str]) -> None:
    folder, out = made
    assert statuses(folder / "copy.yaml") == {
        "GATE-GPUTRAIN-001": "active_with_live_evidence",
        "GATE-GPUTRAIN-002": "active_with_live_evidence",
        "GATE-GPUTRAIN-003": "partial_algorithm_level",
        "GATE-GPUTRAIN-004": "active_with_live_evidence",
        "GATE-GPUTRAIN-005": "active_with_live_evidence",
        "GATE-GPUTRAIN-006": "active_with_live_evidence",
        "GATE-GPUTRAIN-UTIL": "partial_algorithm_level",
    }
    assert {device_of(folder / entry.folder) for entry in load_contract(folder / "copy.yaml").entry.evidence} == {"cpu"}
    assert "GATE-GPUTRAIN-003" in out
    assert verify(harness.only_run(folder / "runs").path) == []


def test_a_run_on_the_cpu_is_evidence_for_no_gate_of_a_gpu(made: tuple[Path, str]) -> None:
    folder, _ = made
    run, shipped = harness.only_run(folder / "runs"), folder / "shipped.yaml"
    done = harness.command(folder, "evidence", "attach", run.path, "--to", shipped)
    assert done.code == 3, done.out
    assert {statuses(shipped)[gate] for gate in NEED_A_GPU} == {"partial_algorithm_level"}
    assert not (run.path / "attempts" / "1" / "devices.csv").exists()


def test_what_is_trained_is_the_370m_preset_as_the_step_budget_asks_for_it() -> None:
    config = RunConfig.load(ROOT / "examples" / "gpu-evidence" / "run.yaml")
    values = config.to_dict()
    assert values["model"]["preset"] == "370m"
    assert values["model"]["vocabulary_size"] == PRESETS["370m"].vocabulary_size
    assert (values["train"]["batch_size"], values["model"]["context"], values["train"]["steps"]) == (16, 512, 100)
    assert (values["train"]["precision"], values["train"]["compile"], values["device"]) == ("bf16", True, "cuda")
    assert values["train"]["init"] is None, "random weights"
    assert config.contract == CONTRACT


# -- no other claim --------------------------------------------------------------------------------------------------


def shown_on_a_gpu(gate: str) -> bool:
    """Tell whether the shipped contract holds evidence of the gate whose sealed record names a CUDA device."""
    return any(
        entry.gate == gate and device_of(file_of(CONTRACT).parent / entry.folder) == "cuda"
        for entry in load_contract(CONTRACT).entry.evidence
    )


def device_of(folder: Path) -> str:
    """Give the kind of device that a sealed statement names."""
    device: str = json.loads((folder / EVIDENCE).read_bytes())["predicate"]["environment"]["device"]
    return device


@pytest.mark.parametrize("gate", NEED_A_GPU)
def test_without_evidence_that_names_a_gpu_the_status_is_that_of_fixtures_alone(gate: str) -> None:
    by_fixtures = statuses(file_of(CONTRACT))[gate] == "partial_algorithm_level"
    assert by_fixtures == (not shown_on_a_gpu(gate))


def test_no_page_gives_these_gates_another_status_than_the_computed_one() -> None:
    computed = statuses(file_of(CONTRACT))
    pages = [ROOT / "README.md", *sorted((ROOT / "examples").rglob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    told = []
    for page in pages:
        for paragraph in re.split(r"\n\s*\n|\n(?=[|\-*#])", page.read_text(encoding="utf-8")):
            gates = [gate for gate in NEED_A_GPU if gate in paragraph]
            told += [(gate, status) for gate in gates for status in STATUSES if status in paragraph]
    assert {gate for gate, _ in told} == set(NEED_A_GPU), "README says where they stand"
    assert {(gate, status) for gate, status in told if status != computed[gate]} == set()


def samples_without_a_gpu(folder: Path) -> list[Path]:
    """Give the samples of a device beside a contract whose sealed record names no CUDA device."""
    return [file for file in sorted(folder.glob("evidence/*/*/devices*.csv")) if device_of(file.parent) != "cuda"]


def test_no_record_of_a_gpu_is_kept_that_no_gpu_made(made: tuple[Path, str], tmp_path: Path) -> None:
    assert samples_without_a_gpu(file_of(CONTRACT).parent) == []
    copy = Path(shutil.copytree(made[0] / "evidence", tmp_path / "evidence"))
    invented = next(copy.glob("*/*/evidence.json")).with_name("devices.csv")
    invented.touch()
    assert samples_without_a_gpu(tmp_path) == [invented]


def test_the_example_is_valid_and_its_page_holds_no_figure() -> None:
    assert yamlfile.load(ROOT / "examples" / "gpu-evidence" / "run.yaml").data["device"] == "cuda"
    page = (ROOT / "examples" / "gpu-evidence" / "README.md").read_text(encoding="utf-8")
    if not any(map(shown_on_a_gpu, NEED_A_GPU)):
        assert "none was measured on a GPU yet" in page
