"""Gates with one number or sign changed: fixtures that are worth something notice each."""

import re
from collections.abc import Iterable, Iterator

from trainwright.contract import schema

NUMBER = re.compile(r"(?<![\w.])\d[\d_.]*(?:e[+-]?\d+)?")
SIGN = re.compile(r"<=|>=|<>|<|>|=")
NEGATED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "=": "<>", "<>": "="}
UNCHANGED_IN_MEANING = {
    "GATE-TRAIN-004: rows: 0 -> -1",  # with the first among the later ones, the best is below it just as often
    "GATE-TRAIN-005: first_cap: 1e300 -> 1e301",  # stands for: no cap was given
    "GATE-TRAIN-UNIGRAM: best_by_then: 1e300 -> 1e301",  # stands for: there was no such validation
    "GATE-TRAIN-UNIGRAM: first_after: 1e300 -> 1e301",
}


def unchanged_in(gates: Iterable[schema.Gate]) -> set[str]:
    """Give the changes of `UNCHANGED_IN_MEANING` that are of these gates."""
    ids = {gate.id for gate in gates}
    return {change for change in UNCHANGED_IN_MEANING if change.partition(":")[0] in ids}


def mutants(gate: schema.Gate) -> Iterator[tuple[str, schema.Gate]]:
    """Give the gate with one number or sign changed: times ten (zero: -1), or the comparison negated."""
    for change, text in changes(gate.holds):
        yield f"holds: {change}", gate.model_copy(update={"holds": text})
    for change, text in changes(gate.rows):
        yield f"rows: {change}", gate.model_copy(update={"rows": text})
    for name, figure in gate.figures.items():
        if isinstance(figure, schema.OwnRows):
            for change, text in changes(figure.rows):
                new_rows = figure.model_copy(update={"rows": text})
                yield f"rows of {name}: {change}", gate.model_copy(update={"figures": {**gate.figures, name: new_rows}})
        value = figure if isinstance(figure, str) else figure.value
        for change, text in changes(value):
            new = text if isinstance(figure, str) else figure.model_copy(update={"value": text})
            yield f"{name}: {change}", gate.model_copy(update={"figures": {**gate.figures, name: new}})
    for change, text in weaker_lower_bounds(gate.holds):
        yield f"holds: {change}", gate.model_copy(update={"holds": text})
    yield "empty window", gate.model_copy(update={"rows": f"{gate.rows.split()[0]} where 1 = 2"})
    if isinstance(gate.holds, str) and not NUMBER.search(gate.holds):
        left, sign, right = re.split(f"({SIGN.pattern})", gate.holds, maxsplit=1)
        yield "bound", gate.model_copy(update={"holds": f"{left}{sign} 10 * ({right})"})


def changes(text: str) -> Iterator[tuple[str, str]]:
    for match in NUMBER.finditer(text):
        new = ten_times(match[0])
        yield f"{match[0]} -> {new}", text[: match.start()] + new + text[match.end() :]
    for match in SIGN.finditer(text):
        yield f"{match[0]} negated", text[: match.start()] + NEGATED[match[0]] + text[match.end() :]


def ten_times(number: str) -> str:
    if float(number) == 0:
        return "-1"
    mantissa, e, exponent = number.partition("e")
    return f"{mantissa}e{int(exponent) + 1}" if e else f"{float(number) * 10:g}"


def weaker_lower_bounds(holds: str) -> Iterator[tuple[str, str]]:
    """Give the comparison with a lower bound that is a number, above zero, divided by ten."""
    match = re.search(r"(>=?\s*)(\d[\d_.]*(?:e[+-]?\d+)?)$", holds)
    if match and float(match[2]) > 0:
        yield f"{match[2]} divided", f"{holds[: match.start(2)]}{float(match[2]) / 10:g}"
