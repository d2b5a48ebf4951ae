import re
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from trainwright import __version__, environment
from trainwright.config import RunConfig

CPU = torch.device("cpu")


def config(**train: Any) -> RunConfig:
    return RunConfig.parse({"model": {"type": "lm"}, "train": {"steps": 1, "learning_rate": 1e-3, **train}})


def git(*arguments: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, *arguments], check=True, capture_output=True)


def test_what_decides_the_bits_stands_in_the_conditions() -> None:
    told = config(batch_size=3, accumulate=2, precision="bf16")
    found = environment.conditions(told, CPU)
    assert {"torch": torch.__version__, "threads": torch.get_num_threads(), "device": "cpu"}.items() <= found.items()
    assert {"precision": "bf16", "batch_size": 3, "accumulate": 2, "compile": False}.items() <= found.items()
    assert found["optimizer_implementation"] == "fused"
    assert found["cpu_capability"]
    assert msgspec.json.decode(msgspec.json.encode(found)) == found, "they come back from a checkpoint as they were"


def test_only_conditions_that_differ_are_told_with_both_values() -> None:
    before = environment.conditions(config(), CPU)
    assert environment.differences(before, environment.conditions(config(), CPU)) == {}
    now = environment.conditions(config(batch_size=5, compile=True), CPU)
    assert environment.differences(before, now) == {"batch_size": [8, 5], "compile": [False, True]}
    assert environment.differences({}, {"threads": 2}) == {"threads": [None, 2]}
    assert environment.differences({"data": "a" * 64, "threads": 2}, {"threads": 2}) == {"data": ["a" * 64, None]}


def test_threads_and_determinism_are_set_inside_and_put_back_also_after_an_error() -> None:
    threads = torch.get_num_threads()
    inside: list[tuple[int, bool]] = []

    def fail() -> None:
        with environment.deterministic(config(threads=threads + 1), CPU):
            inside.append((torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert inside == [(threads + 1, True)]
    assert torch.get_num_threads() == threads
    assert not torch.are_deterministic_algorithms_enabled()


def test_without_a_number_of_threads_the_process_keeps_its_own() -> None:
    threads = torch.get_num_threads()
    with environment.deterministic(config(), CPU):
        assert torch.get_num_threads() == threads


def test_the_record_is_json_and_names_versions_host_and_device() -> None:
    found = msgspec.json.decode(msgspec.json.encode(environment.describe(CPU)))
    assert (found["trainwright"], found["device"], found["device_name"]) == (__version__, "cpu", "cpu")
    assert found["packages"]["torch"] == torch.__version__
    assert None not in (found["packages"]["numpy"], found["host"]["name"], found["python"])


def test_the_driver_is_told_by_its_version_or_by_the_reason_why_there_is_none() -> None:
    found = environment.describe(CPU)
    version, reason = found["driver"], found["absent"]["driver"]
    assert (version is None) == (reason is not None)
    assert re.fullmatch(r"[0-9]+(\.[0-9]+)+", version) if version else str(reason).startswith("NVML: ")


def test_outside_a_repository_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)
    assert environment.describe(CPU)["git"] is None


def test_a_repository_is_told_by_its_commit_and_whether_it_is_dirty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "first")
    clean = environment.describe(CPU)["git"]
    assert len(clean["commit"]) == 40
    assert clean["dirty"] is False
    (tmp_path / "new").touch()
    assert environment.describe(CPU)["git"] == {**clean, "dirty": True}


def test_without_git_there_is_no_commit_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert environment.describe(CPU)["git"] is None
