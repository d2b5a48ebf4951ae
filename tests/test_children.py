import sys
from pathlib import Path

import pytest

from trainwright.children import Child, environment
from trainwright.errors import InputError


def test_a_command_that_fails_is_told_with_its_own_words() -> None:
    with Child("train", "none.yaml") as child, pytest.raises(InputError) as told:
        child.finish()
    assert str(told.value).startswith("trainwright train none.yaml: exit code 2: error: none.yaml: cannot be read")


def test_a_kill_tells_whether_it_ended_the_process() -> None:
    with Child("version") as running, Child("--help") as ended:
        assert running.kill()
        assert not running.runs()
        ended.finish()
        assert not ended.kill()


def test_a_child_imports_no_library_from_the_folder_it_stands_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "msgspec.py").write_text("raise SystemExit('imported from beside run.yaml')")
    monkeypatch.chdir(tmp_path)
    with Child("version", "--json") as child:
        child.finish()


def test_a_child_finds_what_this_process_finds_by_a_relative_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["libraries", "", "/elsewhere"])
    assert environment(MORE="x")["PYTHONPATH"] == f"{tmp_path / 'libraries'}:/elsewhere"
    assert environment(MORE="x")["MORE"] == "x"
