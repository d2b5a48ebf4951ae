"""What a run ran on: conditions under which a resume is exact, and the record of versions, host and device."""

import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import torch

from trainwright import __version__
from trainwright.config import RunConfig
from trainwright.device import driver_version

LARGEST_KEPT_BYTES: Final = 32_000_000  # glibc takes no larger block for one that it should keep
PACKAGES = ("torch", "numpy", "safetensors", "tokenizers", "duckdb", "pyarrow", "msgspec", "pydantic")


def conditions(config: RunConfig, device: torch.device) -> dict[str, Any]:
    """Give what must be equal for equal bits: a resume under others is recorded as not exact."""
    return {
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "device": device_name(device),
        "precision": config.train.precision,
        "compile": config.train.compile,
        "optimizer_implementation": config.optimizer.implementation,
        "batch_size": config.train.batch_size,
        "accumulate": config.train.accumulate,
        "world_size": 1,
    }


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Give name → [before, now] for each condition that differs; None where one has no such condition."""
    names = dict.fromkeys((*before, *now))
    return {name: [before.get(name), now.get(name)] for name in names if before.get(name) != now.get(name)}


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def describe(device: torch.device) -> dict[str, Any]:
    """Give the record of this machine and process; what is not there is null, with the reason under `absent`."""
    driver, no_driver = driver_version()
    return {
        "trainwright": __version__,
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "host": {"name": platform.node(), "system": platform.platform(), "cpus": os.cpu_count()},
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "device": device.type,
        "device_name": device_name(device),
        "cuda": torch.version.cuda,
        "driver": driver,
        "git": _git(),
        "command": sys.argv,
        "absent": {"driver": no_driver},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git() -> dict[str, Any] | None:
    """Give commit and dirtiness of the working directory's repository, or None outside one."""
    commit = _output("git", "rev-parse", "HEAD")
    return None if commit is None else {"commit": commit, "dirty": bool(_output("git", "status", "--porcelain"))}


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)  # noqa: S603  fixed words
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


@contextmanager
def deterministic(config: RunConfig, device: torch.device) -> Iterator[None]:
    """Set threads and, on the CPU, deterministic algorithms while a run trains; then put both back.

    On the CPU the process keeps freed memory from then on, as `keep_freed_memory` says.

    torch would fill fresh memory as well, which shows code that reads what it never wrote; that is off: it costs 2 %.
    """
    threads, algorithms = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    switches: Any = torch.utils.deterministic
    fill = switches.fill_uninitialized_memory
    torch.set_num_threads(config.train.threads or threads)
    torch.use_deterministic_algorithms(device.type == "cpu" or algorithms)
    switches.fill_uninitialized_memory = False
    if device.type == "cpu":
        keep_freed_memory()
    try:
        yield
    finally:
        switches.fill_uninitialized_memory = fill
        torch.use_deterministic_algorithms(algorithms)
        torch.set_num_threads(threads)


def keep_freed_memory() -> None:
    """Let glibc keep what a step frees for the next one, up to twice this block, which is never touched.

    It gives memory back to the system where more is free than twice the largest block that it ever got back; a step
    would then begin each page anew, up to a fifth of its time. Where the environment sets the threshold, that stays.
    """
    torch.empty(LARGEST_KEPT_BYTES, dtype=torch.uint8)
