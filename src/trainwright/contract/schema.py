"""The YAML of a contract, as it stands in the file: shapes and words only; `load` checks what the words mean."""

import datetime as dt
import re
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
    model_validator,
)

ItemT = TypeVar("ItemT")
Cell: TypeAlias = StrictBool | StrictInt | StrictFloat | StrictStr | None
Condition: TypeAlias = StrictBool | StrictInt | StrictFloat | StrictStr
Word: TypeAlias = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
Text: TypeAlias = Annotated[str, Field(min_length=1, max_length=1000)]
Kind: TypeAlias = Literal["run", "pair", "probe"]
OnFail: TypeAlias = Literal["fail", "abort", "warn"]
Judged: TypeAlias = Literal["run_end", "validation"]
Nulls: TypeAlias = Literal["refuse", "ignore"]


def _semantic(version: str) -> str:
    if not re.fullmatch(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)", version):
        raise ValueError(f"expected a version of three numbers, as in 1.5.0, found {version!r}")
    return version


def _not_empty(items: tuple[ItemT, ...]) -> tuple[ItemT, ...]:
    if not items:
        raise ValueError("expected at least one entry, found none")
    return items


Some: TypeAlias = Annotated[tuple[ItemT, ...], AfterValidator(_not_empty)]
Facts: TypeAlias = dict[Word, dict[Word, Cell | list[Cell]]]
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
    """A field of a step's row. `since` is the contract's version that introduced it."""

    name: Word
    unit: Text
    meaning: Text
    since: Version
    required: bool = True


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

    id: str = Field(pattern=r"^GATE-[A-Z]+-[A-Z0-9]+$")
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


class ContractFile(Entry):
    """A contract file: what a run must record (`metrics`) and what must hold (`gates`)."""

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    version: Version
    title: Text
    purpose: Text
    changelog: Some[Change]
    metrics: tuple[Metric, ...]
    gates: Some[Gate]

    @model_validator(mode="after")
    def _changelog_agrees(self) -> Self:
        versions = [change.version for change in self.changelog]
        if versions[0] != self.version:
            raise ValueError(
                f"version is {self.version}, but the newest entry of changelog is {versions[0]}; make them equal"
            )
        ordered = sorted(set(versions), key=version_key, reverse=True)
        if versions != ordered:
            raise ValueError(f"changelog: expected each version once, newest first: {', '.join(ordered)}")
        return self

    @model_validator(mode="after")
    def _names_stand_once(self) -> Self:
        for what, names in (("gate", [g.id for g in self.gates]), ("metric", [m.name for m in self.metrics])):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(
                    f"{what} {twice[0]!r} stands {names.count(twice[0])} times; an id is used once, for ever"
                )
        return self

    @model_validator(mode="after")
    def _metrics_are_in_the_changelog(self) -> Self:
        versions = {change.version for change in self.changelog}
        for metric in self.metrics:
            if metric.since not in versions:
                raise ValueError(f"metric {metric.name!r}: since {metric.since} is not a version of the changelog")
        return self
