"""Documents of a corpus: text files below a directory, lines of JSONL, rows of Parquet. What is left out is counted."""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path, PurePath
from typing import Any, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa
from pyarrow import parquet

from trainwright.errors import InputError

_Files: TypeAlias = list[tuple[str, Path]]  # by name

NAMES_KEPT = 5  # of the documents skipped for one reason


@dataclass(frozen=True, slots=True)
class Document:
    """One text. `digest` is its SHA-256; `size_bytes` its length in UTF-8."""

    name: str
    text: str
    digest: bytes
    size_bytes: int


@dataclass(slots=True)
class Tally:
    """What one pass over a corpus met: documents given, and those left out, with the reason."""

    documents: int = 0
    text_bytes: int = 0
    identical: int = 0
    outside_share: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    skipped_names: list[str] = field(default_factory=list)

    def skip(self, name: str, reason: str) -> None:
        self.skipped[reason] += 1
        if self.skipped[reason] <= NAMES_KEPT:
            self.skipped_names.append(f"{name}: {reason}")


class _Record(NamedTuple):
    name: str
    text: str | None  # None: left out, for the reason in `problem`
    problem: str
    input_bytes: int


@dataclass(frozen=True, slots=True)
class Corpus:
    """The files that documents come from, in the order of their names."""

    files: tuple[tuple[str, Path], ...]
    unreadable: tuple[tuple[str, str], ...]
    input_bytes: int
    field: str
    share: float

    def documents(self, tally: Tally, advance: Callable[[int], None] = lambda _: None) -> Iterator[Document]:
        """Give each document once, in the order of the names; `advance` gets the input bytes behind each record.

        With `share` under 1, the documents whose hash falls into the share: the same ones on every machine.
        Errors: InputError for a Parquet file without the column.
        """
        for name, reason in self.unreadable:
            tally.skip(name, reason)
        seen: set[bytes] = set()
        for record in (record for name, path in self.files for record in _records(name, path, self.field)):
            document = _document(record, tally)
            if document is not None and _is_wanted(document, self.share, seen, tally):
                tally.documents += 1
                tally.text_bytes += document.size_bytes
                yield document
            advance(record.input_bytes)


def find(source: Path, *, glob: str, field: str, share: float = 1.0, without: tuple[Path | str, ...] = ()) -> Corpus:
    """List the files of `source`, itself a file or a directory searched to any depth for names that match `glob`.

    `without` holds names of directories (`site-packages`) or paths of directories that are not entered.
    Errors: InputError when nothing is there or matches.
    """
    if not source.exists():
        raise InputError(f"{source}: there is no such file or directory; --input names the documents")
    if source.is_file():
        return Corpus(((source.name, source),), (), source.stat().st_size, field, share)
    files, unreadable = _walk(source, glob, without)
    if not files and not unreadable:
        raise InputError(f"{source}: no file matches --glob {glob!r}; give a pattern that matches the documents")
    return Corpus(tuple(files), tuple(unreadable), sum(path.stat().st_size for _, path in files), field, share)


def _walk(source: Path, glob: str, without: tuple[Path | str, ...]) -> tuple[_Files, list[tuple[str, str]]]:
    files: _Files = []
    unreadable: list[tuple[str, str]] = []
    barred = {item.resolve() if isinstance(item, Path) else item for item in without}

    def note(error: OSError) -> None:
        unreadable.append((_name(Path(error.filename), source), f"unreadable directory: {error.strerror}"))

    for parent, directories, names in os.walk(source, onerror=note):
        directories[:] = [name for name in directories if barred.isdisjoint({name, Path(parent, name).resolve()})]
        for path in (Path(parent, name) for name in names):
            name = _name(path, source)
            if not PurePath(name).match(glob):
                continue
            if path.is_file():
                files.append((name, path))
            else:
                unreadable.append((name, "not a file"))
    return sorted(files), sorted(unreadable)


def _name(path: Path, source: Path) -> str:
    return os.fsencode(path.relative_to(source).as_posix()).decode(errors="replace")


def _document(record: _Record, tally: Tally) -> Document | None:
    if record.text is None:
        tally.skip(record.name, record.problem)
        return None
    if not record.text:
        tally.skip(record.name, "empty")
        return None
    data = record.text.encode()
    return Document(record.name, record.text, sha256(data).digest(), len(data))


def _is_wanted(document: Document, share: float, seen: set[bytes], tally: Tally) -> bool:
    if not falls_below(document.digest[:8], share):
        tally.outside_share += 1
        return False
    if document.digest in seen:
        tally.identical += 1
        return False
    seen.add(document.digest)
    return True


def falls_below(part: bytes, share: float) -> bool:
    """Tell whether eight bytes of a hash, read as a number in [0, 1), are below `share`."""
    return int.from_bytes(part) < share * 2**64


def _records(name: str, path: Path, field: str) -> Iterator[_Record]:
    """Give what a file holds; one that cannot be read becomes a record that says so."""
    readers = {".jsonl": _lines, ".ndjson": _lines, ".parquet": _rows}
    try:
        yield from readers.get(path.suffix, _whole)(name, path, field)
    except OSError as error:
        yield _Record(name, None, f"unreadable: {error.strerror or error}", 0)


def _whole(name: str, path: Path, _field: str) -> Iterator[_Record]:
    data = path.read_bytes()
    try:
        yield _Record(name, data.decode(), "", len(data))
    except UnicodeDecodeError:
        yield _Record(name, None, "not UTF-8 text", len(data))


def _lines(name: str, path: Path, field: str) -> Iterator[_Record]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield _Record(f"{name}:{number}", *_text_of_line(line, field), len(line))


def _text_of_line(line: bytes, field: str) -> tuple[str | None, str]:
    try:
        row = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None, "not a line of JSON"
    text = row.get(field) if isinstance(row, dict) else None
    return (text, "") if isinstance(text, str) else (None, f"no text in field {field!r}")


def _rows(name: str, path: Path, field: str) -> Iterator[_Record]:
    try:
        with parquet.ParquetFile(path) as file:
            if field not in file.schema_arrow.names:
                raise InputError(
                    f"{path}: has no column {field!r}; --field one of: {', '.join(file.schema_arrow.names)}"
                )
            yield from _rows_of(name, file, field, path.stat().st_size)
    except (pa.ArrowException, UnicodeDecodeError):
        yield _Record(name, None, "not a Parquet file of UTF-8 text", 0)


def _rows_of(name: str, file: Any, field: str, size_bytes: int) -> Iterator[_Record]:
    each = size_bytes // max(1, file.metadata.num_rows)
    row = 0
    for batch in file.iter_batches(batch_size=1024, columns=[field]):
        for text in batch.column(0).to_pylist():
            row += 1
            known = isinstance(text, str)
            yield _Record(
                f"{name}:{row}", text if known else None, "" if known else f"no text in field {field!r}", each
            )
