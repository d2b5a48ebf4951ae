"""The table of verdicts: a line for what passes, all that was found for what does not, an end for the others."""

from typing import Any

import msgspec
from rich.console import Console

from trainwright.cli.verdicts import table
from trainwright.contract.judge import DECIDED_BY, Result, Verdict
from trainwright.contract.schema import Kind

CLAIM = "every step from the run's first to its last stands on record exactly once, with every field that is required"
REASON = "first 1, last 799, distinct_steps 799; required: distinct_steps = last - first + 1 [and not one less]"


def verdict(number: int, result: Result = "pass", **changes: Any) -> Verdict:
    values = {"claim": CLAIM, "kind": "run", "reason": REASON, "bound": "worst < 500"}
    told = {**values, "on_fail": "fail", "ship_blocking": False, "optional": False, **changes}
    return Verdict(gate=f"GATE-TEST-{number:03d}", result=result, **told)


def undecided(number: int, kind: Kind) -> Verdict:
    return verdict(number, "no_evidence", kind=kind, reason=f"not decided here: kind {kind}, decided by: someone")


def shown(*verdicts: Verdict, width: int = 132) -> list[str]:
    console = Console(highlight=False, width=width)
    with console.capture() as captured:
        console.print(table(verdicts))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_a_gate_that_passes_takes_one_line_at_any_width() -> None:
    figures = {f"figure_{number}": number / 7 for number in range(9)}
    passing = [verdict(number, figures=figures, unit="ms", headroom_percent=12.34) for number in range(30)]
    for width in (60, 80, 132, 200):
        assert len(shown(*passing, width=width)) == 31
    assert shown(*passing)[1].startswith("GATE-TEST-000  pass    every step from")
    assert shown(*passing)[1].endswith("…  figure_0 0 ms, …; headroom 12.3 %")


def test_of_many_figures_the_first_are_shown_and_one_that_is_long_stands_whole() -> None:
    whole = verdict(1, figures={"worst": 499.5}, headroom_percent=0.1)
    many = verdict(2, figures={"first": 0.0, "last": 799.0, "distinct_steps": 800.0})
    long = verdict(3, figures={"a_figure_with_quite_a_long_name": 4.5e-13, "other": 1.0})
    lone = verdict(4, figures={"a_figure_with_quite_a_long_name": 4.5e-13})
    assert [line.rpartition("…  ")[2] for line in shown(whole)[1:]] == ["worst 499.5; headroom 0.1 %"]
    alone = "a_figure_with_quite_a_long_name 4.5e-13"
    for line, end in zip(shown(many, long, lone)[1:], ("first 0, last 799, …", f"{alone}, …", alone), strict=True):
        assert line.endswith(f"…  {end}")


def test_a_gate_that_does_not_pass_is_told_with_its_whole_claim_and_reason() -> None:
    for result in ("fail", "no_evidence"):
        _, passed, *others = shown(verdict(1), verdict(2, result))
        assert "…" in passed
        told = f"GATE-TEST-002 {result.replace('_', ' ')} {CLAIM} {REASON}"
        assert sorted(" ".join(others).split()) == sorted(told.split())


def test_a_gate_that_stands_in_no_ones_way_takes_one_line_with_its_whole_reason() -> None:
    reason = "applies to device cuda; this run's is cpu"
    optional = verdict(2, "no_evidence", reason="worst: was never recorded", optional=True)
    _, first, second = shown(verdict(1, "not_applicable", reason=reason), optional)
    assert first.endswith(f"…  {reason}")
    assert second.endswith("…  worst: was never recorded")


def test_gates_of_other_kinds_are_named_at_the_end_with_the_commands_that_decide_them() -> None:
    others = [undecided(2, "pair"), undecided(3, "probe"), undecided(4, "pair")]
    assert shown(verdict(1), *others, width=200)[2:] == [
        f"not decided here: GATE-TEST-002, GATE-TEST-004; decided by {DECIDED_BY['pair']}",
        f"not decided here: GATE-TEST-003; decided by {DECIDED_BY['probe']}",
    ]
    assert shown(undecided(1, "run")) == [f"not decided here: GATE-TEST-001; decided by {DECIDED_BY['run']}"]


def test_what_is_decided_is_read_from_a_record_as_from_the_judge() -> None:
    kept = msgspec.convert(msgspec.to_builtins([verdict(1), undecided(2, "probe")]), list[Verdict])
    assert [one.is_decided for one in kept] == [True, False]
