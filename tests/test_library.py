"""The user's registry and store, as the settings name them, and what training does with them by itself."""

from pathlib import Path

import pytest

from tests.acceptance import harness
from tests.attached import TEXT, contract_file
from tests.suites.registry import facts
from trainwright import app, library, versionfiles
from trainwright.errors import InputError
from trainwright.registry.open import open_registry
from trainwright.rundir import RunDirectory
from trainwright.settings import HOME_VARIABLE, REGISTRY_VARIABLE, STORE_VARIABLE


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    for variable in (REGISTRY_VARIABLE, STORE_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path / "home"


def train(folder: Path, **changes: object) -> RunDirectory:
    values = harness.config(**{"train__steps": 12, "register": {"name": "toy"}, **changes})
    return app.train(values, runs_dir=folder / "runs").run


def test_a_run_that_says_so_is_registered_in_the_embedded_registry_when_it_ends(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(tmp_path)
    assert capsys.readouterr().err == "toy@0.1.0 is ready\n"
    with library.opened() as mine:
        version = mine.registry.latest("toy")
    assert version.artifact_url == f"{(home / 'store').as_uri()}/models/toy/0.1.0"
    assert (home / "store" / "models" / "toy" / "0.1.0" / "version.json").is_file()
    assert versionfiles.problems_of(library.shelf_of(version).store, version) == []
    assert [row.kind for row in run.read_after()] == ["registered"]


def test_a_second_run_gets_the_next_number_by_its_bump(tmp_path: Path) -> None:
    train(tmp_path)
    train(tmp_path, register={"name": "toy", "bump": "major"})
    with library.opened() as mine:
        assert [str(one.number) for one in mine.registry.ls()] == ["0.1.0", "1.0.0"]


def test_a_run_that_says_nothing_makes_no_registry(home: Path, tmp_path: Path) -> None:
    train(tmp_path, register=None)
    assert not home.exists()


def test_a_run_whose_gate_fails_is_not_registered_and_that_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    contract = contract_file(tmp_path, TEXT.replace("median_ms < 60000", "median_ms < 0.0001"))
    run = train(tmp_path, contract=str(contract))
    assert f"{run.id}: is not registered: {run.id}: " in capsys.readouterr().err
    with library.opened() as mine:
        assert not mine.registry.ls(deleted=True)


def test_an_aborted_run_is_not_registered(home: Path, tmp_path: Path) -> None:
    train(tmp_path, model__nan_at_step=7)
    assert not home.exists()


def test_with_a_store_that_is_down_the_run_ends_as_it_did_and_the_version_is_completed_later(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home.mkdir()
    (home / "store").write_bytes(b"in the way")
    run = train(tmp_path)
    result = run.read_result()
    assert result is not None
    assert result.exit_code == 0
    assert "toy@0.1.0 is pending: " in capsys.readouterr().err
    (still,) = library.complete_pending(run.path.parent)
    assert still.why is not None
    (home / "store").unlink()
    (done,) = library.complete_pending(run.path.parent)
    assert (done.version.reference, done.version.status) == ("toy@0.1.0", "ready")
    assert library.complete_pending(run.path.parent) == []


def test_a_version_whose_store_cannot_be_found_keeps_no_other_pending(home: Path, tmp_path: Path) -> None:
    home.mkdir()
    (home / "store").write_bytes(b"in the way")
    run = train(tmp_path)
    (home / "store").unlink()
    with library.opened() as mine:
        nowhere = facts("run-1", hyperparameters={"checkpoint": {"store": "env:NO_SUCH_PLACE"}})
        mine.registry.register("a", nowhere, "minor", who="anna@desk")
    done = library.complete_pending(run.path.parent)
    assert [(one.version.reference, one.why is None) for one in done] == [("a@0.1.0", False), ("toy@0.1.0", True)]
    assert "NO_SUCH_PLACE" in str(done[0].why)


def test_a_registry_that_cannot_be_opened_changes_nothing_of_the_end(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv(REGISTRY_VARIABLE, f"sqlite:///{tmp_path / 'file' / 'registry.db'}")
    result = train(tmp_path).read_result()
    assert result is not None
    assert result.exit_code == 0
    assert "is not registered: " in capsys.readouterr().err


def test_the_environment_names_registry_and_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(REGISTRY_VARIABLE, f"sqlite:///{tmp_path / 'other.db'}")
    monkeypatch.setenv(STORE_VARIABLE, (tmp_path / "away").as_uri())
    train(tmp_path)
    registry = open_registry(f"sqlite:///{tmp_path / 'other.db'}")
    assert registry.latest("toy").artifact_url == f"{(tmp_path / 'away').as_uri()}/models/toy/0.1.0"
    registry.close()


def test_a_store_in_run_yaml_wins(tmp_path: Path) -> None:
    train(tmp_path, checkpoint={"every": 7, "store": (tmp_path / "own").as_uri()})
    with library.opened() as mine:
        version = mine.registry.latest("toy")
    assert versionfiles.store_url_of(version) == (tmp_path / "own").as_uri()
    assert versionfiles.problems_of(library.shelf_of(version).store, version) == []


def test_nothing_is_completed_where_there_is_no_registry(home: Path, tmp_path: Path) -> None:
    assert library.complete_pending(tmp_path) == []
    assert not home.exists()


def test_a_version_without_files_has_no_store(home: Path, tmp_path: Path) -> None:
    home.mkdir()
    (home / "store").write_bytes(b"in the way")
    train(tmp_path)
    with library.opened() as mine:
        (listed,) = mine.registry.ls()
    with pytest.raises(InputError, match="is pending; its files are in no store yet"):
        library.shelf_of(listed)
