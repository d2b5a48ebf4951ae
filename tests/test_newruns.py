from pathlib import Path

import pytest

from trainwright.errors import StoreError
from trainwright.newruns import create_record, create_run
from trainwright.rundir import all_runs


def test_two_runs_of_one_name_and_second_are_two(tmp_path: Path) -> None:
    first, second = create_run("a", tmp_path, "x: 1\n"), create_run("a", tmp_path, "x: 2\n")
    assert first.path != second.path
    assert (first.config.read_text(), second.config.read_text()) == ("x: 1\n", "x: 2\n")


def test_a_run_directory_that_cannot_be_made_is_told_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    with pytest.raises(StoreError, match=r"runs: cannot be written: .*; make room or choose another --runs-dir"):
        create_run("a", tmp_path / "runs", "")


def test_nothing_is_left_of_a_run_whose_first_records_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="object"):
        create_run("a", tmp_path, "", environment={"unknown": object()})
    assert list(tmp_path.iterdir()) == []


def test_a_record_is_no_run_until_it_has_a_configuration(tmp_path: Path) -> None:
    record = create_record("a", tmp_path, contract="x: 1\n", environment={"device": "cpu"})
    assert sorted(file.name for file in record.path.iterdir()) == ["contract.yaml", "environment.json"]
    assert all_runs(tmp_path) == []
