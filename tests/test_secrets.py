"""Secrets that show themselves to nobody, and where references find their values."""

import copy
import json
import os
import pickle
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
import pytest

from trainwright.errors import InputError
from trainwright.redaction import REDACTED, redacted
from trainwright.secrets import Reference, Secret, passwords_in, secret_reference

VALUE = "Zq7-unseen-value"


@dataclass(frozen=True)
class Holder:
    name: str
    secret: Secret


@pytest.fixture
def written(tmp_path: Path) -> Path:
    return write(tmp_path / "key", VALUE)


def write(path: Path, text: str | bytes, mode: int = 0o600) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(mode)
    return path


def refusal(text: str, base: Path = Path()) -> str:
    reference = Reference.parse(text)
    assert reference is not None
    with pytest.raises(InputError) as caught:
        reference.resolve(base=base)
    return str(caught.value)


# -- Secret ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "show",
    [
        *(repr, str, ascii, format, "{:>40}".format, "%s".__mod__, lambda one: f"{one!r:s} {one}"),
        *(lambda one: str([one]), lambda one: repr({"k": one}), lambda one: repr(Holder("n", one))),
        *(lambda one: json.dumps({"k": one}, default=str), lambda one: str(asdict(Holder("n", one)))),
    ],
)
def test_no_way_to_print_a_secret_shows_it(show: Callable[[Secret], str]) -> None:
    shown = show(Secret(VALUE))
    assert VALUE not in shown
    assert REDACTED in shown


@pytest.mark.parametrize(
    "write_out",
    [pickle.dumps, json.dumps, msgspec.json.encode, msgspec.to_builtins, vars, lambda one: pickle.dumps([one], 5)],
)
def test_what_would_write_a_secret_out_is_refused_without_showing_it(write_out: Callable[[Secret], object]) -> None:
    with pytest.raises((TypeError, NotImplementedError)) as caught:
        write_out(Secret(VALUE))
    assert VALUE not in str(caught.value)


def test_a_secret_gives_its_value_when_asked_and_a_copy_is_itself() -> None:
    secret = Secret(VALUE)
    assert secret.reveal() == VALUE
    assert copy.copy(secret) is copy.deepcopy(secret) is secret


def test_secrets_are_equal_by_value_and_to_no_text() -> None:
    assert Secret(VALUE) == Secret(VALUE)
    assert len({Secret(VALUE), Secret(VALUE), Secret("another")}) == 2
    assert Secret(VALUE) != VALUE


def test_a_secret_is_redacted_from_the_moment_that_it_is_made() -> None:
    Secret("made-a-moment-ago")
    assert redacted("wrong key made-a-moment-ago") == f"wrong key {REDACTED}"


# -- references ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("env:S3_KEY", Reference("env", "S3_KEY")),
        ("file:/run/secrets/key", Reference("file", "/run/secrets/key")),
        ("file:keys/a b", Reference("file", "keys/a b")),
        ("vault:secret/trainwright/s3#secret_key", Reference("vault", "secret/trainwright/s3", "secret_key")),
        ("file:///srv/store", None),
        ("s3://bucket/prefix", None),
        ("postgresql://host/db", None),
        ("eu-central-1", None),
        ("environment:x", None),
    ],
)
def test_a_reference_is_told_from_a_plain_value(text: str, reference: Reference | None) -> None:
    assert Reference.parse(text) == reference
    assert reference is None or str(reference) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("env:", "env:NAME"),
        ("env:A-B", "env:NAME"),
        ("env:1A", "env:NAME"),
        ("file:", "file:PATH"),
        ("vault:secret/s3", "vault:PATH#KEY"),
        ("vault:secret#key", "vault:PATH#KEY"),
        ("vault:secret/s3#", "vault:PATH#KEY"),
        ("vault:secret/../sys/x#key", "vault:PATH#KEY"),
        ("vault:secret/s3?version=1#key", "vault:PATH#KEY"),
    ],
)
def test_half_a_reference_is_refused_with_its_form(text: str, expected: str) -> None:
    with pytest.raises(InputError, match=f"is no reference; expected {expected}"):
        Reference.parse(text)


@pytest.mark.parametrize("text", ["s3cr3t", "file:///run/secrets/key", ""])
def test_a_plain_value_in_the_place_of_a_secret_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(InputError, match="write env:NAME, file:PATH or vault:PATH#KEY") as caught:
        secret_reference(text)
    assert not text or text not in str(caught.value)


# -- the environment -------------------------------------------------------------------------------------------------


def test_a_variable_is_read_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = secret_reference("env:TRAINWRIGHT_TEST_KEY")
    for value in ("first", "second"):
        monkeypatch.setenv("TRAINWRIGHT_TEST_KEY", value)
        assert reference.resolve().reveal() == value


def test_a_variable_that_is_missing_or_empty_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRAINWRIGHT_TEST_KEY", raising=False)
    assert refusal("env:TRAINWRIGHT_TEST_KEY") == (
        "env:TRAINWRIGHT_TEST_KEY: the environment variable TRAINWRIGHT_TEST_KEY is not set; export it before you start"
    )
    monkeypatch.setenv("TRAINWRIGHT_TEST_KEY", " ")
    assert "is empty; give it the value" in refusal("env:TRAINWRIGHT_TEST_KEY")


# -- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["", "\n", "\r\n"])
def test_a_files_value_is_its_text_without_the_end_of_the_line(tmp_path: Path, ending: str) -> None:
    write(tmp_path / "key", f" {VALUE} {ending}")
    assert secret_reference("file:key").resolve(base=tmp_path).reveal() == f" {VALUE} "
    assert secret_reference(f"file:{tmp_path}/key").resolve().reveal() == f" {VALUE} "


def test_a_link_to_a_file_is_followed_as_mounted_secrets_are(tmp_path: Path, written: Path) -> None:
    (tmp_path / "link").symlink_to(written)
    assert secret_reference("file:link").resolve(base=tmp_path).reveal() == VALUE


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o620, 0o644, 0o777])
def test_a_file_that_others_can_read_or_write_is_refused_with_the_command_to_type(written: Path, mode: int) -> None:
    written.chmod(mode)
    told = refusal(f"file:{written}")
    assert told.endswith(f"can be read or written by others (mode {mode:04o}); type: chmod 600 {written}")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of root")
def test_the_group_may_read_a_file_of_root_and_of_nobody_else(written: Path) -> None:
    written.chmod(0o640)
    assert secret_reference(f"file:{written}").resolve().reveal() == VALUE
    os.chown(written, 12345, -1)
    assert "chmod 600" in refusal(f"file:{written}")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "the file is empty; write the value into it"),
        (b"\n", "the file is empty; write the value into it"),
        (b"\xff\xfe", "is not UTF-8 text"),
        (b"x" * 65_537, "holds 65,537 bytes; expected a value of at most 65,536"),
    ],
)
def test_a_file_that_holds_no_value_is_refused(tmp_path: Path, content: bytes, told: str) -> None:
    assert told in refusal(f"file:{write(tmp_path / 'key', content)}")


def test_what_is_no_file_is_refused_and_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    assert "No such file or directory" in refusal("file:absent", tmp_path)
    assert "is no regular file" in refusal("file:pipe", tmp_path)
    assert "Is a directory" in refusal(f"file:{tmp_path}")


def test_a_reference_to_a_vault_without_one_says_what_to_set() -> None:
    assert refusal("vault:secret/s3#key") == (
        "vault:secret/s3#key: no vault is configured; set vault: {address: …, token: …} in settings.yaml"
    )


@pytest.mark.parametrize("password", ["plain", "p[w", "p]w", "p/w", "p#w", "p?w", "p:w", ":", "p%40w"])
def test_a_password_in_a_url_is_seen_whatever_characters_it_has(password: str) -> None:
    assert password in passwords_in(f"postgresql://user:{password}@host:5432/db")


@pytest.mark.parametrize("url", ["postgresql://user@host:5432/db", "https://host:9000/a", "s3://bucket/a", "file:///a"])
def test_a_url_without_a_password_has_none(url: str) -> None:
    assert passwords_in(url) == set()
