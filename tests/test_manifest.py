from pathlib import Path

import pytest

from trainwright.errors import DamagedCheckpointError
from trainwright.files import sha256_of_bytes
from trainwright.manifest import (
    MANIFEST,
    NO_HASH,
    Checkpoint,
    FileRecord,
    Manifest,
    Stamp,
    decode_manifest,
    decode_retired,
    encode_manifest,
    encode_retired,
    saved_in,
)

STAMP = Stamp(run="run-1", attempt=1, model_type="toy", config_sha256="c" * 64, hashes={"data": "d" * 64})
SAVED = Manifest(step=1, stamp=STAMP, time="2026-01-01T00:00:00.000Z", files={"state.json": FileRecord(2, "e" * 64)})


@pytest.mark.parametrize("one", [Checkpoint(0, 1), Checkpoint(100, 12), Checkpoint(123_456_789, 3)])
def test_a_checkpoint_is_known_by_its_name(one: Checkpoint) -> None:
    assert Checkpoint.named(one.name) == one


@pytest.mark.parametrize("name", ["step-5.a1", "step-000000005.a1", "step-00000005.a01", "step-00000005.a1.bak", "x"])
def test_what_no_checkpoint_is_ever_called_is_none(name: str) -> None:
    assert Checkpoint.named(name) is None


def test_checkpoints_of_a_folder_come_oldest_first_and_only_those_that_have_the_file_if_asked(tmp_path: Path) -> None:
    for name in ("step-00000020.a1", "step-00000005.a2", "step-00000005.a1", "step-00000005.a1.bak", "segments"):
        (tmp_path / name).mkdir()
    (tmp_path / "step-00000020.a1" / MANIFEST).touch()
    assert saved_in(tmp_path) == [Checkpoint(5, 1), Checkpoint(5, 2), Checkpoint(20, 1)]
    assert saved_in(tmp_path, of=MANIFEST) == [Checkpoint(20, 1)]
    assert saved_in(tmp_path / "none") == []


def test_a_manifest_comes_back_with_its_own_hash_in_it() -> None:
    found = decode_manifest(encode_manifest(SAVED), "key")
    assert (found.step, found.stamp, found.files) == (1, STAMP, SAVED.files)
    assert found.sha256 != NO_HASH


@pytest.mark.parametrize("mask", [1, 0x20, 0x80])
def test_no_byte_of_a_manifest_can_change_unseen(mask: int) -> None:
    text = encode_manifest(SAVED)
    for index in range(len(text)):
        changed = text[:index] + bytes([text[index] ^ mask]) + text[index + 1 :]
        with pytest.raises(DamagedCheckpointError, match="the key"):
            decode_manifest(changed, "the key")


def test_fields_that_a_later_writer_adds_do_not_make_a_manifest_damaged() -> None:
    text = encode_manifest(SAVED)
    own = decode_manifest(text, "key").sha256.encode()
    added = text.replace(own, NO_HASH.encode()).replace(b'"step": 1', b'"step": 1,\n  "new": true')
    text = added.replace(NO_HASH.encode(), sha256_of_bytes(added).encode())
    assert decode_manifest(text, "key").step == 1


def test_the_reason_of_a_retirement_comes_back_and_a_broken_one_says_that_it_cannot_be_read() -> None:
    assert decode_retired(encode_retired("retention"), "key") == "retention"
    for text in (b"", b"{}", b"\xff", b'{"reason": 3}'):
        assert decode_retired(text, "the key").startswith("for a reason that cannot be read (the key: ")
