"""Expressions of a contract: parsed by DuckDB, accepted node by node against a written list, then written anew.

The text of an expression never reaches the binder. DuckDB parses it (parse only), the tree is walked against the
tables below, and SQL is composed from the accepted nodes alone: names quoted and bound to the one table `t`, numbers
checked, text escaped. What is not listed here is refused with its name.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final

import duckdb

from trainwright.contract.allowlist import (
    AGGREGATES,
    COMPARISONS,
    FUNCTION_KEYS,
    MAX_DEPTH,
    MAX_LENGTH,
    MAX_NODES,
    PLACE_KEYS,
    RESERVED,
    TOO_LARGE,
    Node,
    column_name,
    constant,
    function_call,
    only,
    plain_arguments,
    refusal,
)
from trainwright.errors import InputError


@dataclass(frozen=True, slots=True)
class Expression:
    """An accepted expression. `sql` is composed from accepted nodes; columns are read as `t."name"`.

    `null_tested` and `finite_tested` are columns whose NULLs (`is null`, `coalesce`) or non-finite values (`isfinite`)
    the expression looks at itself. `valued` are those of which more is read than whether they are NULL.
    """

    text: str
    sql: str
    columns: frozenset[str]
    valued: frozenset[str] = frozenset()
    null_tested: frozenset[str] = frozenset()
    finite_tested: frozenset[str] = frozenset()


def connect() -> AbstractContextManager[Any]:
    """Open a judge's connection: in memory, no file, no network, no extension, settings locked from the start."""
    settings: dict[str, Any] = {
        "memory_limit": "2GB",
        "threads": 2,
        "max_temp_directory_size": "0KB",
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "allow_community_extensions": False,
        "python_enable_replacements": False,
        "enable_external_access": False,
        "lock_configuration": True,
    }
    return duckdb.connect(config=settings)


class Parser:
    """Turns text into accepted expressions; `connection` is asked to parse only."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._frame = _frame(self._statements("1"))

    def condition(self, text: str) -> Expression:
        """Accept a condition on the columns of one row. Errors: InputError naming the node that is not allowed."""
        return self._accept(text, aggregates=False)

    def figure(self, text: str) -> Expression:
        """Accept an aggregate over rows; every column stands inside an aggregate. Errors: InputError."""
        return self._accept(text, aggregates=True)

    def tree(self, text: str) -> Node:
        """Parse one expression into DuckDB's own tree, unchecked. Errors: InputError for anything else."""
        if not text.strip() or len(text) > MAX_LENGTH:
            raise InputError(f"expected an expression of 1 to {MAX_LENGTH} characters, found {len(text)}")
        statements = self._statements(text)
        if _frame(statements) != self._frame:
            raise InputError(
                f"{text!r} is more than one expression; write one, without select, alias, window or modifier"
            )
        node: Node = statements[0]["node"]["select_list"][0]
        _check_size(node)
        return node

    def _accept(self, text: str, *, aggregates: bool) -> Expression:
        writer = _Writer(aggregates=aggregates)
        sql = writer.write(self.tree(text))
        return Expression(
            text, sql, *map(frozenset, (writer.columns, writer.valued, writer.null_tested, writer.finite_tested))
        )

    def _statements(self, text: str) -> list[Any]:
        query = "select json_serialize_sql($1::varchar, skip_null := true, skip_default := true)"
        try:
            answer = self._connection.execute(query, [f"select {text}\nfrom t"]).fetchall()[0][0]
        except duckdb.Error as error:
            raise InputError(f"{text!r} cannot be parsed: {first_line(error)}") from error
        try:
            parsed = json.loads(answer)
        except RecursionError as error:
            raise InputError(TOO_LARGE) from error
        if parsed["error"]:
            raise InputError(f"{text!r} is not one expression: {parsed['error_message'].splitlines()[0]}; {RESERVED}")
        statements: list[Any] = parsed["statements"]
        return statements


def first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _frame(statements: list[Any]) -> Any:
    """Give everything of the statements but the one expression, without places in the text."""
    return [
        _unplaced({**s, "node": {**s["node"], "select_list": len(s["node"].get("select_list", ()))}})
        for s in statements
    ]


def _check_size(node: Node) -> None:
    level, count, depth = [node], 0, 0
    while level:
        count, depth = count + len(level), depth + 1
        if count > MAX_NODES or depth > MAX_DEPTH:
            raise InputError(TOO_LARGE)
        level = [child for parent in level for child in _children(parent)]


def _children(node: Node) -> list[Node]:
    found = []
    for value in node.values():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, dict):
                inner = item.get("expression", item)
                found += [inner] if "class" in inner else []
    return found


def _unplaced(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _unplaced(item) for key, item in value.items() if key not in PLACE_KEYS - {"class", "type"}}
    return [_unplaced(item) for item in value] if isinstance(value, list) else value


@dataclass(slots=True)
class _Writer:
    """Writes accepted nodes as SQL and notes the columns they read."""

    aggregates: bool
    columns: set[str] = field(default_factory=set)
    valued: set[str] = field(default_factory=set)
    null_tested: set[str] = field(default_factory=set)
    finite_tested: set[str] = field(default_factory=set)
    inside: bool = False

    def write(self, node: Node) -> str:
        handler = HANDLERS.get(node["class"])
        if handler is None:
            raise refusal(node)
        return handler(self, node)

    def each(self, nodes: list[Node]) -> list[str]:
        return [self.write(node) for node in nodes]

    def column(self, node: Node) -> str:
        name = column_name(node)
        if self.aggregates and not self.inside:
            raise InputError(f"column {name!r} stands outside an aggregate; a figure is one number for all rows")
        self.columns.add(name)
        self.valued.add(name)
        return f't."{name}"'

    def constant(self, node: Node) -> str:
        kind, text = constant(node)
        if kind == "STRING":
            return "'" + text.replace("'", "''") + "'"
        return f"CAST('{text}' AS DOUBLE)" if kind == "NUMERIC" else f"({text})"

    def comparison(self, node: Node) -> str:
        only(node, "left", "right")
        if node["type"] not in COMPARISONS:
            raise refusal(node)
        return f"({self.write(node['left'])} {COMPARISONS[node['type']]} {self.write(node['right'])})"

    def between(self, node: Node) -> str:
        only(node, "input", "lower", "upper")
        return "({} BETWEEN {} AND {})".format(*self.each([node["input"], node["lower"], node["upper"]]))

    def conjunction(self, node: Node) -> str:
        only(node, "children")
        word = {"CONJUNCTION_AND": " AND ", "CONJUNCTION_OR": " OR "}[node["type"]]
        return f"({word.join(self.each(node['children']))})"

    def operator(self, node: Node) -> str:
        only(node, "children")
        children = node["children"]
        match node["type"]:
            case "OPERATOR_NOT":
                return f"(NOT {self.write(children[0])})"
            case "OPERATOR_IS_NULL":
                return f"({self.tested_for_null(children[0])} IS NULL)"
            case "OPERATOR_IS_NOT_NULL":
                return f"({self.tested_for_null(children[0])} IS NOT NULL)"
            case "OPERATOR_COALESCE":
                self.note(self.null_tested, children[:-1])
                return f"coalesce({', '.join(self.each(children))})"
            case "COMPARE_IN" if len(children) > 1:
                first, *rest = self.each(children)
                return f"({first} IN ({', '.join(rest)}))"
        raise refusal(node)

    def tested_for_null(self, node: Node) -> str:
        """Write what `is null` stands behind; a column alone is looked at for no more than that."""
        self.note(self.null_tested, [node])
        before = set(self.valued)
        sql = self.write(node)
        if node["class"] == "COLUMN_REF":
            self.valued = before
        return sql

    def note(self, tested: set[str], nodes: list[Node]) -> None:
        tested.update(column_name(node) for node in nodes if node["class"] == "COLUMN_REF")

    def function(self, node: Node) -> str:
        if node.get("qualified_name") != {"path": [node["function_name"]]}:
            raise refusal(node)
        if node["function_name"] in AGGREGATES:
            return self.aggregate(node)
        return self.scalar(node)

    def scalar(self, node: Node) -> str:
        name, arguments = function_call(node)
        if name == "isfinite":
            self.note(self.finite_tested, arguments)
        sql = self.each(arguments)
        if node.get("is_operator"):
            return f"({sql[0]} {name} {sql[1]})" if len(sql) == 2 else f"({name}{sql[0]})"
        return f"{name}({', '.join(sql)})"

    def aggregate(self, node: Node) -> str:
        name = node["function_name"]
        only(node, *FUNCTION_KEYS, "filter", "distinct")
        if not self.aggregates or self.inside:
            raise InputError(f"aggregate {name} cannot stand here; only figures aggregate, and not inside an aggregate")
        arguments = plain_arguments(node)
        distinct = "DISTINCT " if node.get("distinct") else ""
        if len(arguments) != AGGREGATES[name] or (distinct and name != "count"):
            raise InputError(
                f"{name} takes {AGGREGATES[name]} argument(s), and distinct only in count(distinct column)"
            )
        if name == "quantile_cont" and arguments[1]["class"] != "CONSTANT":
            raise InputError(
                "quantile_cont takes a column and a number between 0 and 1, as in quantile_cont(wall_ms, 0.95)"
            )
        self.inside = True
        call = "count(*)" if name == "count_star" else f"{name}({distinct}{', '.join(self.each(arguments))})"
        if "filter" in node:
            call += f" FILTER (WHERE {self.write(node['filter'])})"
        self.inside = False
        return call


HANDLERS: Final[Mapping[str, Callable[[_Writer, Node], str]]] = {
    "COLUMN_REF": _Writer.column,
    "CONSTANT": _Writer.constant,
    "COMPARISON": _Writer.comparison,
    "BETWEEN": _Writer.between,
    "CONJUNCTION": _Writer.conjunction,
    "OPERATOR": _Writer.operator,
    "FUNCTION": _Writer.function,
}
