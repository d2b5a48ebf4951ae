"""Strict YAML: duplicate keys refused, every error with its file, line and key."""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from trainwright.errors import InputError

KeyPath: TypeAlias = tuple[str | int, ...]
ModelT = TypeVar("ModelT", bound=BaseModel)
MAX_ENTRIES: Final = 100_000  # keys, values and items of a file, with each alias written out


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # libyaml's where it is there
    """The safe loader, for which `3e-4` is a number, as in YAML 1.2; `2024-99-99` is an error with its line."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, OverflowError) as error:
            raise yaml.constructor.ConstructorError(None, None, f"{node.value!r}: {error}", node.start_mark) from error


class _Dumper(yaml.SafeDumper):
    """The safe dumper, which puts the text `3e-4` into quotes, so that `_Loader` reads it as text again."""


for _kind_of_yaml in (_Loader, _Dumper):
    _kind_of_yaml.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
    )


@dataclass(frozen=True, slots=True)
class Document:
    """Parsed YAML and where each key stands. `lines` maps a key's path to its line number, from 1."""

    name: str
    data: dict[str, Any]
    lines: Mapping[KeyPath, int] = field(default_factory=dict)
    overrides: Mapping[KeyPath, str] = field(default_factory=dict)

    def where(self, path: KeyPath) -> str:
        """Say where `path` stands, as `run.yaml:7`; a missing key is told by its nearest parent."""
        for end in range(len(path), -1, -1):
            if path[:end] in self.overrides:
                return f"argument {self.overrides[path[:end]]!r}"
            if path[:end] in self.lines:
                return f"{self.name}:{self.lines[path[:end]]}"
        return self.name

    def at(self, key: str) -> "Document":
        """Give the section `key` as a document of its own, with its lines."""
        section = self.data.get(key) or {}
        return Document(
            self.name,
            section if isinstance(section, dict) else {},
            {path[1:]: line for path, line in self.lines.items() if path[:1] == (key,)},
            {path[1:]: text for path, text in self.overrides.items() if path[:1] == (key,)},
        )


def load(path: Path) -> Document:
    """Read one YAML mapping. Errors: InputError for a missing file, bad syntax, a duplicate key, no mapping."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not UTF-8 text: {error.reason} at byte {error.start}") from error
    return parse(text, str(path))


def parse(text: str, name: str) -> Document:
    """Parse `text` as one YAML mapping; `name` stands for the file in messages."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        lines: dict[KeyPath, int] = {}
        if node:
            _count(node, {}, name)
        _note_lines(node, (), lines, name)
        data = loader.construct_document(node) if node else None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise InputError(f"{name}:{line}: is not valid YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise InputError(f"{name}: is not valid YAML: {error}") from error
    except RecursionError as error:
        raise InputError(f"{name}: is nested too deeply, or holds itself by an alias") from error
    if not isinstance(data, dict):
        raise InputError(f"{name}:1: expected a mapping of keys to values, found {_kind(data)}")
    return Document(name, data, lines)


def _count(node: yaml.Node, counts: dict[yaml.Node, int], name: str) -> int:
    """Give the entries of a tree with each alias written out, before any is: a few lines of aliases can be billions."""
    if node not in counts:
        inner = node.value if isinstance(node, yaml.CollectionNode) else ()
        parts = [part for item in inner for part in (item if isinstance(item, tuple) else (item,))]
        count = 1 + sum(_count(part, counts, name) for part in parts)
        if count > MAX_ENTRIES:
            line = node.start_mark.line + 1
            raise InputError(f"{name}:{line}: holds over {MAX_ENTRIES:,} entries, with its aliases written out")
        counts[node] = count
    return counts[node]


def _note_lines(node: yaml.Node | None, path: KeyPath, lines: dict[KeyPath, int], name: str) -> None:
    if isinstance(node, yaml.MappingNode):
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise InputError(f"{name}:{line}: a key is one word; found a list or a mapping in its place")
            key = (*path, key_node.value)
            if key in lines:
                raise InputError(
                    f"{name}:{line}: key {key_node.value!r} stands twice; it was first on line {lines[key]}"
                )
            lines[key] = line
            _note_lines(value_node, key, lines, name)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            lines[(*path, index)] = item.start_mark.line + 1
            _note_lines(item, (*path, index), lines, name)


def override(document: Document, arguments: Sequence[str]) -> Document:
    """Apply `key.path=value` arguments; a value is YAML, and the schema types it afterwards."""
    data = _copy(document.data)
    overrides = dict(document.overrides)
    for argument in arguments:
        keys, equals, text = argument.partition("=")
        path = tuple(keys.split("."))
        if not equals or not all(path):
            raise InputError(f"argument {argument!r}: expected key=value, as in train.steps=50")
        try:
            value = yaml.load(text, Loader=_Loader)  # noqa: S506  a safe loader by inheritance
        except (yaml.YAMLError, RecursionError) as error:
            raise InputError(f"argument {argument!r}: the value is not valid YAML") from error
        target = data
        for key in path[:-1]:
            if not isinstance(target.get(key), dict):
                target[key] = {}
            target = target[key]
        target[path[-1]] = value
        overrides[path] = argument
    return Document(document.name, data, document.lines, overrides)


def validate(model: type[ModelT], document: Document, *, under: str = "") -> ModelT:
    """Make a `model` of the document; InputError lists every problem, one a line: file, line, key, expectation.

    `under` is the section's name in the whole file, for messages (`model`).
    """
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        problems: dict[tuple[str, str], list[str]] = {}
        for detail in error.errors(include_url=False):
            where, what, expectation = _problem(model, document, detail, under)
            problems.setdefault((where, what), []).append(expectation)
        lines = [f"{where}: {what}{' or '.join(texts)}" for (where, what), texts in problems.items()]
        raise InputError("\n".join(lines)) from error


def _problem(model: type[BaseModel], document: Document, detail: Any, under: str) -> tuple[str, str, str]:
    path = _key_path(document.data, detail)
    key = ".".join(str(part) for part in ((under, *path) if under else path))
    where = document.where(path)
    if detail["type"] == "extra_forbidden":
        known = sorted(_known_keys(model, path[:-1]))
        nearest = difflib.get_close_matches(str(path[-1]), known, n=1, cutoff=0.5)
        advice = f"did you mean {nearest[0]!r}?" if nearest else f"known keys: {', '.join(known)}"
        return where, f"unknown key {key!r}; ", advice
    if detail["type"] == "missing":
        return where, f"key {key!r} is missing", ""
    message = detail["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    what = f"{key}: " if key else ""
    if detail["type"] in {"value_error", "assertion_error"}:
        return where, what, message
    if detail["type"] in {"model_type", "dict_type"}:
        message = "expected a mapping of keys to values"
    return where, f"{what}found {detail['input']!r}; ", f"{message[:1].lower()}{message[1:]}"


def _key_path(data: Any, detail: Any) -> KeyPath:
    """Give the keys of the file in pydantic's location, which also names the branches of unions."""
    path: list[str | int] = []
    for part in detail["loc"]:
        if (isinstance(data, dict) and part in data) or (
            isinstance(data, list) and isinstance(part, int) and part < len(data)
        ):
            path.append(part)
            data = data[part]
    return (*path, detail["loc"][-1]) if detail["type"] == "missing" else tuple(path)


def _known_keys(model: type[BaseModel], path: KeyPath) -> set[str]:
    current: Any = model
    for part in path:
        fields = {field.alias or name: field for name, field in current.model_fields.items()}
        if part in fields:
            current = _model_within(fields[part].annotation) or current
    return {field.alias or name for name, field in current.model_fields.items()}


def _model_within(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_within, get_args(annotation))), None)


def dump(data: Mapping[str, Any]) -> str:
    text: str = yaml.dump(dict(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False)
    return text


def _copy(value: Any) -> Any:
    return {key: _copy(item) for key, item in value.items()} if isinstance(value, dict) else value


def _kind(value: Any) -> str:
    return {type(None): "an empty file", list: "a list", str: "text"}.get(type(value), type(value).__name__)
