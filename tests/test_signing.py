"""Keys and envelopes: who can read a key, what a signature covers, and that every other byte is refused."""

import base64
import json
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.errors import InputError
from trainwright.signing import make_key, public_key, read_envelope, sign, signature_problem, signing_key

TYPE = "text/plain"


@pytest.fixture
def private(tmp_path: Path) -> Path:
    return make_key(tmp_path / "keys" / "mine.pem").private


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_key_is_its_owners_alone_from_the_start_and_its_public_half_lies_beside_it(tmp_path: Path) -> None:
    before = os.umask(0)  # nothing else narrows the mode
    try:
        made = make_key(tmp_path / "new" / "mine.pem")
    finally:
        os.umask(before)
    assert (mode_of(made.private), made.public.name) == (0o600, "mine.pub")
    assert made.private.read_text().startswith("-----BEGIN PRIVATE KEY-----")
    assert made.public.read_text().startswith("-----BEGIN PUBLIC KEY-----")


@pytest.mark.parametrize("there", ["mine.pem", "mine.pub"])
def test_a_key_is_never_overwritten_and_no_half_of_another_is_left(tmp_path: Path, there: str) -> None:
    (tmp_path / there).write_text("old")
    with pytest.raises(InputError, match=f"{there}: is there already, and a key is never overwritten"):
        make_key(tmp_path / "mine.pem")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {there: "old"}


def test_a_private_key_is_not_given_the_name_of_a_public_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is the name of a public key"):
        make_key(tmp_path / "mine.pub")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o777])
def test_a_key_that_others_can_use_is_refused_with_the_command_to_type(private: Path, mode: int) -> None:
    private.chmod(mode)
    with pytest.raises(InputError, match=f"mode 0{mode:o}.*chmod 600 {private}$"):
        sign(b"x", TYPE, private)


def test_what_is_no_key_is_refused(tmp_path: Path, private: Path) -> None:
    other = tmp_path / "other.pem"
    with pytest.raises(InputError, match="cannot be read: No such file"):
        sign(b"x", TYPE, other)
    other.touch(0o600)
    with pytest.raises(InputError, match="is no private key in PEM"):
        sign(b"x", TYPE, other)
    envelope = read_envelope(sign(b"x", TYPE, private))
    with pytest.raises(InputError, match="is no public key in PEM"):
        signature_problem(envelope, other)
    with pytest.raises(InputError, match="the public key cannot be read"):
        signature_problem(envelope, tmp_path / "none.pub")


def test_a_signature_holds_for_its_own_key_and_no_other(tmp_path: Path, private: Path) -> None:
    other = make_key(tmp_path / "other.pem")
    envelope = read_envelope(sign(b"words", TYPE, private))
    assert (envelope.payload, envelope.payload_type) == (b"words", TYPE)
    assert signature_problem(envelope, private.with_suffix(".pub")) is None
    assert str(signature_problem(envelope, other.public)).endswith(f"is the key {other.key_id}")


def test_an_envelope_holds_nothing_of_the_private_key(private: Path) -> None:
    secret = "".join(private.read_text().splitlines()[1:-1])
    text = sign(b"words", TYPE, private).decode()
    assert secret not in text
    assert secret[-20:] not in text


def test_a_payload_or_a_type_that_was_swapped_is_not_what_was_signed(private: Path) -> None:
    public = private.with_suffix(".pub")
    document = json.loads(sign(b"words", TYPE, private))
    for change in ({"payload": base64.b64encode(b"other").decode()}, {"payloadType": "text/html"}):
        envelope = read_envelope(json.dumps({**document, **change}, indent=2).encode() + b"\n")
        assert str(signature_problem(envelope, public)).startswith("its signature is not one that the key")


@given(place=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_any_bit_of_an_envelope_that_was_changed_is_found(envelope: tuple[bytes, Path], place: int, bit: int) -> None:
    data, public = bytearray(envelope[0]), envelope[1]
    data[place % len(data)] ^= 1 << bit
    try:
        problem = signature_problem(read_envelope(bytes(data)), public)
    except InputError as error:
        problem = str(error)
    assert problem


@pytest.fixture(scope="module")
def envelope(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Path]:
    made = make_key(tmp_path_factory.mktemp("keys") / "mine.pem")
    return sign(b"some words", TYPE, made.private), made.public


@pytest.mark.parametrize(
    "change",
    [
        {"note": "added"},
        {"signatures": []},
        {"signatures": None},
        {"payload": 1},
        {"payload": None},
    ],
)
def test_an_envelope_with_more_or_less_in_it_is_none(private: Path, change: dict[str, object]) -> None:
    document = json.loads(sign(b"words", TYPE, private))
    with pytest.raises(InputError):
        read_envelope(json.dumps({**document, **change}, indent=2).encode() + b"\n")


def test_a_second_signature_or_a_word_beside_one_is_refused(private: Path, tmp_path: Path) -> None:
    document = json.loads(sign(b"words", TYPE, private))
    other = json.loads(sign(b"words", TYPE, make_key(tmp_path / "other.pem").private))
    (one,), (two,) = document["signatures"], other["signatures"]
    for signatures in ([one, two], [{**one, "note": "added"}]):
        changed = json.dumps({**document, "signatures": signatures}, indent=2).encode() + b"\n"
        with pytest.raises(InputError, match="is not an envelope of one signature"):
            read_envelope(changed)


def test_the_key_is_the_one_that_is_named_else_the_one_at_home_if_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRAINWRIGHT_EVIDENCE_KEY", raising=False)
    monkeypatch.setenv("TRAINWRIGHT_HOME", str(tmp_path))
    assert (signing_key(), public_key()) == (None, None)
    home = make_key(tmp_path / "keys" / "evidence.pem")
    assert (signing_key(), public_key()) == (home.private, home.public)
    monkeypatch.setenv("TRAINWRIGHT_EVIDENCE_KEY", str(tmp_path / "named.pem"))
    assert (signing_key(), public_key()) == (tmp_path / "named.pem", None)
