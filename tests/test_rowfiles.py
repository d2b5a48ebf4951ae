import fcntl
import threading
from pathlib import Path

import pytest

from tests.rows import row, written
from trainwright.errors import StoreError
from trainwright.metrics import read_steps
from trainwright.rowfiles import RowWriter, append_row, line_blocks, whole_lines


def test_a_row_that_was_handed_over_is_in_the_file_before_it_is_closed(tmp_path: Path) -> None:
    for _ in range(2):  # the second time it appends
        writer = RowWriter(tmp_path / "steps.jsonl")
        before = len(read_steps(tmp_path / "steps.jsonl"))
        writer.write(row().encode())
        assert len(read_steps(tmp_path / "steps.jsonl")) == before + 1
        writer.sync()
        writer.close()


def test_a_full_disk_is_a_store_error_that_names_the_file() -> None:
    writer = RowWriter(Path("/dev/full"))
    with pytest.raises(StoreError, match="/dev/full: a row of 5 bytes cannot be written: No space left"):
        writer.write(b"1234\n")
    writer.close()


@pytest.mark.parametrize("size_bytes", range(1, 12))
def test_blocks_of_any_size_hold_the_whole_lines_and_not_a_torn_last_one(tmp_path: Path, size_bytes: int) -> None:
    file = written(tmp_path / "steps.jsonl", b"1\n", b"\n", b"23456\n", b"78")
    blocks = list(line_blocks(file, size_bytes))
    assert [line for block in blocks for line in block] == whole_lines(file).lines == [b"1", b"", b"23456"]
    assert list(line_blocks(tmp_path / "no.jsonl", size_bytes)) == []


def test_a_row_that_another_is_writing_is_waited_for_and_not_cut(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    thread = threading.Thread(target=append_row, args=(file, b"2\n"))
    with file.open("ab", buffering=0) as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        other.write(b"half")
        thread.start()
        thread.join(0.2)  # it waits; one that did not would be through by now
        other.write(b" and half\n")
    thread.join()
    assert file.read_bytes() == b"half and half\n2\n"


def test_a_row_is_appended_behind_whole_ones_and_in_the_place_of_a_torn_one(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    append_row(file, b"1\n")
    append_row(file, b"2\n")
    with file.open("ab") as torn:
        torn.write(b"tor")
    append_row(file, b"3\n")
    assert file.read_bytes() == b"1\n2\n3\n"
    with pytest.raises(StoreError, match=r"none/rows\.jsonl: a row of 2 bytes cannot be written"):
        append_row(tmp_path / "none" / "rows.jsonl", b"1\n")
