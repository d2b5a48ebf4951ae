"""Every exit code of the README's table, from the command as a user starts it, with what it says and what it leaves."""

import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from tests.acceptance import harness
from trainwright import yamlfile
from trainwright.device import GRAMMAR
from trainwright.jsonfile import read_json

CONTRACT = "training-loop-pretrain-v1"
DEVICE_SECONDS = 2.0
ADDRESS_SPACE_BYTES = 4 << 30
TOO_WIDE = 40_000_000  # × 64 inputs × 4 bytes: 10 GB of weights

# A trainable whose step 5 ends only when a file appears; until then it writes to `beats`, one byte at a time.
WAITS = """
from pathlib import Path
from tests.toys import Toy
from threading import Event

class Waits(Toy):
    def forward(self, batch):
        pause = Event()
        while self.training and self.step == 5 and not Path("go").exists():
            with open("beats", "ab") as file:
                file.write(b".")
            pause.wait(0.002)
        return super().forward(batch)
"""
# The command, and then the names of what it had imported.
WITH_MODULES = """
import sys
from trainwright.cli.main import main
try:
    main()
finally:
    print(*sys.modules, file=open("modules.txt", "w"))
"""
FAILS = """
from tests.toys import Toy

class Fails(Toy):
    def forward(self, batch):
        if self.training and self.step == 5:
            raise ZeroDivisionError("no such thing")
        return super().forward(batch)
"""


class Folder:
    """A working directory with a run.yaml, in which the command is started."""

    def __init__(self, path: Path, environment: Mapping[str, str]) -> None:
        self.path = path
        self._environment = environment

    def write(self, **changes: Any) -> None:
        (self.path / "run.yaml").write_text(yamlfile.dump(harness.config(**changes)))

    @property
    def runs_dir(self) -> Path:
        return self.path / "runs"

    def start(
        self, *arguments: str, prepare: Callable[[], None] | None = None, code: Sequence[str] = ("-m", "trainwright")
    ) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, *code, *arguments],
            cwd=self.path,
            env=dict(self._environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=prepare,  # noqa: PLW1509  the parent has no threads of its own that could hold a lock
        )

    def run(self, *arguments: str, prepare: Callable[[], None] | None = None) -> harness.Completed:
        return ended(self.start(*arguments, prepare=prepare))

    def result(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = read_json(harness.only_run(self.runs_dir).result)
        return found

    def leaves_no_run(self) -> bool:
        return not self.runs_dir.exists()


def ended(process: "subprocess.Popen[str]") -> harness.Completed:
    out, err = process.communicate(timeout=harness.DEADLINE_SECONDS)
    return harness.Completed(process.returncode, out, err)


def the_error(completed: harness.Completed) -> str:
    """Give the one message of a command that failed, and hold that there is neither a traceback nor any output."""
    assert "Traceback" not in completed.err
    assert completed.out == ""
    [_, message] = completed.err.split("error: ")
    return message.strip()


@pytest.fixture
def folder(tmp_path: Path, child_environment: Mapping[str, str]) -> Folder:
    folder = Folder(tmp_path, child_environment)
    folder.write(train__steps=20)
    return folder


def test_0_a_run_whose_gates_all_hold(folder: Folder) -> None:
    shards = harness.token_shards(folder.path / "shards")
    values = harness.language_model(shards, contract=CONTRACT, train__target="unigram_entropy")
    (folder.path / "lm.yaml").write_text(yamlfile.dump(values))
    completed = folder.run("train", "lm.yaml")
    assert completed.code == 0, completed.err
    assert folder.result()["outcome"] == "done"
    assert "done (exit 0): budget of 60 steps reached" in completed.out
    assert folder.run("gates", "latest").code == 0


def test_1_a_trainable_that_fails_is_one_message_and_its_records_stay(folder: Folder) -> None:
    (folder.path / "fails.py").write_text(FAILS)
    completed = folder.run("train", "run.yaml", "model.type=fails:Fails")
    assert completed.code == 1
    place = f"{folder.path / 'fails.py'}:7, in forward"
    assert the_error(completed).startswith(f"step 5: ZeroDivisionError: no such thing (at {place})")
    assert harness.rows_on_disk(folder.runs_dir) == 5


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("  stepz: 20", "run.yaml:3: unknown key 'train.stepz'; did you mean 'steps'?"),
        ("  steps: many", "run.yaml:3: train.steps: found 'many'; input should be a valid integer"),
        ("  steps: 20\n  batch_size: 0", "run.yaml:4: train.batch_size: found 0; input should be greater than"),
        ("  steps: [20", "run.yaml:4: is not valid YAML"),
    ],
)
def test_2_a_wrong_line_of_run_yaml_is_named(line: str, message: str, folder: Folder) -> None:
    text = f"model: {{type: 'tests.toys:Toy'}}\ntrain:\n{line}\n  learning_rate: 0.1\n"
    (folder.path / "run.yaml").write_text(text)
    completed = folder.run("train", "run.yaml")
    assert completed.code == 2
    assert message in the_error(completed)
    assert folder.leaves_no_run()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "run.yaml", "contract=training-loop-v9"], CONTRACT),
        (["train", "no.yaml"], "no.yaml: cannot be read: No such file or directory"),
        (["train", "run.yaml", "train.steps"], "argument 'train.steps': expected key=value"),
        (["train", "run.yaml", "train.steps=-1"], "argument 'train.steps=-1': train.steps: found -1"),
        (["train", "run.yaml", "train.step=5"], "unknown key 'train.step'; did you mean 'steps'?"),
        (["config", "run.yaml", "model.n=0"], "model.n: found 0; input should be greater than or equal to 1"),
        (["resume", "nothing"], "nothing: is no run directory and no run id below runs; newest runs: none"),
        (["gates", "latest"], "latest: is no run directory"),
    ],
)
def test_2_a_wrong_argument_is_named(arguments: Sequence[str], message: str, folder: Folder) -> None:
    completed = folder.run(*arguments)
    assert completed.code == 2
    assert message in the_error(completed)
    assert folder.leaves_no_run()


@pytest.mark.parametrize("arguments", [["trian"], ["train"], ["train", "run.yaml", "--jsn"]])
def test_2_a_wrong_command_line_is_told_with_its_usage(arguments: Sequence[str], folder: Folder) -> None:
    completed = folder.run(*arguments)
    assert completed.code == 2
    assert "Usage: " in completed.err
    assert "Traceback" not in completed.err


@pytest.mark.parametrize("device", ["gpu", "CUDA", "cuda:16", "cuda:01", ""])
def test_2_a_device_outside_the_grammar_is_refused_with_the_grammar(device: str, folder: Folder) -> None:
    completed = folder.run("train", "run.yaml", "--device", device)
    assert completed.code == 2
    assert f"device {device!r} is not one of" in the_error(completed)
    assert GRAMMAR in completed.err
    assert folder.leaves_no_run()


def test_3_a_target_that_is_not_met(folder: Folder) -> None:
    shards = harness.token_shards(folder.path / "shards")
    values = harness.language_model(shards, contract=CONTRACT, train__target=0.01, train__steps=20)
    (folder.path / "lm.yaml").write_text(yamlfile.dump(values))
    completed = folder.run("train", "lm.yaml")
    assert completed.code == 3, completed.err
    assert folder.result()["outcome"] == "gate_failed"
    assert "does not hold: GATE-TRAIN-003" in completed.out
    assert folder.run("gates", "latest").code == 3


@pytest.mark.parametrize(
    ("changes", "step", "why"),
    [
        ({"model__nan_at_step": 15}, 15, "step 15: train_loss is nan; stopped before the optimizer took the step"),
        (
            {"train__learning_rate": 3.0, "train__clip_norm": None, "validate__every": 5},
            5,
            "is more than 2 × the previous one",
        ),
        (
            {"train__mode": "finetune", "model__loss_scale": 1000.0},
            0,
            "is above its cap, 10",
        ),
    ],
    ids=["a loss that is not a number", "a validation that diverges", "a first validation above its cap"],
)
def test_4_an_abort_by_a_guard(changes: Mapping[str, Any], step: int, why: str, folder: Folder) -> None:
    folder.write(**{"train__steps": 20, "schedule__kind": "constant", **changes})
    completed = folder.run("train", "run.yaml")
    assert completed.code == 4, completed.err
    result = folder.result()
    assert (result["outcome"], result["step"]) == ("aborted", step)
    assert why in result["why"]
    assert f"aborted (exit 4): {result['why']}" in completed.out


@pytest.mark.parametrize("arguments", [["--device", "cuda"], ["--device", "cuda:3", "--json"], ["device=cuda"]])
def test_5_a_device_that_is_not_there_is_refused_at_once_before_torch_is_imported(
    arguments: Sequence[str], tmp_path: Path, child_environment: Mapping[str, str]
) -> None:
    """The least of up to five tries counts: what else the machine does only adds to what the command itself needs."""
    folder = Folder(tmp_path, {**child_environment, "CUDA_VISIBLE_DEVICES": ""})
    folder.write(train__steps=20)
    for tries_left in reversed(range(5)):
        began = monotonic()
        completed = ended(folder.start("train", "run.yaml", *arguments, code=["-c", WITH_MODULES]))
        if (seconds := monotonic() - began) < DEVICE_SECONDS or not tries_left:
            break
    assert seconds < DEVICE_SECONDS
    assert completed.code == 5
    assert "was asked for, and this machine shows 0 CUDA devices" in the_error(completed)
    assert completed.err.count("\n") == 1
    modules = (tmp_path / "modules.txt").read_text().split()
    assert "trainwright.config" in modules
    assert "torch" not in modules
    assert folder.leaves_no_run()


def test_6_data_that_are_not_there(folder: Folder) -> None:
    values = harness.language_model(folder.path / "nowhere")
    (folder.path / "lm.yaml").write_text(yamlfile.dump(values))
    completed = folder.run("train", "lm.yaml")
    assert completed.code == 6
    assert str(folder.path / "nowhere") in the_error(completed)
    assert folder.leaves_no_run()


def test_6_data_that_end_where_they_must_not_be_repeated(folder: Folder) -> None:
    folder.write(train__steps=20, model__exhaustion="halt")
    completed = folder.run("train", "run.yaml")
    assert completed.code == 6, completed.err
    result = folder.result()
    assert (result["outcome"], result["step"]) == ("data_exhausted", 10)
    assert harness.rows_on_disk(folder.runs_dir) == 10


def test_7_a_place_in_which_no_run_can_be_made(folder: Folder) -> None:
    """A disk that fills up later: test_full_disk.py."""
    (folder.path / "file").touch()
    completed = folder.run("train", "run.yaml", "--runs-dir", "file")
    assert completed.code == 7
    assert the_error(completed).endswith("choose another --runs-dir")


def limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))


def test_8_a_model_that_does_not_fit_in_memory(folder: Folder) -> None:
    completed = folder.run("train", "run.yaml", f"model.hidden={TOO_WIDE}", prepare=limit_memory)
    assert completed.code == 8
    assert "out of memory" in the_error(completed)
    assert "lower train.batch_size" in completed.err
    assert folder.leaves_no_run()


def test_8_a_step_that_does_not_fit_in_memory_is_on_record(folder: Folder) -> None:
    """The weights take 77 MB; the hidden layer of a batch of 4,000 asks for 4.8 GB in one piece."""
    wide = ["model.hidden=300000", "model.n=4000", "train.batch_size=4000", "validate.at_start=false"]
    completed = folder.run("train", "run.yaml", *wide, prepare=limit_memory)
    assert completed.code == 8, completed.err
    result = folder.result()
    assert (result["outcome"], result["step"]) == ("out_of_memory", 0)
    assert "peak of this process" in result["why"]
    assert "lower train.batch_size" in result["why"]


def in_training(folder: Folder, *, rows: int = 30) -> "subprocess.Popen[str]":
    """Start a run that would take a million steps, and wait until some of them are on disk."""
    folder.write(train__steps=1_000_000, validate__every=100_000)
    process = folder.start("train", "run.yaml")
    harness.until(lambda: harness.rows_on_disk(folder.runs_dir) >= rows or process.poll() is not None)
    assert process.poll() is None
    return process


@pytest.mark.parametrize(
    ("number", "code", "outcome"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_130_and_143_a_signal_ends_the_step_and_saves(
    number: signal.Signals, code: int, outcome: str, folder: Folder
) -> None:
    process = in_training(folder)
    process.send_signal(number)
    completed = ended(process)
    assert completed.code == code, completed.err
    result, run = folder.result(), harness.only_run(folder.runs_dir)
    assert result["outcome"] == outcome
    assert (run.checkpoints / f"step-{result['step']:08d}.a1" / "manifest.json").exists()
    assert run.read_steps()[-1].step == result["step"] - 1
    assert f"stopped by {number.name} after step {result['step']}" in completed.out


def test_130_a_second_interrupt_ends_a_step_that_does_not(folder: Folder) -> None:
    (folder.path / "waits.py").write_text(WAITS)
    folder.write(model__type="waits:Waits")
    process, beats = folder.start("train", "run.yaml"), folder.path / "beats"

    def more_beats() -> None:
        seen = beats.stat().st_size if beats.exists() else 0
        harness.until(lambda: beats.exists() and beats.stat().st_size >= seen + 3)

    more_beats()
    process.send_signal(signal.SIGINT)
    more_beats()  # three times around the loop: the signal was taken in, and the step goes on
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    completed = ended(process)
    assert completed.code == 130
    assert "Traceback" not in completed.err
    assert harness.rows_on_disk(folder.runs_dir) == 5
    assert not harness.only_run(folder.runs_dir).result.exists()


def test_143_a_signal_before_the_step_ends_lets_it_end(folder: Folder) -> None:
    (folder.path / "waits.py").write_text(WAITS)
    folder.write(model__type="waits:Waits")
    process, beats = folder.start("train", "run.yaml"), folder.path / "beats"
    harness.until(beats.exists)
    process.send_signal(signal.SIGTERM)
    (folder.path / "go").touch()
    assert ended(process).code == 143
    assert folder.result()["step"] == 6
