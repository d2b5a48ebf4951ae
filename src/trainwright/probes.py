"""Probes of the machine at hand: the installed command is asked in processes of its own; what it did is recorded."""

import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, Final, final

import msgspec
import numpy as np
import torch

from trainwright import children, environment, yamlfile
from trainwright.checkrecords import Record, record_checks
from trainwright.contract.judge import Verdict, decides_exit
from trainwright.contract.load import load_contract
from trainwright.device import VISIBLE, resolve
from trainwright.errors import InputError, TrainwrightError
from trainwright.nvml import NvmlError, driver

TRAINING_CONTRACT: Final = "training-loop-pretrain-v1"
UNDERSTOOD: Final = ("cpu", "cuda", "cuda:15", "auto")
REFUSED: Final = ("gpu", "CUDA", "cuda:16", "cuda:01", "cuda:-1", "cpu:0")
LAST_GPU: Final = "cuda:15"
PATIENCE_SECONDS: Final = 120.0
VOCABULARY, TOKENS, NOISE = 50, 20_000, 0.3
RUN: Final[Mapping[str, Any]] = {
    "name": "probe",
    "seed": 7,
    "device": "cpu",
    "contract": TRAINING_CONTRACT,
    "model": {"type": "lm", "layers": 2, "width": 32, "heads": 2, "context": 16},
    "data": {"path": "shards"},
    "train": {"steps": 120, "learning_rate": 1e-2, "batch_size": 8, "threads": 1, "target": "unigram_entropy"},
    "validate": {"every": 40},
}


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One row of checks.jsonl: what was asked of the command, and what it did. None is what this probe does not ask."""

    name: str
    exit_code: int
    seconds: float
    device: str | None = None
    allowed: bool | None = None
    gpus_hidden: bool | None = None
    run_directories: int | None = None
    steps: int | None = None
    failing: int | None = None
    why: str | None = None
    devices_listed: int | None = None
    nvml_devices: int | None = None
    devices_absent: str | None = None
    cuda_build: str | None = None
    cuda_build_absent: str | None = None
    cuda_runtime: str | None = None
    cuda_runtime_absent: str | None = None


def probe(contract: str, *, runs_dir: Path) -> Record:
    """Probe this machine and judge the contract's gates of kind probe; the record is sealed below `runs_dir`.

    Errors: InputError for a contract without such gates; TrainwrightError when a command does not come to its end.
    """
    judged_by = load_contract(contract)
    if not any(gate.entry.kind == "probe" for gate in judged_by.gates):
        raise InputError(f"contract {contract!r} has no gate of kind probe to decide")
    with TemporaryDirectory(prefix="trainwright-probe-") as folder:
        rows = _checks(Machine(Path(folder)))
    here = environment.describe(_device())
    return record_checks("probe", runs_dir, judged_by, environment=here, rows=[*map(msgspec.structs.asdict, rows)])


def _device() -> torch.device:
    return torch.device(resolve("auto").name if torch.cuda.is_available() else "cpu")


def _checks(machine: "Machine") -> Sequence[Check]:
    """Ask all; what is held against a clock first and alone, the rest two at a time."""
    alone = machine.no_fallback()
    asked: list[Callable[[], Check]] = [machine.cpu_path, machine.environment]
    asked += [partial(machine.grammar, name, allowed=True) for name in UNDERSTOOD]
    asked += [partial(machine.grammar, name, allowed=False) for name in REFUSED]
    with ThreadPoolExecutor(2) as two:
        return [*alone, *two.map(lambda ask: ask(), asked)]


@dataclass(frozen=True, slots=True)
class Answer:
    """How a command ended, and what it printed."""

    exit_code: int
    seconds: float
    out: str
    err: str

    def document(self) -> Mapping[str, Any]:
        """Give the JSON document on stdout, or nothing where there is none."""
        try:
            return msgspec.json.decode(self.out, type=dict[str, Any])
        except msgspec.DecodeError:
            return {}


@final
class Machine:
    """The command as it is installed here, run in a folder that holds a run.yaml and data of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "run.yaml").write_text(yamlfile.dump(dict(RUN)), encoding="utf-8")
        _write_tokens(folder / "shards")

    def grammar(self, name: str, *, allowed: bool) -> Check:
        """Have a device read by a name of the grammar, or ask to train on one that only looks so."""
        words = ("config", "run.yaml", f"device={name!r}") if allowed else ("train", "run.yaml", "--device", name)
        done = self._ask(*words)
        return Check(
            name="device_grammar", device=name, allowed=allowed, exit_code=done.exit_code, seconds=done.seconds
        )

    def no_fallback(self) -> Sequence[Check]:
        """Ask for GPUs that are not there: the last of the grammar where there are fewer, any while all are hidden."""
        requests = [("cuda", True), *([(LAST_GPU, False)] if _nvml_devices() <= int(LAST_GPU[5:]) else [])]
        return [self._refused(name, hidden=hidden) for name, hidden in requests]

    def _refused(self, name: str, *, hidden: bool) -> Check:
        runs = self._folder / f"refused-{name.replace(':', '-')}"
        done = self._ask("train", "run.yaml", "--device", name, "--runs-dir", str(runs), hide_gpus=hidden)
        return Check(
            name="no_fallback",
            device=name,
            gpus_hidden=hidden,
            exit_code=done.exit_code,
            seconds=done.seconds,
            run_directories=len([*runs.glob("*")]),
        )

    def cpu_path(self) -> Check:
        """Train a small language model on the CPU under the contract for pretraining."""
        done = self._ask("train", "run.yaml", "--runs-dir", "runs", "--json")
        told = done.document()
        failing = [verdict for verdict in told.get("verdicts", ()) if decides_exit(msgspec.convert(verdict, Verdict))]
        return Check(
            name="cpu_path",
            device="cpu",
            exit_code=done.exit_code,
            seconds=done.seconds,
            steps=told.get("step", 0),
            failing=len(failing),
            why=told.get("why") or done.err.strip()[-500:],
        )

    def environment(self) -> Check:
        """Have the command tell CUDA and every GPU, and hold their number against NVML's own."""
        done = self._ask("version", "--json", show_gpus=True)
        told = done.document()
        absent = told.get("absent", {})
        return Check(
            name="environment",
            exit_code=done.exit_code,
            seconds=done.seconds,
            nvml_devices=_nvml_devices(),
            devices_listed=len(told["devices"]) if "devices" in told else None,
            devices_absent=absent.get("devices"),
            cuda_build=told.get("cuda_build"),
            cuda_build_absent=absent.get("cuda_build"),
            cuda_runtime=told.get("cuda_runtime"),
            cuda_runtime_absent=absent.get("cuda_runtime"),
        )

    def _ask(self, *words: str, hide_gpus: bool = False, show_gpus: bool = False) -> Answer:
        own = children.environment(**({VISIBLE: ""} if hide_gpus else {}))
        if show_gpus:
            own.pop(VISIBLE, None)
        began = perf_counter()
        try:
            done = subprocess.run(  # noqa: S603  our own command and fixed words
                children.command(*words),
                cwd=self._folder,
                env=own,
                capture_output=True,
                text=True,
                timeout=PATIENCE_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            told = (
                f"trainwright {' '.join(words)}: did not end within {PATIENCE_SECONDS:g} s; the probes are not recorded"
            )
            raise TrainwrightError(told) from error
        return Answer(done.returncode, perf_counter() - began, done.stdout, done.stderr)


def _nvml_devices() -> int:
    """Give the number of GPUs by NVML alone; a machine without a driver has none that could be used."""
    try:
        with driver() as nvml:
            return nvml.count()
    except NvmlError:
        return 0


def _write_tokens(folder: Path) -> None:
    """Write token shards whose next token mostly follows from the last: something to learn in a few dozen steps."""
    generator = np.random.default_rng(1)
    folder.mkdir()
    for name, count in (("train.bin", TOKENS), ("val.bin", TOKENS // 10)):
        tokens = generator.integers(0, VOCABULARY, count)
        follows = generator.random(count) >= NOISE
        for place in range(1, count):
            tokens[place] = (tokens[place - 1] * 7 + 3) % VOCABULARY if follows[place] else tokens[place]
        (folder / name).write_bytes(tokens.astype("<u4").tobytes())
