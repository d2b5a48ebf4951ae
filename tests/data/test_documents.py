import os
from hashlib import sha256
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from trainwright.data import documents
from trainwright.data.documents import Document, Tally
from trainwright.errors import InputError


def read(source: Path, *, glob: str = "*.py", field: str = "content", **more: object) -> tuple[list[Document], Tally]:
    tally = Tally()
    corpus = documents.find(source, glob=glob, field=field, **more)  # type: ignore[arg-type]  # of the tests' own
    return list(corpus.documents(tally)), tally


def write(directory: Path, **texts: str) -> None:
    for name, text in texts.items():
        path = directory / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, newline="")


def test_files_below_a_directory_come_in_the_order_of_their_names(tmp_path: Path) -> None:
    write(tmp_path, b="two\r\n", a="one", sub__c="three")
    (tmp_path / "notes.txt").write_text("not asked for")
    found, tally = read(tmp_path)
    assert [(d.name, d.text) for d in found] == [("a.py", "one"), ("b.py", "two\r\n"), ("sub/c.py", "three")]
    assert found[0].digest == sha256(b"one").digest()
    assert (tally.documents, tally.text_bytes) == (3, 13)


def test_identical_documents_are_dropped_and_counted(tmp_path: Path) -> None:
    write(tmp_path, a="same", b="other", c="same", d="same")
    found, tally = read(tmp_path)
    assert [d.name for d in found] == ["a.py", "b.py"]
    assert tally.identical == 2


def test_what_cannot_be_read_is_skipped_and_counted_with_its_reason(tmp_path: Path) -> None:
    write(tmp_path, a="text", b="")
    (tmp_path / "latin.py").write_bytes("é".encode("latin-1"))
    (tmp_path / "dangling.py").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe.py")
    found, tally = read(tmp_path)
    assert [d.name for d in found] == ["a.py"]
    assert tally.skipped == {"empty": 1, "not UTF-8 text": 1, "not a file": 2}
    assert "latin.py: not UTF-8 text" in tally.skipped_names


def test_directories_by_name_or_path_are_not_entered(tmp_path: Path) -> None:
    write(tmp_path, a="1", site__b="2", deep__site__c="3", out__d="4", deep__out__e="5")
    found, _ = read(tmp_path, without=("site", tmp_path / "out"))
    assert [d.name for d in found] == ["a.py", "deep/out/e.py"]


def test_jsonl_gives_a_document_a_line_and_counts_lines_without_text(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"text": "one"}\n{"text": 2}\n\nbroken\n{"other": "x"}\n[1]\n{"text": "tw\\u00f6"}\n')
    found, tally = read(path, field="text")
    assert [(d.name, d.text) for d in found] == [("corpus.jsonl:1", "one"), ("corpus.jsonl:7", "twö")]
    assert tally.skipped == {"no text in field 'text'": 3, "not a line of JSON": 1}


def test_parquet_gives_a_document_a_row(tmp_path: Path) -> None:
    path = tmp_path / "corpus.parquet"
    texts = [f"row {n}" for n in range(3000)]
    parquet.write_table(pa.table({"content": [*texts, None], "id": list(range(3001))}), path, row_group_size=700)
    found, tally = read(path)
    assert [d.text for d in found] == texts
    assert tally.skipped == {"no text in field 'content'": 1}


def test_a_parquet_file_without_the_column_names_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "corpus.parquet"
    parquet.write_table(pa.table({"text": ["a"], "id": [1]}), path)
    with pytest.raises(InputError, match=r"corpus\.parquet: has no column 'content'; --field one of: text, id"):
        read(path)


def test_a_damaged_parquet_file_is_skipped_and_counted(tmp_path: Path) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 and nothing more")
    parquet.write_table(pa.table({"content": ["a"]}), tmp_path / "good.parquet")
    found, tally = read(tmp_path, glob="*.parquet")
    assert [d.text for d in found] == ["a"]
    assert tally.skipped == {"not a Parquet file of UTF-8 text": 1}


def test_a_share_takes_the_same_documents_whatever_stands_beside_them(tmp_path: Path) -> None:
    write(tmp_path, **{f"d{n}": f"text {n}" for n in range(400)})
    first, tally = read(tmp_path, share=0.25)
    assert 60 < len(first) < 140
    assert tally.outside_share == 400 - len(first)
    write(tmp_path, **{f"e{n}": f"more {n}" for n in range(400)})
    second, _ = read(tmp_path, share=0.25)
    assert [d.name for d in second if d.name.startswith("d")] == [d.name for d in first]


def test_the_reported_input_bytes_add_up(tmp_path: Path) -> None:
    write(tmp_path, a="text", b="", c="text", d="ünïcode")
    corpus = documents.find(tmp_path, glob="*.py", field="content")
    seen: list[int] = []
    list(corpus.documents(Tally(), seen.append))
    assert sum(seen) == corpus.input_bytes


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_an_input_that_is_missing_or_matches_nothing_is_refused_by_name(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=name):
        read(tmp_path / name)
