"""What is wrong in the meaning of one gate: expressions that are refused, rules and fixtures that decide nothing."""

import math
import random
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, Literal, TypeAlias

from trainwright import yamlfile
from trainwright.contract import schema
from trainwright.contract.expressions import Parser
from trainwright.contract.fixtures import facts_of_fixture
from trainwright.contract.judge import Verdict, judge_gate
from trainwright.contract.readings import registered
from trainwright.contract.rules import Gate, KeyedError, accept_gate
from trainwright.errors import InputError
from trainwright.yamlfile import Document

Severity: TypeAlias = Literal["error", "warning"]
Found: TypeAlias = tuple[Severity, str, str]  # severity, key below the gate, text

NUMBER: Final = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
QUOTED: Final = re.compile(r"'[^']*'")
RULE: Final = ("rows", "figures", "holds")
SOUND: Final[Mapping[str, Any]] = {"id": "GATE-X-1", "claim": "x", "fixtures": {"good": [{}], "bad": [{}]}}
LONGEST_CLAIM: Final = 120
FAR_PERCENT: Final = 50.0  # a bad fixture farther from the bound than this would not notice a weaker one
TOLERANCE: Final = 1e-6  # a bound this small allows for rounding; nothing lies close to it
DRAWS: Final = 500


def problems_of_gate(connection: Any, gate: Mapping[str, Any], declared: schema.Declared) -> Iterator[Found]:
    """Give what is wrong in the meaning of one gate, as far as its shape lets it be read."""
    claim = gate.get("claim")
    if isinstance(claim, str) and len(claim) > LONGEST_CLAIM:
        yield "warning", "claim", f"claim of {len(claim)} characters; keep to {LONGEST_CLAIM}, for tables"
    entry = _entry(gate, RULE)
    if entry is None:
        return
    parser = Parser(connection)
    refused = [*_refusals(parser, entry, declared)]
    yield from (("error", error.key, str(error)) for error in refused)
    whole = _entry(gate, (*RULE, "applies", "nulls", "fixtures"))
    if not refused:
        yield from _judged(connection, accept_gate(parser, whole or entry, declared), fixtures=whole is not None)


def _entry(gate: Mapping[str, Any], keys: Collection[str]) -> schema.Gate | None:
    """Give the gate with these keys of its own, so that no flaw elsewhere hides what is wrong in them."""
    own = {key: gate.get(key) for key in keys if key in gate or key == "fixtures"}
    try:
        return yamlfile.validate(schema.Gate, Document("", {**SOUND, **own}))
    except InputError:
        return None


def _refusals(parser: Parser, entry: schema.Gate, declared: schema.Declared) -> Iterator[KeyedError]:
    """Give every refusal of a gate: what is refused is put right, so that the next one is met."""
    met: set[str] = set()
    while True:
        try:
            accept_gate(parser, entry, declared)
        except KeyedError as error:
            if error.key in met:
                return
            met.add(error.key)
            yield error
            entry = _put_right(entry, error.key)
        else:
            return


def _put_right(entry: schema.Gate, key: str) -> schema.Gate:
    """Give the gate with something in place of the refused key that is always accepted."""
    if key == "rows":
        return entry.model_copy(update={"rows": "environment"})  # a table whose columns are open
    name = key.removeprefix("figures.")
    return entry.model_copy(update={"figures": {**entry.figures, name: "count(*)"}}) if name != key else entry


def _judged(connection: Any, gate: Gate, *, fixtures: bool) -> Iterator[Found]:
    yield from _constants(gate)
    verdicts = [*_verdicts(connection, gate)] if fixtures else []
    for kind, number, verdict in verdicts:
        yield from _fixture(kind, number, verdict)
    bad = [verdict for kind, _, verdict in verdicts if kind == "bad" and isinstance(verdict, Verdict)]
    if bad and not any(verdict.result == "fail" for verdict in bad):
        yield "error", "fixtures.bad", "no bad fixture makes the gate fail; nobody has seen that it can"
    if _is_constant(gate, [verdict.figures for _, _, verdict in verdicts if isinstance(verdict, Verdict)]):
        yield "error", "holds", f"holds: {gate.holds.text!r} is constant; no figures that were tried change its truth"
    if _is_far(gate, bad):
        yield "warning", "fixtures.bad", f"every bad fixture is over {FAR_PERCENT:g} % from the bound; add one near it"


def _constants(gate: Gate) -> Iterator[Found]:
    """Tell figures and conditions that read nothing of the rows."""
    for figure in gate.figures:
        if not figure.value.columns and "count(*)" not in QUOTED.sub("", figure.value.sql):
            yield "error", f"figures.{figure.name}", f"figures.{figure.name}: {figure.value.text!r} is a constant"
    places = {figure.rows: f"figures.{figure.name}" for figure in gate.figures} | {gate.rows: "rows"}
    for rows, key in places.items():
        if rows.condition and not rows.condition.columns:
            yield "error", key, f"{key}: the condition of {rows.text!r} names no column; it takes all rows or none"


def _verdicts(connection: Any, gate: Gate) -> Iterator[tuple[str, int, Verdict | str]]:
    """Judge every fixture; one that is no table has a text in place of its verdict."""
    for kind in ("good", "bad"):
        for number, fixture in enumerate(getattr(gate.entry.fixtures, kind)):
            try:
                facts = facts_of_fixture(fixture)
            except InputError as error:
                yield kind, number, str(error)
                continue
            with registered(connection, facts):
                yield kind, number, judge_gate(connection, gate, facts)


def _fixture(kind: str, number: int, verdict: Verdict | str) -> Iterator[Found]:
    key, what, expected = f"fixtures.{kind}.{number}", f"{kind} fixture {number + 1}", {"good": "pass", "bad": "fail"}
    if isinstance(verdict, str):
        yield "error", key, f"{what}: {verdict}"
    elif verdict.result != expected[kind]:
        severity: Severity = "warning" if (kind, verdict.result) == ("bad", "no_evidence") else "error"
        yield severity, key, f"{what}: expected {expected[kind]}, is {verdict.result}: {verdict.reason}"


def _is_constant(gate: Gate, seen: list[dict[str, float | None]]) -> bool:
    """Tell whether the rule is always true or always false: for the fixtures' figures and for many drawn ones."""
    numbers = [float(text) for text in NUMBER.findall(gate.holds.text)]
    near = [n + d for n in numbers for d in (-1, 0, 1)] + [n * f for n in numbers for f in (0.9, 1.1)]
    pool = [v for n in (0.0, 0.5, 1.0, 2.0, 1e3, 1e12, *near) for v in (n, -n) if math.isfinite(n)]
    counts = [abs(float(round(value))) for value in pool]  # no count is below zero
    pools = {f.name: counts if f.value.sql.startswith("count(") else pool for f in gate.figures}
    draw = random.Random(0)  # noqa: S311  the same draws each time, and no secret
    tried: list[Mapping[str, float]] = [{name: draw.choice(own) for name, own in pools.items()} for _ in range(DRAWS)]
    tried += [dict(zip(pools, row, strict=True)) for row in zip(*pools.values(), strict=True)]
    for figures in seen:
        found = {name: value for name, value in figures.items() if value is not None and math.isfinite(value)}
        tried += [found] if found.keys() == pools.keys() else []
    return len({gate.holds.decide(figures)[0] for figures in tried}) == 1


def _is_far(gate: Gate, bad: list[Verdict]) -> bool:
    """Tell whether every bad fixture whose distance from the bound can be told is far from it."""
    distances = [-verdict.headroom_percent for verdict in bad if verdict.headroom_percent is not None]
    if not distances:
        return False
    rule = gate.holds
    bound = rule.left({}) if rule.left_constant else rule.right({}) if rule.right_constant else math.inf
    return abs(bound) > TOLERANCE and min(distances) > FAR_PERCENT
