import json
import subprocess
import sys
from pathlib import Path
from time import perf_counter

import pytest

COMMANDS = (
    *("train", "resume", "gates", "report", "config", "version", "init", "plan", "sample", "export"),
    *("data", "runs"),
)
RUN = "model: {type: tests.toys:Toy, n: 64}\ntrain: {steps: 3, learning_rate: 1e-3}\n"
WITH_MODULES = """
import sys
from trainwright.cli.main import main
sys.argv = ["trainwright", *sys.argv[1:]]
try:
    main()
finally:
    print(*sys.modules, file=open("modules.txt", "w"))
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "run.yaml").write_text(RUN)
    return tmp_path


@pytest.fixture
def environment(child_environment: dict[str, str]) -> dict[str, str]:
    """Hide what GPUs there may be, and give plain text of a known width."""
    hidden = {"CUDA_VISIBLE_DEVICES": "", "NO_COLOR": "1", "COLUMNS": "120", "TERM": "dumb"}
    return {**child_environment, **hidden}


def call(here: Path, environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trainwright", *arguments]
    return subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, check=False)


def test_help_lists_every_command(here: Path, environment: dict[str, str]) -> None:
    done = call(here, environment, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    words = done.stdout.split()
    assert [command for command in COMMANDS if command not in words] == []


def test_help_comes_in_under_three_tenths_of_a_second(here: Path, environment: dict[str, str]) -> None:
    """Take the minimum: whatever else the machine does only adds to the time that the command itself needs.

    Of five runs at least, and of more where the machine is busy all along.
    """
    seconds: list[float] = []
    while len(seconds) < 5 or (min(seconds) >= 0.3 and len(seconds) < 25):
        began = perf_counter()
        assert call(here, environment, "--help").returncode == 0
        seconds.append(perf_counter() - began)
    assert min(seconds) < 0.3, seconds


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "none.yaml"), "none.yaml: cannot be read: No such file or directory"),
        (
            ("train", "run.yaml", "train.step=5"),
            "argument 'train.step=5': unknown key 'train.step'; did you mean 'steps'?",
        ),
        (("train", "run.yaml", "--device", "gpu"), "device 'gpu' is not one of: cpu, cuda, cuda:0 … cuda:15, auto"),
        (("train", "run.yaml", "--device", ""), "device '' is not one of: cpu, cuda, cuda:0 … cuda:15, auto"),
        (("config", "run.yaml", "model.n=0"), "model.n: found 0; input should be greater than or equal to 1"),
        (("resume", "nope"), "nope: is no run directory and no run id below runs; newest runs: none"),
        (("gates", "nope"), "nope: is no run directory"),
    ],
)
def test_wrong_input_is_one_line_on_stderr_and_exit_2(
    here: Path, environment: dict[str, str], arguments: tuple[str, ...], message: str
) -> None:
    done = call(here, environment, *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in here.iterdir()] == ["run.yaml"], "nothing is left behind"


@pytest.mark.parametrize("arguments", [("nonsense",), ("train",), ("train", "run.yaml", "--no-such-option")])
def test_a_wrong_command_line_is_told_without_a_traceback_and_exit_2(
    here: Path, environment: dict[str, str], arguments: tuple[str, ...]
) -> None:
    done = call(here, environment, *arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr


@pytest.mark.parametrize("command", [("train", "run.yaml"), ("train", "run.yaml", "--json")])
@pytest.mark.parametrize("device", ["cuda", "cuda:3"])
def test_a_cuda_device_that_is_not_there_is_refused_at_once_before_torch_is_imported(
    here: Path, environment: dict[str, str], command: tuple[str, ...], device: str
) -> None:
    began = perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", WITH_MODULES, *command, "--device", device],
        cwd=here,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert perf_counter() - began < 2.0
    assert done.returncode == 5, done.stderr
    assert done.stderr.startswith(f"error: device '{device}' was asked for, and this machine shows 0 CUDA devices")
    assert (done.stderr.count("\n"), done.stdout) == (1, "")
    modules = (here / "modules.txt").read_text().split()
    assert "trainwright.config" in modules
    assert "torch" not in modules
    assert not (here / "runs").exists()


def test_json_is_one_document_on_stdout_and_nothing_else(here: Path, environment: dict[str, str]) -> None:
    done = call(here, environment, "train", "run.yaml", "--json", "--device", "auto")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["outcome"], document["step"], done.stdout.count("\n")) == ("done", 3, 1)
    assert done.stderr == "device auto: no CUDA device, using the CPU\n", "the notice stands once, and not on stdout"


def test_without_a_terminal_a_run_prints_plain_lines(here: Path, environment: dict[str, str]) -> None:
    done = call(here, environment, "train", "run.yaml", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert not {"\r", "\x1b"} & set(done.stdout + done.stderr)
    assert "done (exit 0): budget of 3 steps reached" in done.stdout
    assert done.stderr.splitlines()[-1].startswith("step 3/3 · loss ")
