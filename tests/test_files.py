import hashlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainwright import files

WRITER = """
import sys
from pathlib import Path
from trainwright.files import write_atomically
while True:
    for letter in (b"a", b"b"):
        write_atomically(Path(sys.argv[1]), letter * 1_000_000)
        print(flush=True)
"""


@contextmanager
def file_size_limit(size_bytes: int) -> Iterator[None]:
    """Let the system refuse to write past `size_bytes`, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20, deadline=None)
@given(st.binary(max_size=300))
def test_what_is_written_is_what_stands_in_the_file_and_nothing_else_is_left(tmp_path: Path, data: bytes) -> None:
    files.write_atomically(tmp_path / "a", data)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": data}


def test_a_view_of_larger_items_is_written_as_its_bytes(tmp_path: Path) -> None:
    view = memoryview(bytes(range(16))).cast("I", (2, 2))
    files.write_atomically(tmp_path / "a", view)
    assert (tmp_path / "a").read_bytes() == bytes(range(16))


def test_a_write_that_is_cut_short_leaves_the_earlier_file_and_no_temporary_one(tmp_path: Path) -> None:
    files.write_atomically(tmp_path / "a", b"earlier")
    with file_size_limit(1000), pytest.raises(OSError, match="File too large"):
        files.write_atomically(tmp_path / "a", b"x" * 5000)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"earlier"}


def test_a_target_that_cannot_be_replaced_is_an_error_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(IsADirectoryError):
        files.write_atomically(tmp_path / "a", b"data")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_the_bytes_are_durable_before_the_name_and_the_name_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write_atomically(tmp_path / "a", b"old")
    sync, seen = os.fsync, []

    def noting(descriptor: int) -> None:
        sync(descriptor)
        seen.append((Path(f"/proc/self/fd/{descriptor}").resolve().is_dir(), (tmp_path / "a").read_bytes()))

    monkeypatch.setattr(os, "fsync", noting)
    files.write_atomically(tmp_path / "a", b"new")
    assert seen == [(False, b"old"), (True, b"new")]


def test_a_reader_after_a_kill_finds_a_whole_file(tmp_path: Path, child_environment: dict[str, str]) -> None:
    target = tmp_path / "a"
    for writes in (1, 2, 5):
        command = [sys.executable, "-c", WRITER, str(target)]
        with subprocess.Popen(command, env=child_environment, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            for _ in range(writes):
                writer.stdout.readline()
            writer.send_signal(signal.SIGKILL)
        data = target.read_bytes()
        assert len(data) == 1_000_000
        assert set(data) in ({ord("a")}, {ord("b")})
    files.remove_temporaries(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_only_temporary_files_are_removed(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    kept, left = tmp_path / "below" / "a", tmp_path / "below" / f"a.17{files.TEMPORARY_SUFFIX}"
    kept.touch()
    left.touch()
    files.remove_temporaries(tmp_path)
    assert kept.exists()
    assert not left.exists()


def test_a_directory_is_made_with_its_parents_and_may_be_there_already(tmp_path: Path) -> None:
    for _ in range(2):
        files.make_directory(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()


def test_hashes_are_sha256_of_the_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    expected = hashlib.sha256(b"abc").hexdigest()
    assert files.sha256_of_file(tmp_path / "a") == files.sha256_of_bytes(b"a", memoryview(b"bc")) == expected


def test_a_hash_over_names_ignores_their_order_and_nothing_else() -> None:
    pairs = [("a", "1"), ("b", "2")]
    assert files.sha256_of_names(pairs) == files.sha256_of_names(reversed(pairs))
    others = ([("a", "2"), ("b", "1")], [("a", "1")], [("a", "1"), ("c", "2")])
    assert files.sha256_of_names(pairs) not in {files.sha256_of_names(other) for other in others}


def test_a_link_that_lies_in_place_of_the_temporary_file_is_never_written_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "victim").write_bytes(b"as before")
    monkeypatch.setattr(os, "urandom", bytes)
    (tmp_path / f"a.{'00' * 8}{files.TEMPORARY_SUFFIX}").symlink_to(tmp_path / "victim")
    with pytest.raises(FileExistsError):
        files.write_atomically(tmp_path / "a", b"data")
    monkeypatch.undo()
    files.write_atomically(tmp_path / "a", b"data")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"data", "victim": b"as before"}
    assert not (tmp_path / "a").is_symlink()


def test_two_processes_of_one_number_on_two_machines_write_two_files(tmp_path: Path) -> None:
    with files.atomic_file(tmp_path / "a") as one:
        one.write(b"on")
        files.write_atomically(tmp_path / "a", b"two")  # as another container does, whose only process is number 1 too
        one.write(b"e")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"one"}
