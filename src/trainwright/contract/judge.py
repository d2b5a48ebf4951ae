"""The judge: decides each gate of a contract from recorded facts alone. Exact about what is not there.

Zero rows, a NULL figure, a column never recorded and NULLs among the rows are no evidence. A figure over rows that hold
a value that is not finite is not finite, and no bound holds for it.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec

from trainwright.contract.expressions import connect
from trainwright.contract.readings import Facts, Reading, read_figures, registered
from trainwright.contract.rules import Contract, Gate
from trainwright.contract.schema import Judged, Kind, OnFail

Result: TypeAlias = Literal["pass", "fail", "not_applicable", "no_evidence"]
RUN_ONLY: Final[frozenset[Kind]] = frozenset({"run"})
SHORT: Final = 50  # characters of a comparison that are shown beside figures that hold
SETTINGS: Final = ("environment", "config")  # tables of one row, in which `applies` finds its names
UNDECIDED: Final = "not decided here"
DECIDED_BY: Final[Mapping[Kind, str]] = {
    "run": "trainwright gates RUN",
    "pair": "trainwright determinism FILE, trainwright verify-resume FILE or trainwright check FILE",
    "probe": "trainwright probe",
}


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What was decided of one gate. `bound` is its comparison; `headroom_percent` how far the figure is from it.

    `figures` holds NaN for one that is not finite and None for one that could not be computed. `rows` counts the gate's
    own rows, `nulls_ignored` the NULL cells among them that the gate allows.
    """

    gate: str
    claim: str
    kind: Kind
    result: Result
    reason: str
    figures: dict[str, float | None] = {}
    bound: str
    unit: str = ""
    headroom_percent: float | None = None
    rows: int = 0
    nulls_ignored: int = 0
    on_fail: OnFail
    ship_blocking: bool
    optional: bool

    @property
    def holds(self) -> bool:
        """Tell whether the gate stands in no one's way."""
        return holds(self.result, optional=self.optional)

    @property
    def is_decided(self) -> bool:
        """Tell whether its kind was judged at all; one that was not has no evidence, and names who decides it."""
        return not self.reason.startswith(UNDECIDED)


def holds(result: str, *, optional: bool) -> bool:
    """Tell whether a gate of this result holds: it passes, does not apply, or is optional without evidence."""
    return result in {"pass", "not_applicable"} or (result == "no_evidence" and optional)


def figures_told(figures: Mapping[str, float | None], unit: str) -> str:
    """Give `worst 100 ms, best 1 ms`; a figure that could not be computed is left out."""
    unit = f" {unit}" if unit else ""
    return ", ".join(f"{name} {value:.6g}{unit}" for name, value in figures.items() if value is not None)


def headroom_told(percent: float | None) -> str:
    """Give `headroom 80 %`, or nothing where there is none."""
    return "" if percent is None else f"headroom {percent:.3g} %"


def decides_exit(verdict: Verdict) -> bool:
    """Tell whether this verdict alone gives the run an exit code other than 0."""
    return verdict.kind == "run" and verdict.on_fail != "warn" and not verdict.holds


def judge(
    contract: Contract, facts: Facts, *, when: Judged = "run_end", kinds: Collection[Kind] = RUN_ONLY
) -> list[Verdict]:
    """Decide the gates of `contract`, in its order: all at the run's end, at a validation those that say so.

    Gates of other kinds than `kinds` are listed as not decided. The connection is made for this judgement alone.
    """
    with connect() as connection, registered(connection, facts):
        return [
            judge_gate(connection, gate, facts) if gate.entry.kind in kinds else _undecided(gate)
            for gate in contract.gates
            if when in {"run_end", gate.entry.judged}
        ]


def judge_gate(connection: Any, gate: Gate, facts: Facts) -> Verdict:
    """Decide one gate of any kind, on a connection of `connect` in which the facts are `registered`."""
    applies = _applies(gate, facts)
    if applies is not None:
        return _verdict(gate, *applies)
    readings = read_figures(connection, facts, gate.figures, ignore=gate.entry.nulls == "ignore")
    figures = {name: reading.value for name, reading in readings.items()}
    own = [readings[figure.name] for figure in gate.figures if figure.rows == gate.rows]
    nulls = {name: count for reading in own for name, count in reading.nulls.items()}
    result, reason, headroom = _decide(gate, readings)
    return _verdict(
        gate,
        result,
        reason,
        figures=figures,
        bound=gate.holds.bound({name: value for name, value in figures.items() if value is not None}),
        headroom_percent=headroom,
        rows=max(reading.rows for reading in own),
        nulls_ignored=sum(nulls.values()),
    )


def _verdict(gate: Gate, result: Result, reason: str, **details: Any) -> Verdict:
    entry = gate.entry
    return Verdict(
        gate=entry.id,
        claim=entry.claim,
        kind=entry.kind,
        result=result,
        reason=reason,
        unit=entry.unit,
        on_fail=entry.on_fail,
        ship_blocking=entry.ship_blocking,
        optional=entry.optional,
        **{"bound": entry.holds, **details},
    )


def _undecided(gate: Gate) -> Verdict:
    kind = gate.entry.kind
    return _verdict(gate, "no_evidence", f"{UNDECIDED}: kind {kind}, decided by: {DECIDED_BY[kind]}")


def _applies(gate: Gate, facts: Facts) -> tuple[Result, str] | None:
    for name, wanted in gate.entry.applies.items():
        prefix, fact = (name[:3], name[4:]) if name.startswith(("min_", "max_")) else ("", name)
        measured = _setting(facts, fact)
        if measured is None:
            why = _setting(facts, f"{fact}_unknown") or f"{fact} was not recorded in environment or config"
            return "no_evidence", f"whether it applies is unknown: {why}"
        if not _meets(prefix, measured, wanted):
            sign = {"min": "at least ", "max": "at most "}.get(prefix, "")
            return "not_applicable", f"applies to {fact} {sign}{_shown(wanted)}; this run's is {_shown(measured)}"
    return None


def _setting(facts: Facts, name: str) -> Any:
    """Give a fact from the first table that has it; one that is NULL there is unknown, whatever was asked for."""
    tables = (facts[key] for key in SETTINGS if key in facts and facts[key].num_rows)
    return next((table[name][0].as_py() for table in tables if name in table.column_names), None)


def _meets(prefix: str, measured: Any, wanted: Any) -> bool:
    if prefix:
        numbers = all(isinstance(value, int | float) for value in (measured, wanted))
        return numbers and bool(measured >= wanted if prefix == "min" else measured <= wanted)
    return bool(measured == wanted) and isinstance(measured, bool) == isinstance(wanted, bool)


def _decide(gate: Gate, readings: Mapping[str, Reading]) -> tuple[Result, str, float | None]:
    for name, reading in readings.items():
        if reading.not_finite:
            return "fail", f"{name} is not finite: {reading.not_finite}; no bound holds for it", None
    for name, reading in readings.items():
        if reading.missing:
            return "no_evidence", f"{name}: {reading.missing}", None
    figures = {name: reading.value for name, reading in readings.items() if reading.value is not None}
    passed, headroom = gate.holds.decide(figures)
    shown = figures_told(figures, gate.entry.unit)
    bound = gate.holds.bound(figures)
    if not passed:
        return "fail", f"{shown}; required: {bound}", headroom
    parts = [shown, bound if len(bound) <= SHORT else "", headroom_told(headroom)]
    return "pass", "; ".join(part for part in parts if part), headroom


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value).lower()
