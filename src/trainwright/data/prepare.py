"""Prepare a corpus: documents in, shards of tokens and their manifest out. Equal input gives equal bytes."""

import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from trainwright import files
from trainwright.data import documents, shards
from trainwright.data import tokenizer as tokenizers
from trainwright.data.documents import Corpus, Document, Tally
from trainwright.data.shards import Manifest, ShardEntry, Split
from trainwright.errors import DataError, InputError

Progress: TypeAlias = Callable[[int, int], None]  # input bytes read, of all that will be read

PIECE_CHARACTERS = 1 << 20  # a longer document is encoded in pieces: bounds memory, and decodes to the same text
BATCH_CHARACTERS = 1 << 22
SPLITS: tuple[Split, Split] = ("train", "validation")
LARGEST_UINT16_VOCABULARY = 1 << 16


@dataclass(frozen=True, slots=True)
class PrepareRequest:
    """What to prepare, and how. Errors: InputError for a share or a size out of range.

    `split`: `documents` sends each whole document to one side by its hash; `tail` holds out the last characters of
    each. `share` takes a part of the corpus, by hash. `without` names directories that are not entered.
    """

    input: Path
    out: Path
    glob: str = "*.py"
    field: str = "content"
    vocabulary_size: int = 4096
    tokenizer: Path | Literal["bpe", "characters"] = "bpe"
    validation_share: float = 0.1
    split: Literal["documents", "tail"] = "documents"
    share: float = 1.0
    shard_tokens: int = 1 << 25
    without: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.validation_share < 1:
            raise InputError(f"validation share {self.validation_share}: expected a number between 0 and 1, as 0.1")
        if not 0 < self.share <= 1:
            raise InputError(f"share {self.share}: expected a number above 0 and up to 1, as 0.33")
        if self.split not in {"documents", "tail"}:
            raise InputError(f"split {self.split!r}: expected 'documents' or 'tail'")
        if self.shard_tokens < 1:
            raise InputError(f"shard tokens {self.shard_tokens}: expected at least 1")


def prepare(request: PrepareRequest, progress: Progress | None = None) -> Manifest:
    """Write `request.out`: shards, `tokenizer.json`, `manifest.json`; the manifest comes last and is the commit mark.

    All is written below `out/incomplete` first, so a failure leaves an earlier folder as it was. The tokenizer is
    trained on the training side alone; the characters are those of both sides.
    Errors: InputError (nothing matches, `out` holds foreign shards), DataError (no document, all on one side).
    """
    _refuse_foreign(request.out)
    corpus = documents.find(
        request.input,
        glob=request.glob,
        field=request.field,
        share=request.share,
        without=(request.out, *request.without),
    )
    advance = _advance(progress, corpus.input_bytes * (1 if isinstance(request.tokenizer, Path) else 2))
    prepared = _tokenizer(request, corpus, advance)
    try:
        _commit(request.out, _stage(request, corpus, prepared, advance))
    except OSError as error:
        raise DataError(f"{error.filename or request.out}: cannot be written: {error.strerror or error}") from error
    return shards.read_manifest(request.out)


def _refuse_foreign(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: is a file; --out names a folder")
    ours = (out / shards.MANIFEST).exists() or (out / shards.INCOMPLETE).exists()
    if not ours and any(out.glob("*.bin")):
        raise InputError(f"{out}: holds *.bin files that were not prepared here; --out another folder")


def _advance(progress: Progress | None, total: int) -> Callable[[int], None]:
    done = 0

    def advance(more: int) -> None:
        nonlocal done
        done += more
        if progress:
            progress(done, total)

    return advance


class _Prepared(NamedTuple):
    tokenizer: Tokenizer
    file: bytes
    first: Tally | None  # what the pass over the documents met, where one was needed


def _tokenizer(request: PrepareRequest, corpus: Corpus, advance: Callable[[int], None]) -> _Prepared:
    if isinstance(request.tokenizer, Path):
        return _Prepared(tokenizers.load(request.tokenizer), request.tokenizer.read_bytes(), None)
    tally = Tally()
    pieces = _pieces(request, corpus.documents(tally, advance))
    if request.tokenizer == "characters":
        characters: set[str] = set()
        for piece in pieces:
            characters.update(piece.text)
        tokenizer = tokenizers.of_characters(characters)
    else:
        texts = (piece.text for piece in pieces if piece.split == "train")
        tokenizer = tokenizers.train_bpe(texts, request.vocabulary_size)
    return _Prepared(tokenizer, tokenizer.to_str(pretty=True).encode(), tally)


class _Piece(NamedTuple):
    split: Split
    begins: bool  # a document
    text: str


def _pieces(request: PrepareRequest, corpus: Iterable[Document]) -> Iterator[_Piece]:
    for document in corpus:
        for split, text in _sides(request, document):
            for start in range(0, len(text), PIECE_CHARACTERS):
                yield _Piece(split, start == 0, text[start : start + PIECE_CHARACTERS])


def _sides(request: PrepareRequest, document: Document) -> tuple[tuple[Split, str], ...]:
    if request.split == "tail":
        cut = int(len(document.text) * (1 - request.validation_share))
        return ("train", document.text[:cut]), ("validation", document.text[cut:])
    held_out = documents.falls_below(document.digest[8:16], request.validation_share)  # bytes that `share` leaves alone
    return (("validation" if held_out else "train", document.text),)


def _batches(pieces: Iterable[_Piece]) -> Iterator[list[_Piece]]:
    batch: list[_Piece] = []
    characters = 0
    for piece in pieces:
        batch.append(piece)
        characters += len(piece.text)
        if characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    yield batch


def _stage(request: PrepareRequest, corpus: Corpus, prepared: _Prepared, advance: Callable[[int], None]) -> Manifest:
    """Write all but the manifest below `incomplete`, which is removed on failure."""
    stage = request.out / shards.INCOMPLETE
    shutil.rmtree(stage, ignore_errors=True)
    files.make_directory(stage)
    try:
        files.write_atomically(stage / shards.TOKENIZER, prepared.file)
        tally = Tally()
        pieces = _pieces(request, corpus.documents(tally, advance))
        entries = _encode(pieces, prepared.tokenizer, stage, request.shard_tokens)
        _check(request, tally, prepared.first, entries)
        return _manifest(request, tally, prepared, entries)
    except BaseException:
        shutil.rmtree(stage, ignore_errors=True)
        raise


def _encode(pieces: Iterable[_Piece], tokenizer: Tokenizer, stage: Path, shard_tokens: int) -> list[ShardEntry]:
    dtype, end = _dtype(tokenizer), tokenizers.end_of_document_id(tokenizer)
    writers = {split: _ShardWriter(stage, split, dtype, shard_tokens, end) for split in SPLITS}
    for batch in _batches(pieces):
        for piece, ids in zip(batch, tokenizers.encode(tokenizer, [piece.text for piece in batch]), strict=True):
            writers[piece.split].add(ids, begins=piece.begins)
    return list(chain.from_iterable(writer.close() for writer in writers.values()))


def _dtype(tokenizer: Tokenizer) -> shards.Dtype:
    return "uint16" if tokenizers.vocabulary_size(tokenizer) <= LARGEST_UINT16_VOCABULARY else "uint32"


def _check(request: PrepareRequest, tally: Tally, first: Tally | None, entries: list[ShardEntry]) -> None:
    if not tally.documents:
        left_out = {**tally.skipped, "outside the share": tally.outside_share}
        reasons = ", ".join(f"{count} {reason}" for reason, count in left_out.items() if count)
        raise DataError(
            f"{request.input}: no document is left ({reasons or 'the input is empty'}); give more documents"
        )
    if first is not None and first != tally:
        raise DataError(f"{request.input}: the documents changed while they were read; prepare again")
    sides = {entry.split for entry in entries}
    if len(sides) < len(SPLITS):
        raise DataError(
            f"{request.input}: all of the {tally.documents} documents fell on the {' '.join(sides)} side; give more "
            "documents, another validation share, or --split tail, which divides each document"
        )


def _manifest(request: PrepareRequest, tally: Tally, prepared: _Prepared, entries: list[ShardEntry]) -> Manifest:
    return Manifest(
        documents=tally.documents,
        documents_identical=tally.identical,
        documents_outside_share=tally.outside_share,
        documents_skipped=dict(sorted(tally.skipped.items())),
        documents_skipped_names=tally.skipped_names,
        text_bytes=tally.text_bytes,
        tokens={split: sum(entry.tokens for entry in entries if entry.split == split) for split in SPLITS},
        vocabulary_size=tokenizers.vocabulary_size(prepared.tokenizer),
        dtype=_dtype(prepared.tokenizer),
        shards=entries,
        tokenizer_sha256=files.sha256_of_bytes(prepared.file),
        request=_described(request),
    )


def _described(request: PrepareRequest) -> dict[str, str | int | float]:
    """Give the options that decide the bytes; the paths do not."""
    names = ("glob", "field", "validation_share", "split", "share", "shard_tokens")
    options: dict[str, str | int | float] = {name: getattr(request, name) for name in names}
    if request.tokenizer == "bpe":
        options["vocabulary_size"] = request.vocabulary_size
    return {**options, "tokenizer": "file" if isinstance(request.tokenizer, Path) else request.tokenizer}


class _ShardWriter:
    """Cuts one side's tokens into shards; at most one shard and one piece are in memory."""

    def __init__(self, directory: Path, split: Split, dtype: shards.Dtype, shard_tokens: int, end: int) -> None:
        self._directory, self._split, self._size = directory, split, shard_tokens
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._end = np.array([end], self._dtype)
        self._parts: list[npt.NDArray[np.integer]] = []
        self._held = 0
        self._entries: list[ShardEntry] = []

    def add(self, ids: npt.NDArray[np.uint32], *, begins: bool) -> None:
        if begins and (self._held or self._entries):
            self._hold(self._end)
        self._hold(ids.astype(self._dtype))
        while self._held >= self._size:
            tokens = np.concatenate(self._parts)
            self._write(tokens[: self._size])
            self._parts, self._held = [], 0
            self._hold(tokens[self._size :])

    def close(self) -> list[ShardEntry]:
        if self._held:
            self._write(np.concatenate(self._parts))
        return self._entries

    def _hold(self, tokens: npt.NDArray[np.integer]) -> None:
        self._parts.append(tokens)
        self._held += len(tokens)

    def _write(self, tokens: npt.NDArray[np.integer]) -> None:
        name, data = f"{self._split}-{len(self._entries):05d}.bin", tokens.tobytes()
        files.write_atomically(self._directory / name, data)
        sha256 = files.sha256_of_bytes(data)
        self._entries.append(ShardEntry(name=name, split=self._split, tokens=len(tokens), sha256=sha256))


def _commit(out: Path, manifest: Manifest) -> None:
    """Replace what stood there. While `incomplete` is there and the manifest is not, readers refuse the folder."""
    stage = out / shards.INCOMPLETE
    (out / shards.MANIFEST).unlink(missing_ok=True)
    files.sync_directory(out)
    for old in chain.from_iterable(out.glob(f"{split}-?????.bin") for split in SPLITS):
        old.unlink()
    for name in (shards.TOKENIZER, *(entry.name for entry in manifest.shards)):
        (stage / name).rename(out / name)
    files.write_atomically(stage / shards.MANIFEST, manifest.to_json())
    files.sync_directory(out)
    (stage / shards.MANIFEST).rename(out / shards.MANIFEST)
    files.sync_directory(out)
    shutil.rmtree(stage, ignore_errors=True)
