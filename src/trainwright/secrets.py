"""Secrets: values that are never shown, and the references that stand for them in files.

A reference is `env:NAME`, `file:PATH` or `vault:PATH#KEY`. It may stand wherever a setting does; its value is read when
it is needed and kept nowhere. `file://…` is a URL, no reference.
"""

import hmac
import os
import re
import shlex
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NoReturn, Protocol, Self, SupportsIndex, TypeAlias, final
from urllib.parse import parse_qs, unquote, urlsplit

from trainwright.errors import InputError
from trainwright.redaction import REDACTED, know

Kind: TypeAlias = Literal["env", "file", "vault"]

MAX_BYTES: Final = 64 * 1024
BEFORE_HOST: Final = re.compile(r"://[^:/?#]*:(?P<password>[^@]*)@")  # as SQLAlchemy reads it: any character, bare
INSTEAD: Final = "write env:NAME, file:PATH or vault:PATH#KEY, which name where it stands"
FORMS: Final[dict[Kind, tuple[re.Pattern[str], str]]] = {
    "env": (re.compile(r"(?P<place>[A-Za-z_]\w*)", re.ASCII), "env:NAME, the name of an environment variable"),
    "file": (re.compile(r"(?!//)(?P<place>[^\0]+)"), "file:PATH, as file:/run/secrets/s3-key (file:// is a URL)"),
    "vault": (
        re.compile(r"(?P<place>[\w.@~+-]+(?:/[\w.@~+-]+)+)#(?P<key>[^#\s]+)", re.ASCII),
        "vault:PATH#KEY, as vault:secret/trainwright/s3#secret_key, where the first word of the path is the mount",
    ),
}


@final
class Secret:
    """A value that no repr, str, format, pickle or JSON shows; `redaction` knows it from the moment it is made."""

    __slots__ = ("__value",)

    def __init__(self, value: str) -> None:
        know(value)
        self.__value = value

    def reveal(self) -> str:
        """Give the value, to hand to the library that needs it and to nothing else."""
        return self.__value

    def __repr__(self) -> str:
        return f"Secret({REDACTED})"

    def __str__(self) -> str:
        return REDACTED

    def __format__(self, specification: str) -> str:
        return REDACTED

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self.__value.encode(), other.__value.encode())

    def __hash__(self) -> int:
        return hash(self.__value)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError("a secret is not pickled: it would be written out")


class Vault(Protocol):
    """A server of secrets. `vault.KeyValueVault` is one."""

    def read(self, path: str, key: str) -> str:
        """Give the value of `key` at `path`. Errors: InputError, StoreRefusedError, StoreUnavailableError."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Where a value stands. `key` is what stands after the `#` of a vault's."""

    kind: Kind
    place: str
    key: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.place}{f'#{self.key}' if self.key else ''}"

    @classmethod
    def parse(cls, text: str) -> "Reference | None":
        """Give the reference that `text` is, None for a plain value. Errors: InputError for half a reference."""
        kind, colon, rest = text.partition(":")
        if not colon or kind not in FORMS or rest.startswith("//"):
            return None
        pattern, form = FORMS[kind]
        match = pattern.fullmatch(rest)
        if not match or (kind == "vault" and ".." in rest.partition("#")[0].split("/")):
            raise InputError(f"{text!r} is no reference; expected {form}")
        return cls(kind, **match.groupdict())

    def resolve(self, *, base: Path = Path(), vault: Vault | None = None) -> Secret:
        """Read the value now, as a secret. `base` is where a relative file lies.

        Errors: InputError that says what is missing and what to do; for a vault's also those of `Vault.read`.
        """
        return Secret(self.read(base=base, vault=vault))

    def read(self, *, base: Path = Path(), vault: Vault | None = None) -> str:
        """Read the value now, as one that may be shown: an address, a region. Errors: as `resolve`."""
        if self.kind == "env":
            return _from_environment(self.place)
        if self.kind == "file":
            return _from_file(base / Path(self.place).expanduser())
        if vault is None:
            raise InputError(f"{self}: no vault is configured; set vault: {{address: …, token: …}} in settings.yaml")
        return vault.read(self.place, self.key)


def secret_reference(text: str) -> Reference:
    """Give the reference that stands for a secret. Errors: InputError for a plain value, which it does not repeat."""
    reference = Reference.parse(text)
    if reference is None:
        raise InputError(f"a secret stands here as a plain value; {INSTEAD} (file:// would be a URL)")
    return reference


def passwords_in(url: str) -> set[str]:
    """Give the password in a URL, before its host or in its query: as it stands there, and as it is meant."""
    written = {found["password"] for found in BEFORE_HOST.finditer(url)}
    with suppress(ValueError):  # it is no URL; whoever opens it may be less strict
        parts = urlsplit(url)
        written |= {parts.password or "", *parse_qs(parts.query).get("password", ())}
    return {form for text in written if text for form in (text, unquote(text))}


def check_url(text: str) -> str:
    """Return what a file may say in the place of a URL. Errors: InputError for a password in it, for half a reference.

    A password in it is not repeated.
    """
    if passwords_in(text):
        raise InputError(f"a password stands in this URL; {INSTEAD} of the whole URL in its place")
    return str(Reference.parse(text) or text)


def _from_environment(name: str) -> str:
    value = os.environ.get(name)
    if value is None:
        raise InputError(f"env:{name}: the environment variable {name} is not set; export it before you start")
    if not value.strip():
        raise InputError(f"env:{name}: the environment variable {name} is empty; give it the value")
    return value


def _from_file(path: Path) -> str:
    text = _content(path)
    value = text.removesuffix("\n").removesuffix("\r")
    if not value.strip():
        raise InputError(f"file:{path}: the file is empty; write the value into it, on one line")
    return value


def _content(path: Path) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe without a writer does not block
        with os.fdopen(descriptor, "rb") as file:
            _check_status(path, os.fstat(file.fileno()))
            return file.read(MAX_BYTES).decode()
    except OSError as error:
        raise InputError(f"file:{path}: cannot be read: {error.strerror}; write the value into it") from error
    except UnicodeDecodeError:
        raise InputError(f"file:{path}: is not UTF-8 text; expected the value alone, on one line") from None


def _check_status(path: Path, status: os.stat_result) -> None:
    """Refuse what others could read, by the rule of libpq: a file of root's may be read by its group."""
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"file:{path}: is no regular file; expected one that holds the value alone")
    if status.st_size > MAX_BYTES:
        raise InputError(f"file:{path}: holds {status.st_size:,} bytes; expected a value of at most {MAX_BYTES:,}")
    group = stat.S_IRWXG & ~stat.S_IRGRP if status.st_uid == 0 else stat.S_IRWXG
    if status.st_mode & (group | stat.S_IRWXO):
        mode = stat.S_IMODE(status.st_mode)
        raise InputError(
            f"file:{path}: can be read or written by others (mode {mode:04o}); type: chmod 600 {shlex.quote(str(path))}"
        )
