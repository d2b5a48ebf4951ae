"""Edits of a contract's text: evidence is added, and every comment, anchor and order stays as it was."""

import datetime as dt
import json
from collections.abc import Sequence
from typing import Any, Final

import yaml

from trainwright.contract import schema
from trainwright.contract.load import parse_contract
from trainwright.errors import InputError

PLAIN: Final = frozenset({"gate", "date"})  # their forms need no quotes


def with_evidence(text: str, name: str, entries: Sequence[schema.EvidenceEntry], change: str, today: dt.date) -> str:
    """Give the text with `entries` at the end of its evidence, the next patch version, and `change` in the changelog.

    Errors: InputError for a text that is no contract, and for one written so that nothing can be added to it.
    """
    before = parse_contract(text, name).entry
    version = _next_patch(before.version)
    keys = _keys(text)
    places = [
        _version(keys, version),
        _changelog(text, name, keys, version, change, today),
        _evidence(text, name, keys, entries),
    ]
    edited = text
    for start, end, replacement in sorted(places, reverse=True):  # from the end, so that earlier places stay
        edited = edited[:start] + replacement + edited[end:]
    after = parse_contract(edited, name).entry
    kept = [schema.gate_sha256(gate) for gate in before.gates] == [schema.gate_sha256(gate) for gate in after.gates]
    if not kept or after.version != version or after.evidence != (*before.evidence, *entries):
        raise InputError(f"{name}: is written in a way that evidence cannot be added to; write its sections as blocks")
    return edited


def _next_patch(version: str) -> str:
    major, minor, patch = schema.version_key(version)
    return f"{major}.{minor}.{patch + 1}"


def _keys(text: str) -> dict[str, Any]:
    """Give the node of each top-level key; the parser in Python, for it alone counts characters."""
    root: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    return {key.value: value for key, value in root.value}


def _version(keys: dict[str, Any], version: str) -> tuple[int, int, str]:
    node = keys["version"]
    quote = node.style or ""
    return node.start_mark.index, node.end_mark.index, f"{quote}{version}{quote}"


def _changelog(
    text: str, name: str, keys: dict[str, Any], version: str, change: str, today: dt.date
) -> tuple[int, int, str]:
    node = _block(keys["changelog"], "changelog", name)
    place, indent = _line_start(text, node.value[0].start_mark.index), " " * node.start_mark.column
    lines = (f"- version: {version}", f"  date: {today}", "  changes:", f"    - {json.dumps(change)}")
    return place, place, "".join(f"{indent}{line}\n" for line in lines)


def _evidence(
    text: str, name: str, keys: dict[str, Any], entries: Sequence[schema.EvidenceEntry]
) -> tuple[int, int, str]:
    if "evidence" not in keys:
        lines = "".join(f"  - {_inline(entry)}\n" for entry in entries)
        return len(text), len(text), f"{'' if text.endswith(chr(10)) else chr(10)}\nevidence:\n{lines}"
    node = _block(keys["evidence"], "evidence", name)
    place, indent = _end_of(text, node.value[-1]), " " * node.start_mark.column
    lines = "".join(f"{indent}- {_inline(entry)}\n" for entry in entries)
    return place, place, lines if text[:place].endswith("\n") else f"\n{lines}"


def _block(node: Any, key: str, name: str) -> Any:
    if not isinstance(node, yaml.SequenceNode) or node.flow_style or not node.value:
        raise InputError(
            f"{name}:{node.start_mark.line + 1}: {key}: write it as a block, an entry a line, to add to it"
        )
    return node


def _line_start(text: str, index: int) -> int:
    return text.rfind("\n", 0, index) + 1


def _end_of(text: str, node: Any) -> int:
    """Give the place after the last line of a node; a block's own mark stands after the comments that follow it."""
    if node.flow_style:
        return text.find("\n", node.end_mark.index) + 1 or len(text)
    place: int = node.end_mark.index
    while place and _says_nothing(text[_line_start(text, place - 1) : place]):
        place = _line_start(text, place - 1)
    return place


def _says_nothing(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#")


def _inline(entry: schema.EvidenceEntry) -> str:
    values = entry.model_dump(mode="json", exclude_none=True)
    parts = (f"{k}: {v if k in PLAIN else json.dumps(v, ensure_ascii=False)}" for k, v in values.items())
    return f"{{{', '.join(parts)}}}"
