"""The registry of models: which versions there are, where each came from, and what was changed by whom.

A version's facts are written once. What changes later is its status, its aliases, its tags and its notes, and of each
change a line stays in the audit.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, Protocol, TypeAlias

import msgspec

from trainwright.errors import InputError
from trainwright.files import TEMPORARY_SUFFIX, sha256_of_names
from trainwright.manifest import FileRecord
from trainwright.registry.versions import Bump, Version

Status: TypeAlias = Literal["pending", "ready", "deleted"]
Metrics: TypeAlias = Mapping[str, float | int | str | None]

NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
ALIAS: Final = re.compile(r"[a-z][a-z0-9_-]{0,62}")
TAG: Final = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,62}")
FILE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
LATEST: Final = "latest"
NOTES_BYTES: Final = 1 << 20


class Lineage(msgspec.Struct, frozen=True, kw_only=True):
    """Where a version's weights came from: a checkpoint of a run, what that run went on from, and the data's hashes."""

    run: str
    checkpoint: str
    step: int
    parent_run: str | None = None
    parent_checkpoint: str | None = None
    init: Mapping[str, str] = {}
    hashes: Mapping[str, str] = {}
    config_sha256: str = ""


class ContractRecord(msgspec.Struct, frozen=True):
    """The contract that a version's run was judged by."""

    id: str
    version: str
    sha256: str


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a version before it has a number; it never changes.

    `metrics` are those of the best validation, `verdicts` the judge's as JSON. `passing` is false for a version whose
    gates did not hold and that was let in all the same: for ever.
    """

    lineage: Lineage
    hyperparameters: Mapping[str, Any]
    metrics: Metrics
    files: Mapping[str, FileRecord]
    contract: ContractRecord | None
    verdicts: Sequence[Mapping[str, Any]]
    evidence_sha256: str
    passing: bool

    @property
    def sha256(self) -> str:
        """One hash over the name and the hash of each file."""
        return sha256_of_names((name, record.sha256) for name, record in self.files.items())


class Listed(msgspec.Struct, frozen=True, kw_only=True, gc=False):  # no value of it leads back to it
    """A version as a list shows it. `created` is UTC, ISO 8601; `artifact_url` is there once its files are.

    Without a `contract_id` no gate was asked, and `passing` says only that the run was done.
    """

    name: str
    number: Version
    status: Status
    passing: bool
    created: str
    run: str
    metrics: Metrics
    contract_id: str | None = None
    aliases: Sequence[str] = ()
    artifact_url: str | None = None

    @property
    def reference(self) -> str:
        return f"{self.name}@{self.number}"

    def document(self) -> dict[str, Any]:
        """Give it for JSON, the version as its text."""
        return _document(self)


class ModelVersion(Listed, frozen=True, kw_only=True):
    """A version with all that is known of it. `notes` are markdown."""

    facts: Facts
    tags: Mapping[str, str] = {}
    notes: str = ""
    completed: str | None = None
    deleted: str | None = None

    def document(self) -> dict[str, Any]:
        return _document(self) | {"sha256": self.facts.sha256}


class Registered(msgspec.Struct, frozen=True):
    """What a registration gave: a new version, or the one that the run has already."""

    version: ModelVersion
    is_new: bool


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the audit: who did what to what, at which time (UTC, ISO 8601), and what it was and became."""

    time: str
    who: str
    action: str
    subject: str
    detail: Mapping[str, Any] = {}


class Registry(Protocol):
    """Models and their versions. Every change is one transaction, together with its line of the audit.

    `who` is the person or process that asks for a change. A number is never used twice, not even after its version was
    deleted. Every verb raises RegistryError when the database fails, and InputError for a name, an alias or a tag that
    is none.
    """

    def register(self, name: str, facts: Facts, chosen: Bump | Version, *, who: str) -> Registered:
        """Give the run its version of the model `name`, pending until `complete`; the same one if it has one.

        A bump counts from the greatest version that was ever used (see `versions.first_after`). Errors: InputError for
        a number that was used; where the run has another one, or one of another checkpoint, or other evidence.
        """

    def complete(self, name: str, number: Version, artifact_url: str, *, who: str) -> ModelVersion:
        """Make a pending version ready: its files lie at `artifact_url`, verified. One that is ready stays as it is.

        Errors: InputError where there is no such version, or it was deleted.
        """

    def delete(self, name: str, number: Version, *, who: str) -> ModelVersion:
        """Mark a version as deleted; its number and its record stay. One that is deleted stays as it is.

        Errors: InputError where there is no such version, or an alias names it.
        """

    def ls(self, name: str | None = None, *, deleted: bool = False) -> Sequence[Listed]:
        """Give the versions, of all models or of one, by name and then in the order of versions."""

    def get(self, name: str, number: Version) -> ModelVersion:
        """Errors: InputError that names what there is."""

    def named(self, name: str, alias: str) -> ModelVersion:
        """Give the version that an alias names. Errors: InputError that names the aliases there are."""

    def latest(self, name: str) -> ModelVersion:
        """Give the greatest version that is ready and whose gates hold: a release, or a pre-release if there is none.

        Errors: InputError where there is none.
        """

    def alias(self, name: str, alias: str, number: Version | None, *, who: str) -> None:
        """Have an alias name a version that is ready, from now on; with None, none."""

    def tag(self, name: str, number: Version, key: str, value: str | None, *, who: str) -> None:
        """Set a tag of a version; with None, remove it."""

    def note(self, name: str, number: Version, text: str, *, who: str) -> None:
        """Set the notes of a version, in markdown."""

    def audit(self, name: str | None = None) -> Sequence[Change]:
        """Give every change, of all models or of one, in the order in which they were made."""

    def close(self) -> None:
        """Let go of the connections."""


def check_name(name: str) -> str:
    """Return the name of a model, which is also a folder of a store. Errors: InputError."""
    return _checked(name, NAME, "name of a model", "a-z, 0-9, '_' and '-', 63 characters at most, no sign first")


def check_alias(alias: str) -> str:
    """Return an alias. `latest` is none: it is what a name stands for by itself. Errors: InputError."""
    if alias == LATEST:
        raise InputError(f"{LATEST!r} cannot be set: it is always the greatest version that is ready and passes")
    return _checked(alias, ALIAS, "alias", "a-z, 0-9, '_' and '-', 63 characters at most, a letter first")


def check_tag(key: str) -> str:
    """Return the key of a tag. Errors: InputError."""
    return _checked(
        key, TAG, "key of a tag", "letters, digits, '.', '_' and '-', 63 characters at most, a letter first"
    )


def check_file(name: str) -> str:
    """Return the name of a file of a version, which lies in no folder of its own. Errors: InputError."""
    if ".." in name or name.endswith(TEMPORARY_SUFFIX):
        raise InputError(f"{name!r} is no file of a version; it holds '..' or ends in {TEMPORARY_SUFFIX!r}")
    return _checked(name, FILE, "file of a version", "letters, digits, '.', '_' and '-', a letter or digit first")


def _checked(text: str, pattern: re.Pattern[str], kind: str, expected: str) -> str:
    if not pattern.fullmatch(text):
        raise InputError(f"{text!r} is no {kind}; expected {expected}")
    return text


def _document(listed: Listed) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(msgspec.structs.asdict(listed))
    del plain["number"]
    return {"name": plain.pop("name"), "version": str(listed.number), **plain}
