import math
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest

from trainwright.data import shards
from trainwright.data.prepare import PrepareRequest, prepare
from trainwright.data.shards import INCOMPLETE, MANIFEST
from trainwright.errors import DataError, InputError
from trainwright.files import sha256_of_file, sha256_of_names


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text("abcd" * 500)
    out = tmp_path / "out"
    prepare(
        PrepareRequest(input=tmp_path / "text.txt", out=out, tokenizer="characters", split="tail", shard_tokens=700)
    )
    return out


def write(directory: Path, name: str, tokens: list[int], dtype: str = "<u4") -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_bytes(np.array(tokens, dtype).tobytes())
    return path


def test_a_prepared_folder_is_mapped_and_names_its_tokenizer(prepared: Path) -> None:
    found = shards.load(prepared)
    assert {name: len(tokens) for name, tokens in found.train.items()} == {
        "train-00000.bin": 700,
        "train-00001.bin": 700,
        "train-00002.bin": 400,
    }
    assert {name: len(tokens) for name, tokens in found.validation.items()} == {"validation-00000.bin": 200}
    assert all(isinstance(tokens, np.memmap) for tokens in found.train.values())
    assert found.vocabulary_size == 5
    assert found.tokenizer == prepared / "tokenizer.json"
    assert found.tokenizer_sha256 == sha256_of_file(prepared / "tokenizer.json")


def test_the_data_hash_covers_every_shard_by_name(prepared: Path) -> None:
    expected = sha256_of_names((path.name, sha256_of_file(path)) for path in prepared.glob("*.bin"))
    assert shards.load(prepared).data_sha256 == expected


def test_a_folder_of_plain_uint32_shards_is_read_as_it_is(tmp_path: Path) -> None:
    first = write(tmp_path, "a.bin", [1, 2, 70_000])
    held_out = write(tmp_path, "a_val_0.bin", [9])
    found = shards.load(tmp_path)
    assert {name: tokens.tolist() for name, tokens in found.train.items()} == {"a.bin": [1, 2, 70_000]}
    assert {name: tokens.tolist() for name, tokens in found.validation.items()} == {"a_val_0.bin": [9]}
    assert found.vocabulary_size == 70_001
    assert shards.load(tmp_path, vocabulary_size=100_277).vocabulary_size == 100_277
    assert (found.tokenizer, found.tokenizer_sha256, found.manifest) == (None, None, None)
    assert found.data_sha256 == sha256_of_names((path.name, sha256_of_file(path)) for path in (first, held_out))
    found.verify_hashes()


def test_a_plain_folder_of_uint16_shards_needs_the_dtype(tmp_path: Path) -> None:
    write(tmp_path, "a.bin", [1, 2, 3, 4], "<u2")
    assert next(iter(shards.load(tmp_path, dtype="uint16").train.values())).tolist() == [1, 2, 3, 4]


def test_a_token_outside_the_given_vocabulary_is_refused_by_file(tmp_path: Path) -> None:
    write(tmp_path, "a.bin", [1, 50_257])
    with pytest.raises(DataError, match=r"a\.bin: holds token 50,257 .*vocabulary of 50,257"):
        shards.load(tmp_path, vocabulary_size=50_257)


@pytest.mark.parametrize("change", ["shorter", "odd", "empty", "removed", "folder"])
def test_a_shard_that_is_not_as_the_manifest_says_is_refused_by_file(prepared: Path, change: str) -> None:
    path = prepared / "train-00001.bin"
    data = path.read_bytes()
    path.unlink()
    if change == "folder":
        path.mkdir()
    elif change != "removed":
        path.write_bytes({"shorter": data[:-2], "odd": data[:-1], "empty": b""}[change])
    with pytest.raises(DataError, match=r"train-00001\.bin"):
        shards.load(prepared)


@pytest.mark.parametrize("name", ["train-00001.bin", "tokenizer.json"])
def test_verifying_hashes_finds_one_changed_byte(prepared: Path, name: str) -> None:
    shards.load(prepared).verify_hashes()
    data = bytearray((prepared / name).read_bytes())
    data[-2] ^= 1
    (prepared / name).write_bytes(data)
    with pytest.raises(DataError, match=rf"{re.escape(name)}: is damaged: it has SHA-256 \w{{64}}, its manifest says"):
        shards.load(prepared).verify_hashes()


def test_a_file_is_hashed_once_while_it_is_not_changed(prepared: Path) -> None:
    def hashed() -> int:
        before = shards._hash_of.cache_info().misses
        shards.load(prepared).verify_hashes()
        return shards._hash_of.cache_info().misses - before

    path = prepared / "train-00001.bin"
    first, second = hashed(), hashed()
    path.write_bytes(path.read_bytes())
    assert (first, second, hashed()) == (5, 0, 1)


def test_a_plain_shard_whose_size_does_not_divide_is_refused_by_file(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"12345")
    with pytest.raises(DataError, match=r"a\.bin: has 5 bytes, expected a multiple of 4"):
        shards.load(tmp_path)


def test_a_missing_or_empty_folder_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    for name in ("missing", "nothing"):
        with pytest.raises(DataError, match=name):
            shards.load(tmp_path / name)


def test_a_folder_whose_preparation_was_cut_short_is_not_taken_for_plain_shards(prepared: Path) -> None:
    (prepared / MANIFEST).unlink()
    (prepared / INCOMPLETE).mkdir()
    with pytest.raises(DataError, match="interrupted"):
        shards.load(prepared)


@pytest.mark.parametrize("change", ["broken", "unknown key", "other version"])
def test_a_manifest_that_is_not_one_is_refused_by_file(prepared: Path, change: str) -> None:
    path = prepared / MANIFEST
    known = msgspec.json.decode(path.read_bytes())
    extra = {"unknown key": {"more": 1}, "other version": {"format_version": 2}}.get(change, {})
    path.write_bytes(b"{" if change == "broken" else msgspec.json.encode({**known, **extra}))
    with pytest.raises(DataError, match=r"manifest\.json"):
        shards.load(prepared)


def test_unigram_entropy_is_that_of_the_counts_over_all_parts() -> None:
    parts = [np.array([0, 0, 3], np.uint16), np.array([9, 0], np.uint16)]
    expected = -(0.6 * math.log(0.6) + 2 * 0.2 * math.log(0.2))
    assert shards.unigram_entropy(parts) == pytest.approx(expected, abs=1e-12)


def test_unigram_entropy_does_not_depend_on_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = np.random.default_rng(0).integers(0, 1000, 5000).astype(np.uint32)
    whole = shards.unigram_entropy([tokens])
    monkeypatch.setattr(shards, "CHUNK_TOKENS", 7)
    assert shards.unigram_entropy([tokens]) == whole
    assert shards.largest_token(tokens) == tokens.max()


def test_entropy_of_nothing_is_an_error() -> None:
    with pytest.raises(InputError, match="no tokens"):
        shards.unigram_entropy([])
