"""Settings of a user: where stores, the registry and the vault are, read from settings.yaml in TRAINWRIGHT_HOME.

Any value may be a reference of `secrets`, and a secret has to be one. A reference is read each time that its value is
asked for, so that a key that was changed is the new one; nothing is read when the file is loaded.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Self, TypeAlias, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, PrivateAttr, model_validator

from trainwright import yamlfile
from trainwright.checkpoints.base import S3Settings, Store
from trainwright.checkpoints.open import open_url
from trainwright.errors import InputError, TrainwrightError
from trainwright.redaction import know
from trainwright.secrets import Reference, Secret, check_url, passwords_in, secret_reference
from trainwright.yamlfile import Document

if TYPE_CHECKING:
    from trainwright.vault import KeyValueVault

HOME_VARIABLE: Final = "TRAINWRIGHT_HOME"
STORE_VARIABLE: Final = "TRAINWRIGHT_STORE"
REGISTRY_VARIABLE: Final = "TRAINWRIGHT_REGISTRY"
FILE: Final = "settings.yaml"
SHOWN: Final = {"store", "registry", "endpoint", "region", "address", "namespace", "ca"}  # no secrets, by reference too


def home_directory() -> Path:
    """Give the folder of settings, keys and embedded databases: TRAINWRIGHT_HOME, ./.trainwright without it."""
    return Path(os.environ.get(HOME_VARIABLE) or ".trainwright")


def _as_text(value: Any) -> Any:
    if not isinstance(value, str) or not value:
        raise ValueError("expected text")  # without the value, which may be a secret
    return value


def _setting(text: str) -> str:
    with _as_value_error():
        return str(Reference.parse(text) or text)


def _secret(text: str) -> str:
    with _as_value_error():
        return str(secret_reference(text))


def _url(text: str) -> str:
    with _as_value_error():
        return check_url(text)


def _not_in_a_vault(text: str) -> str:
    if text.startswith("vault:"):
        raise ValueError("what opens the vault cannot lie in it; write env:NAME or file:PATH")
    return text


@contextmanager
def _as_value_error() -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise ValueError(str(error)) from error


@contextmanager
def _told_of(where: str) -> Iterator[None]:
    """Put where a reference stands before an error of reading it."""
    try:
        yield
    except TrainwrightError as error:
        raise type(error)(f"{where}: {error}") from error


UrlT = TypeVar("UrlT", str, str | None)


def _with_known_password(url: UrlT) -> UrlT:
    for password in passwords_in(url or ""):
        know(password)
    return url


Setting: TypeAlias = Annotated[str, BeforeValidator(_as_text), AfterValidator(_setting)]
Url: TypeAlias = Annotated[str, BeforeValidator(_as_text), AfterValidator(_url)]
SecretSetting: TypeAlias = Annotated[str, BeforeValidator(_as_text), AfterValidator(_secret)]
OUTSIDE: Final = AfterValidator(_not_in_a_vault)


def _vault_class() -> "type[KeyValueVault]":
    try:
        from trainwright.vault import KeyValueVault
    except ModuleNotFoundError as error:
        if error.name != "hvac":
            raise
        raise InputError("vault: needs the extra vault: pip install 'trainwright[vault]'") from error
    return KeyValueVault


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _a_mapping(cls, value: Any) -> Any:
        if not isinstance(value, dict | BaseModel):
            raise ValueError("expected a mapping of keys to values")  # noqa: TRY004  pydantic tells ValueError alone
        return value


class S3Section(Section):
    """How to reach s3://. What is not set is taken from AWS_* in the environment."""

    endpoint: Url | None = None
    region: Setting | None = None
    access_key: Setting | None = None
    secret_key: SecretSetting | None = None
    session_token: SecretSetting | None = None
    path_style: bool = True
    allow_http: bool = False


class VaultSection(Section):
    """HashiCorp Vault or OpenBao: its address, and a token or the two halves of an AppRole login."""

    address: Annotated[Url, OUTSIDE]
    token: Annotated[SecretSetting, OUTSIDE] | None = None
    role_id: Annotated[Setting, OUTSIDE] | None = None
    secret_id: Annotated[SecretSetting, OUTSIDE] | None = None
    namespace: Annotated[Setting, OUTSIDE] | None = None
    ca: Annotated[Setting, OUTSIDE] | None = None

    @model_validator(mode="after")
    def _one_way_in(self) -> Self:
        role = (self.role_id is not None, self.secret_id is not None)
        if role[0] != role[1] or (self.token is not None) == role[0]:
            raise ValueError("expected either token, or role_id and secret_id")
        return self


_vaults: "dict[tuple[Path, VaultSection, str], KeyValueVault]" = {}  # of this process


class Settings(Section):
    """What settings.yaml says. Every key may be absent; `load` reads the file."""

    store: Url | None = None
    registry: Url | None = None
    s3: S3Section | None = None
    vault: VaultSection | None = None
    _document: Document = PrivateAttr(Document(FILE, {}))
    _home: Path = PrivateAttr(Path())

    @classmethod
    def load(cls, home: Path | None = None) -> Self:
        """Read `home`/settings.yaml; a missing file says nothing, which is no error.

        Errors: InputError with file, line and key. A secret that stands there as a plain value is not repeated.
        """
        home = home or home_directory()
        file = home / FILE
        document = yamlfile.load(file) if file.exists() else Document(str(file), {})
        loaded = yamlfile.validate(cls, document)
        loaded._document, loaded._home = document, home  # noqa: SLF001  its own
        return loaded

    @property
    def home(self) -> Path:
        return self._home

    @property
    def file(self) -> Path:
        return self._home / FILE

    def store_url(self) -> str | None:
        """Give the URL of the store: of TRAINWRIGHT_STORE, else of the file. None where there is none."""
        return self._url(STORE_VARIABLE, "store")

    def registry_url(self) -> str:
        """Give the URL of the registry: of TRAINWRIGHT_REGISTRY, else of the file, else registry.db in the home."""
        return self._url(REGISTRY_VARIABLE, "registry") or f"sqlite:///{self._home / 'registry.db'}"

    def read_url(self, text: str) -> str:
        """Read the URL that `text` is, or is a reference to, as one of run.yaml. Errors: as `s3_settings`."""
        reference = Reference.parse(text)
        return _with_known_password(reference.read(vault=self._vault_for(reference)) if reference else text)

    def s3_settings(self) -> S3Settings | None:
        """Read how to reach s3:// now. None where the file has no such section: then AWS_* alone counts.

        Errors: InputError with the line of the reference that names nothing; those of the vault.
        """
        section = self.s3
        if section is None:
            return None
        return S3Settings(
            endpoint=self._text("s3", "endpoint"),
            region=self._text("s3", "region"),
            access_key=self._access_key(section),
            secret_key=self._secret("s3", "secret_key"),
            session_token=self._secret("s3", "session_token"),
            path_style=section.path_style,
            allow_http=section.allow_http,
        )

    def opened_store(self, url: str) -> Store:
        """Open a store by its URL, with the keys of this file. Errors: as `s3_settings`; those of `open_url`."""
        return open_url(url, self.s3_settings() if url.startswith("s3:") else None)

    def opened_vault(self) -> "KeyValueVault | None":
        """Give the vault, not yet asked for anything by this; None where none is configured. Errors: InputError.

        Settings that are loaded again share it, and its login: a secret_id may be good for one.
        """
        section = self.vault
        if section is None:
            return None
        key = (self._home.absolute(), section, self._text("vault", "address") or "")
        if key not in _vaults:
            _vaults[key] = self._new_vault(section, key[2])
        return _vaults[key]

    def _new_vault(self, section: VaultSection, address: str) -> "KeyValueVault":
        ca = self._text("vault", "ca")
        return _vault_class()(
            address,
            token=self._reader("token") if section.token else None,
            role=(self._reader("role_id"), self._reader("secret_id")) if section.role_id else None,
            namespace=self._text("vault", "namespace"),
            ca=self._home / Path(ca).expanduser() if ca else None,
        )

    def references(self) -> Iterator[tuple[str, Reference, Callable[[], object]]]:
        """Give each reference of the file: the key that it stands for, itself, and how to read it now."""
        sections = {(): self, ("s3",): self.s3, ("vault",): self.vault}
        for above, section in sections.items():
            for name in type(section).model_fields if section else ():
                text = getattr(section, name)
                reference = Reference.parse(text) if isinstance(text, str) else None
                if reference:
                    path = (*above, name)
                    yield ".".join(path), reference, partial(self._text if name in SHOWN else self._needed, *path)

    def _url(self, variable: str, key: str) -> str | None:
        text = os.environ.get(variable)
        if not text:
            return _with_known_password(self._text(key))
        with _told_of(variable):
            return self.read_url(text)

    def _access_key(self, section: S3Section) -> str | None:
        """Give the key's name; one that stands in a reference is not to be shown either."""
        hidden = section.access_key is not None and Reference.parse(section.access_key) is not None
        return self._needed("s3", "access_key").reveal() if hidden else section.access_key

    def _reader(self, key: str) -> Callable[[], Secret]:
        return lambda: self._needed("vault", key)

    def _text(self, *path: str) -> str | None:
        text = self._written(path)
        reference = Reference.parse(text) if text else None
        if reference is None:
            return text
        with _told_of(self._place(path)):
            return reference.read(base=self._home, vault=self._vault_for(reference))

    def _secret(self, *path: str) -> Secret | None:
        return None if self._written(path) is None else self._needed(*path)

    def _needed(self, *path: str) -> Secret:
        text = self._written(path) or ""
        with _told_of(self._place(path)):
            reference = Reference.parse(text)
            return reference.resolve(base=self._home, vault=self._vault_for(reference)) if reference else Secret(text)

    def _vault_for(self, reference: Reference) -> "KeyValueVault | None":
        return self.opened_vault() if reference.kind == "vault" else None

    def _place(self, path: Sequence[str]) -> str:
        return f"{self._document.where(tuple(path))}: {'.'.join(path)}"

    def _written(self, path: Sequence[str]) -> str | None:
        section: Any = self
        for key in path:
            section = getattr(section, key)
        assert section is None or isinstance(section, str)
        return section
