"""What differs between two versions of a contract, and which bump of the version that needs.

major   what readers or runs relied on is another: a field removed, its unit changed or no longer required; a gate
        removed, or anything that decides it changed, tighter or looser (a loose enough bound is a removed gate)
minor   something is new: a field, a gate, a field that is now required; or a gate is judged at another time
patch   words, fixtures and evidence
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypeVar

from pydantic import BaseModel

from trainwright import yamlfile
from trainwright.contract.load import read_contract, shipped_contracts
from trainwright.contract.schema import ContractFile, Gate, Metric, version_key
from trainwright.yamlfile import KeyPath

Bump: TypeAlias = Literal["none", "patch", "minor", "major"]
EntryT = TypeVar("EntryT", Gate, Metric)

BUMPS: Final[tuple[Bump, ...]] = ("none", "patch", "minor", "major")
OF_CONTRACT: Final[Mapping[str, Bump]] = {"id": "major"}  # any other key of a contract holds words or evidence
OF_METRIC: Final[Mapping[str, Bump]] = {"meaning": "patch", "since": "patch"}
OF_GATE: Final[Mapping[str, Bump]] = {"claim": "patch", "fixtures": "patch", "evidence": "patch", "judged": "minor"}
APART: Final = frozenset({"version", "changelog", "metrics", "gates"})  # keys that are not compared as a whole
COMPARISON: Final = re.compile(r"([^<>=]+)(<=|>=|<|>)([^<>=]+)")
WHITE: Final = re.compile(r"(\\n|\s)+")
MIRRORED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that differs. `at` is its key in the newer file; the version's for what is not there any more."""

    needs: Bump
    about: str
    text: str
    at: KeyPath


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two versions of a contract, side by side."""

    old: str
    new: str
    differences: Sequence[Difference]

    @property
    def needs(self) -> Bump:
        """Give the least bump that is enough for every difference."""
        return max((difference.needs for difference in self.differences), key=BUMPS.index, default="none")

    @property
    def too_large(self) -> list[Difference]:
        """Give the differences that need a larger bump than the version made."""
        return [found for found in self.differences if BUMPS.index(found.needs) > self._made]

    @property
    def enough(self) -> bool:
        return self._made >= BUMPS.index(self.needs)

    @property
    def _made(self) -> int:
        """Give the place in BUMPS of what the version did; -1 where it went back."""
        old, new = version_key(self.old), version_key(self.new)
        if new <= old:
            return 0 if new == old else -1
        first = next(place for place, (before, after) in enumerate(zip(old, new, strict=True)) if before != after)
        return len(BUMPS) - 1 - first


def compare_files(old: str | Path, new: str | Path) -> Comparison:
    """Compare two contracts, each a shipped name or a file. Errors: InputError for one that cannot be read."""
    return compare(*(read_entry(file) for file in (old, new)))


def read_entry(name_or_path: str | Path) -> ContractFile:
    """Give what stands in a contract, its expressions not looked at. Errors: InputError with file and line."""
    return yamlfile.validate(ContractFile, yamlfile.parse(*read_contract(name_or_path)))


def compare(old: ContractFile, new: ContractFile) -> Comparison:
    """Compare two contracts; a gate is known by its id, a metric by its name, wherever it stands."""
    metrics = {entry.name: entry for entry in old.metrics}, {entry.name: entry for entry in new.metrics}
    gates = {entry.id: entry for entry in old.gates}, {entry.id: entry for entry in new.gates}
    found = [
        *_contract_differences(old, new),
        *_entries("metric", "metrics", *metrics, OF_METRIC),
        *_entries("gate", "gates", *gates, OF_GATE),
    ]
    return Comparison(old.version, new.version, found)


def _contract_differences(old: ContractFile, new: ContractFile) -> Iterator[Difference]:
    for key in _changed_keys(old, new, APART):
        yield Difference(OF_CONTRACT.get(key, "patch"), "contract", f"{key} changed", (key,))
    history = {change.version: change for change in new.changelog}
    for change in old.changelog:
        if history.get(change.version) != change:
            how = "changed" if change.version in history else "removed"
            yield Difference("patch", "changelog", f"entry of {change.version} {how}", ("changelog",))


def _entries(
    what: str, section: str, old: Mapping[str, EntryT], new: Mapping[str, EntryT], needs: Mapping[str, Bump]
) -> Iterator[Difference]:
    for name in (name for name in old if name not in new):
        yield Difference("major", f"{what} {name}", "removed", ("version",))
    for index, (name, entry) in enumerate(new.items()):
        at: KeyPath = (section, index)
        if name not in old:
            yield Difference("minor", f"{what} {name}", "added", at)
            continue
        for key in _changed_keys(old[name], entry):
            bump, text = _told(key, getattr(old[name], key), getattr(entry, key), needs.get(key, "major"))
            yield Difference(bump, f"{what} {name}", text, (*at, key))


def _changed_keys(old: BaseModel, new: BaseModel, apart: frozenset[str] = frozenset()) -> list[str]:
    ours, theirs = old.model_dump(), new.model_dump()
    return [key for key in theirs if key not in apart and _plain(ours[key]) != _plain(theirs[key])]


def _plain(value: Any) -> str:
    """Give a value as text that tells 1, 1.0 and true apart, and no white space from another."""
    return WHITE.sub(" ", json.dumps(value, sort_keys=True, default=str))


def _told(key: str, old: Any, new: Any, bump: Bump) -> tuple[Bump, str]:
    if key == "required":
        return ("minor", "is now required") if new else ("major", "is no longer required")
    if key == "holds":
        return bump, f"rule {_direction(old, new)}: {old} → {new}"
    short = all(isinstance(value, str | bool) for value in (old, new)) and bump != "patch"
    return bump, f"{key} changed: {_shown(old)} → {_shown(new)}" if short else f"{key} changed"


def _shown(value: str | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else value or "none"


def _direction(old: str, new: str) -> str:
    """Tell whether a bound moved to let less or more hold; only `changed` where the rest of the rule moved as well."""
    ours, theirs = _bounded(old), _bounded(new)
    if not ours or not theirs or ours[:2] != theirs[:2]:
        return "changed"
    (_, upper, before, strict), (*_, after, now_strict) = ours, theirs
    if before == after:
        return "tightened" if now_strict and not strict else "loosened" if strict and not now_strict else "changed"
    return "tightened" if (after < before) == upper else "loosened"


def _bounded(holds: str) -> tuple[str, bool, float, bool] | None:
    """Take a rule apart into what is bounded, whether from above, by which number, and whether strictly."""
    match = COMPARISON.fullmatch(holds)
    if not match:
        return None
    left, sign, right = (part.strip() for part in match.groups())
    if _number(left) is not None:
        left, sign, right = right, MIRRORED[sign], left
    bound = _number(right)
    return None if bound is None else (" ".join(left.split()), "<" in sign, bound, "=" not in sign)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def problems_against(old: ContractFile, new: ContractFile) -> Iterator[tuple[KeyPath, str]]:
    """Give the differences from an older contract that the version does not allow, as (key in the newer, text)."""
    for found in compare(old, new).too_large:
        versions = f"version {old.version} → {new.version}"
        yield found.at, f"{found.about}: {found.text}: needs a {found.needs} version, and {versions} is none"


def shipped_before(new: ContractFile) -> ContractFile | None:
    """Give the shipped contract of the same id and a version that is not newer."""
    old = read_entry(new.id) if new.id in shipped_contracts() else None
    return old if old and version_key(old.version) <= version_key(new.version) else None
