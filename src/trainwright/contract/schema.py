"""The YAML of a contract, as it stands in the file: shapes and words only; `load` checks what the words mean."""

import datetime as dt
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Literal, Self, TypeAlias, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from trainwright.files import sha256_of_bytes

ItemT = TypeVar("ItemT")
Cell: TypeAlias = StrictBool | StrictInt | StrictFloat | StrictStr | None
Condition: TypeAlias = StrictBool | StrictInt | StrictFloat | StrictStr
Word: TypeAlias = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
Text: TypeAlias = Annotated[str, Field(min_length=1, max_length=1000)]
GateId: TypeAlias = Annotated[str, Field(pattern=r"^GATE-[A-Z]+-[A-Z0-9]+$")]
Sha256: TypeAlias = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Kind: TypeAlias = Literal["run", "pair", "probe"]
OnFail: TypeAlias = Literal["fail", "abort", "warn"]
Judged: TypeAlias = Literal["run_end", "validation"]
Nulls: TypeAlias = Literal["refuse", "ignore"]


def is_version(text: str) -> bool:
    return re.fullmatch(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)", text) is not None


def _semantic(version: str) -> str:
    if not is_version(version):
        raise ValueError(f"expected a version of three numbers, as in 1.5.0, found {version!r}")
    return version


def _not_empty(items: tuple[ItemT, ...]) -> tuple[ItemT, ...]:
    if not items:
        raise ValueError("expected at least one entry, found none")
    return items


Some: TypeAlias = Annotated[tuple[ItemT, ...], AfterValidator(_not_empty)]
Facts: TypeAlias = dict[Word, dict[Word, Cell | list[Cell]]]
Declared: TypeAlias = Mapping[str, frozenset[str]]  # table → the columns that a contract declares of it
Version: TypeAlias = Annotated[str, AfterValidator(_semantic)]


def version_key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


class Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Change(Entry):
    """What a version changed. `date` is when it was published here; none for versions from before that."""

    version: Version
    date: dt.date | None = None
    changes: Some[Text]


class Metric(Entry):
    """A field of a row of `table`. `since` is the contract's version that introduced it."""

    name: Word
    unit: Text
    meaning: Text
    since: Version
    required: bool = True
    table: Literal["steps", "validations"] = "steps"


class OwnRows(Entry):
    """A figure over rows of its own: another table, or another part of the gate's."""

    rows: Text
    value: Text


class Fixtures(Entry):
    """Made-up facts for a gate, each a mapping of table → column → values; one value alone fills the column.

    The gate holds for each of `good` and fails for each of `bad`; bad ones lie close to the bound.
    """

    good: Some[Facts]
    bad: Some[Facts]


class Gate(Entry):
    """One claim. `rows` is `<table>` or `<table> where <condition>`, `holds` one comparison of figures and numbers."""

    id: GateId
    claim: Text
    kind: Kind = "run"
    applies: dict[Word, Condition] = Field(default_factory=dict)
    rows: Text
    figures: dict[Word, Text | OwnRows] = Field(min_length=1, max_length=16)
    holds: Text
    unit: str = ""
    nulls: Nulls = "refuse"
    judged: Judged = "run_end"
    on_fail: OnFail = "fail"
    ship_blocking: bool = False
    optional: bool = False
    fixtures: Fixtures


class EvidenceEntry(Entry):
    """Sealed evidence of a run that a gate passes by, in a folder beside the contract's file.

    `date` is the day on which the run ended, `device` the one that it names, `signed_by` the key of its signature.
    `sha256` is one hash over the folder's files, `gate_sha256` that of the gate when the evidence was attached.
    """

    gate: GateId
    run: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")
    date: dt.date
    device: Text
    folder: str = Field(pattern=r"^evidence/GATE-[A-Z]+-[A-Z0-9]+/[a-z0-9][a-z0-9_-]*$")
    sha256: Sha256
    gate_sha256: Sha256
    signed_by: Sha256 | None = None

    @field_validator("folder")
    @classmethod
    def _is_of_its_gate(cls, folder: str, values: ValidationInfo) -> str:
        gate = values.data.get("gate")  # None for one that is refused by itself
        if gate is not None and not folder.startswith(f"evidence/{gate}/"):
            raise ValueError(f"expected a folder of {gate}, as in evidence/{gate}/<name>, found {folder!r}")
        return folder


def gate_sha256(gate: Gate) -> str:
    """One hash over all that a gate says, its fixtures included; keys that say what holds anyway count for nothing."""
    values = gate.model_dump(exclude_defaults=True)
    return sha256_of_bytes(json.dumps(values, sort_keys=True, separators=(",", ":")).encode())


class ContractShape(Entry):
    """The keys of a contract file, each well-formed by itself."""

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    version: Version
    title: Text
    purpose: Text
    changelog: Some[Change]
    metrics: tuple[Metric, ...]
    gates: Some[Gate]
    evidence: tuple[EvidenceEntry, ...] = ()

    @property
    def declared(self) -> Declared:
        return declared((metric.table, metric.name) for metric in self.metrics)


class ContractFile(ContractShape):
    """A contract file: what a run must record (`metrics`) and what must hold (`gates`)."""

    @model_validator(mode="after")
    def _entries_agree(self) -> Self:
        versions = [change.version for change in self.changelog]
        since = {metric.name: metric.since for metric in self.metrics}
        names = {"gate": [gate.id for gate in self.gates], "metric": [metric.name for metric in self.metrics]}
        for _, text in disagreements(self.version, versions, since, names):
            raise ValueError(text)
        return self


def declared(metrics: Iterable[tuple[str, str]]) -> Declared:
    """Give the names of each table, of (table, name)."""
    names: dict[str, set[str]] = {}
    for table, name in metrics:
        names.setdefault(table, set()).add(name)
    return {table: frozenset(found) for table, found in names.items()}


def disagreements(
    version: str, versions: Sequence[str], since: Mapping[str, str], names: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, str]]:
    """Give what is wrong between entries that are well-formed, as (what it is about, text).

    `versions` are those of the changelog, `since` is metric → version, `names` is kind of entry → every name of it.
    """
    ordered = sorted(set(versions), key=version_key, reverse=True)
    if versions and versions[0] != version:
        yield (
            "version",
            f"version is {version}, but the newest entry of changelog is {versions[0]}; make them equal",
        )
    if list(versions) != ordered:
        yield "changelog", f"changelog: expected each version once, newest first: {', '.join(ordered)}"
    for what, all_names in names.items():
        for name in sorted({name for name in all_names if all_names.count(name) > 1}):
            yield name, f"{what} {name!r} stands {all_names.count(name)} times; an id is used once, for ever"
    for name, first in since.items():
        if first not in versions:
            yield name, f"metric {name!r}: since {first} is not a version of the changelog"
