"""`holds`: one comparison of figures and constants, computed here, so that a value that is not finite never holds."""

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from trainwright.contract.allowlist import COMPARISONS, Node, column_name, constant, function_call, only, refusal
from trainwright.contract.expressions import Parser
from trainwright.errors import InputError

Figures: TypeAlias = Mapping[str, float]
Term: TypeAlias = Callable[[Figures], float]

COMPARE: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
MIRRORED: Final[Mapping[str, str]] = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
COMPUTE: Final[Mapping[str, Callable[..., Any]]] = {
    "+": operator.add,
    "*": operator.mul,
    "/": operator.truediv,
    "abs": abs,
    "ceil": math.ceil,
    "floor": math.floor,
    "greatest": max,
    "least": min,
}


@dataclass(frozen=True, slots=True)
class Holds:
    """An accepted comparison. `figures` are the names it reads."""

    text: str
    sign: str
    left: Term
    right: Term
    left_constant: bool
    right_constant: bool
    figures: frozenset[str]

    def decide(self, figures: Figures) -> tuple[bool, float | None]:
        """Say whether the comparison holds, and the headroom in percent of its bound.

        Headroom is None for `=` and `<>`, for a bound of zero and where a value is not finite; then nothing holds.
        """
        try:
            left, right = float(self.left(figures)), float(self.right(figures))
        except (ArithmeticError, ValueError):
            return False, None
        if not (math.isfinite(left) and math.isfinite(right) and all(map(math.isfinite, figures.values()))):
            return False, None
        return COMPARE[self.sign](left, right), self._headroom(left, right)

    def bound(self, figures: Figures) -> str:
        """Give the comparison as text, with the measured value of a bound that is itself a figure."""
        if self.left_constant or self.right_constant:
            return self.text
        try:
            return f"{self.text} (bound {float(self.right(figures)):.6g})"
        except (ArithmeticError, ValueError, KeyError):
            return self.text

    def _headroom(self, left: float, right: float) -> float | None:
        sign = self.sign
        if self.left_constant:
            left, right, sign = right, left, MIRRORED.get(sign, sign)
        if sign not in MIRRORED or right == 0:
            return None
        room = right - left if sign in {"<", "<="} else left - right
        return 100.0 * room / abs(right)


def accept(parser: Parser, text: str, known: frozenset[str]) -> Holds:
    """Accept one comparison of the figures `known` and constants, each figure used.

    Errors: InputError for any other expression, an unknown figure, an unused figure, a comparison of constants.
    """
    node = parser.tree(text)
    if node["class"] != "COMPARISON" or node["type"] not in COMPARISONS:
        raise InputError(f"{text!r}: expected one comparison of figures and constants, as in median_ms < 500")
    only(node, "left", "right")
    left, right = set[str](), set[str]()
    terms = _term(node["left"], left), _term(node["right"], right)
    unknown = sorted((left | right) - known)
    if unknown:
        raise InputError(f"{text!r}: unknown figure {unknown[0]!r}; the gate's figures: {', '.join(sorted(known))}")
    unused = sorted(known - left - right)
    if unused:
        raise InputError(f"{text!r}: figure {unused[0]!r} is not used; a figure that decides nothing is left out")
    return Holds(text, COMPARISONS[node["type"]], *terms, not left, not right, frozenset(left | right))


def _term(node: Node, names: set[str]) -> Term:
    match node["class"]:
        case "COLUMN_REF":
            name = column_name(node)
            names.add(name)
            return lambda figures: figures[name]
        case "CONSTANT":
            kind, text = constant(node)
            if kind in {"INTEGER", "NUMERIC"}:
                number = float(text)
                return lambda _: number
        case "FUNCTION":
            return _call(node, names)
    raise refusal(node)


def _call(node: Node, names: set[str]) -> Term:
    name, arguments = function_call(node)
    terms = [_term(argument, names) for argument in arguments]
    if name == "-":
        first, second = terms if len(terms) == 2 else (lambda _: 0.0, terms[0])
        return lambda figures: first(figures) - second(figures)
    if name not in COMPUTE:
        raise InputError(f"function {name!r} is not allowed in holds; allowed are - {' '.join(COMPUTE)}")
    compute = COMPUTE[name]
    return lambda figures: float(compute(*(term(figures) for term in terms)))
