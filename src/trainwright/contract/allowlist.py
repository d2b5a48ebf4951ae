"""The written list: which nodes, operators, functions and constants an expression of a contract may hold.

What is not here is refused by name. Every check takes a node of DuckDB's parse tree.
"""

import math
import re
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from trainwright.errors import InputError

Node: TypeAlias = Mapping[str, Any]

MAX_LENGTH: Final = 1000
MAX_NODES: Final = 200
MAX_DEPTH: Final = 24
MAX_TEXT: Final = 100
NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,62}")
WHOLE: Final = re.compile(r"-?[0-9]{1,18}")
NUMBER: Final = re.compile(r"-?(?:[0-9]{1,30}\.?[0-9]{0,30}|\.[0-9]{1,30})(?:[eE][+-]?[0-9]{1,3})?")

AGGREGATES: Final[Mapping[str, int]] = {  # name -> number of arguments
    "count_star": 0,
    **dict.fromkeys(
        ("count", "sum", "min", "max", "avg", "median", "stddev_samp", "var_samp", "bool_and", "bool_or"), 1
    ),
    **dict.fromkeys(("quantile_cont", "arg_min", "arg_max"), 2),
}
SCALARS: Final[Mapping[str, range]] = {
    **dict.fromkeys(("abs", "ceil", "exp", "floor", "isfinite", "isinf", "isnan", "ln", "sqrt"), range(1, 2)),
    "round": range(1, 3),
    **dict.fromkeys(("greatest", "least"), range(2, 9)),
}
ARITHMETIC: Final = frozenset("+-*/")
COMPARISONS: Final[Mapping[str, str]] = {
    "COMPARE_EQUAL": "=",
    "COMPARE_NOTEQUAL": "<>",
    "COMPARE_LESSTHAN": "<",
    "COMPARE_LESSTHANOREQUALTO": "<=",
    "COMPARE_GREATERTHAN": ">",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
}
ALLOWED: Final = (
    f"allowed are columns, numbers, text, true, false; + - * /; {' '.join(COMPARISONS.values())}; and, or, not, "
    f"between, in, is null; {', '.join(SCALARS)}, coalesce; in a figure count(*), {', '.join([*AGGREGATES][1:])}, "
    "each with filter (where …)"
)
RESERVED: Final = "names that SQL reserves, as limit, offset or order, cannot be used"
TOO_LARGE: Final = f"the expression is too large; at most {MAX_NODES} parts, nested at most {MAX_DEPTH} deep"
PLACE_KEYS: Final = frozenset({"class", "type", "query_location", "query_location_length"})
FUNCTION_KEYS: Final = ("function_name", "order_bys", "arguments", "qualified_name", "is_operator")


def refusal(node: Node) -> InputError:
    """Say which node or function is not on the list, and what is."""
    if node["class"] == "FUNCTION":
        return InputError(f"function {node['function_name']!r} is not allowed; {ALLOWED}")
    return InputError(f"{node['class'].lower()} ({node['type']}) is not allowed; {ALLOWED}")


def only(node: Node, *keys: str) -> None:
    """Refuse a node that carries more than `keys`: an alias, an order, a schema."""
    more = sorted(node.keys() - PLACE_KEYS - set(keys))
    if more:
        raise InputError(
            f"{more[0]!r} is not allowed in {node.get('function_name', node['class'].lower())!r}; {ALLOWED}"
        )


def column_name(node: Node) -> str:
    only(node, "column_names")
    names = node["column_names"]
    if len(names) != 1 or not NAME.fullmatch(names[0]):
        raise InputError(f"{'.'.join(names)!r} is not a column's name; write it plainly, as in train_loss")
    return str(names[0])


def constant(node: Node) -> tuple[str, str]:
    """Give kind (INTEGER, NUMERIC, STRING, BOOLEAN) and text of a constant within its bounds. Errors: InputError."""
    only(node, "literal")
    kind, text = node["literal"]["kind"], node["literal"].get("text", "")
    if kind == "INTEGER":
        text = text.replace("_", "")
    right = {
        "INTEGER": WHOLE.fullmatch(text),
        "NUMERIC": NUMBER.fullmatch(text) and math.isfinite(float(text)),
        "STRING": len(text) <= MAX_TEXT and text.isprintable(),
        "BOOLEAN": text in {"true", "false"},
    }
    if kind not in right:
        raise InputError(f"a constant of kind {kind} is not allowed; for NULL write: column is null; {ALLOWED}")
    if not right[kind]:
        raise InputError(
            f"constant {text[:30]!r} is too large; numbers of 18 digits or text of {MAX_TEXT} characters at most"
        )
    return kind, text


def function_call(node: Node) -> tuple[str, list[Node]]:
    """Give name and arguments of an allowed scalar function or arithmetic operator. Errors: InputError."""
    name = node["function_name"]
    counts = range(1 if name == "-" else 2, 3) if name in ARITHMETIC and node.get("is_operator") else SCALARS.get(name)
    if counts is None:
        raise refusal(node)
    only(node, *FUNCTION_KEYS)
    arguments = plain_arguments(node)
    if len(arguments) not in counts:
        raise InputError(f"{name} takes {counts.start} to {counts.stop - 1} argument(s), found {len(arguments)}")
    return name, arguments


def plain_arguments(node: Node) -> list[Node]:
    arguments: list[Node] = node.get("arguments", [])
    if node.get("order_bys") != {"type": "ORDER_MODIFIER"} or any(
        set(argument) != {"expression"} for argument in arguments
    ):
        raise InputError(f"{node['function_name']} takes plain arguments only, without names and without order by")
    return [argument["expression"] for argument in arguments]
