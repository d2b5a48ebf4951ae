import socket
import sqlite3
import traceback
from pathlib import Path

import pytest

from tests.suites.registry import sqlite_url
from trainwright.errors import InputError, RegistryError
from trainwright.registry import engines
from trainwright.registry.open import open_registry


@pytest.mark.parametrize(
    "url",
    [
        "",
        "registry.db",
        "mysql://host/database",
        "sqlite://",
        "sqlite:///:memory:",
        "redis://host",
        "sqlite+aiosqlite:///a",
    ],
)
def test_an_url_of_another_kind_is_refused_with_those_known(url: str) -> None:
    with pytest.raises(InputError, match=r"known are sqlite:///path and postgresql://"):
        open_registry(url)


def test_no_message_shows_a_password() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        for url in (f"postgresql://anna:s3cret@127.0.0.1:{port}/registry", "mysql://anna:s3cret@host/database"):
            with pytest.raises((RegistryError, InputError)) as caught:
                open_registry(url)
            assert "s3cret" not in str(caught.value)
            assert "***" in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        *("postgresql://anna:s3cret@host:port/registry", "postgresql://anna:xy@s3cret@host/registry"),
        *("postgresql://anna@127.0.0.1:1/registry?password=s3cret", "mysql://anna@host/registry?password=s3cret"),
    ],
)
def test_an_url_whose_password_stands_oddly_is_refused_without_it(url: str) -> None:
    with pytest.raises((InputError, RegistryError)) as caught:
        open_registry(url)
    assert "s3cret" not in "".join(traceback.format_exception(caught.value)).replace(url, "")


def test_a_server_that_is_not_there_is_told_with_its_place() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(RegistryError, match=rf"127\.0\.0\.1:{port}/registry: the registry does not answer"):
            open_registry(f"postgresql://anna@127.0.0.1:{port}/registry")


def test_a_missing_extra_is_told_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"needs the extra postgres: pip install 'trainwright\[postgres\]'"):
        open_registry("postgresql://host/registry")


def test_a_file_that_is_no_database_is_told(tmp_path: Path) -> None:
    (tmp_path / "registry.db").write_bytes(b"not a database at all, and long enough to be read as one" * 20)
    with pytest.raises(RegistryError, match=r"registry\.db: the registry does not answer .* not a database"):
        open_registry(f"sqlite:///{tmp_path / 'registry.db'}")


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(RegistryError, match="the registry's folder cannot be made"):
        open_registry(f"sqlite:///{tmp_path / 'file' / 'registry.db'}")


def test_a_database_that_another_process_holds_is_waited_for_then_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_registry(sqlite_url(tmp_path)).close()
    monkeypatch.setattr(engines, "BUSY_SECONDS", 0.1)
    holder = sqlite3.connect(sqlite_url(tmp_path).removeprefix("sqlite:///"), isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    registry = open_registry(sqlite_url(tmp_path))
    with pytest.raises(RegistryError, match="database is locked"):
        registry.alias("m", "champion", None, who="anna")
    registry.close()
    holder.close()
