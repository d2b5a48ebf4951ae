"""The judge: absence is no evidence, a bad number fails, and only gates of a run decide its exit."""

import math
from typing import Any

import pyarrow as pa
import pytest

from tests.contract.facts_tables import contract_of, facts, verdict_of
from trainwright.contract.judge import Verdict, decides_exit, judge

NAN, INF = math.nan, math.inf
NO_NULLS = "count(*) filter (where wall_ms is null)"


def steps(**columns: Any) -> Any:
    return facts(steps=columns)


def result_of(tables: Any, **gate: Any) -> str:
    return verdict_of(tables, **gate).result


def test_a_verdict_states_figure_bound_and_headroom() -> None:
    verdict = verdict_of(steps(step=[0, 1, 2], wall_ms=[1.0, 100.0, 2.0]), unit="ms")
    assert (verdict.result, verdict.rows, verdict.nulls_ignored) == ("pass", 3, 0)
    assert verdict.figures == {"worst": 100.0}
    assert verdict.bound == "worst < 500"
    assert verdict.headroom_percent == pytest.approx(80.0)
    assert verdict.reason == "worst 100 ms; worst < 500; headroom 80 %"


def test_a_failing_figure_has_negative_headroom() -> None:
    verdict = verdict_of(steps(wall_ms=[600.0]))
    assert verdict.result == "fail"
    assert verdict.headroom_percent == pytest.approx(-20.0)


@pytest.mark.parametrize(
    ("holds", "passes", "headroom"),
    [
        ("worst < 100", False, 0.0),
        ("worst <= 100", True, 0.0),
        ("worst > 50", True, 100.0),
        ("worst >= 100.5", False, -0.4975),
        ("worst = 100", True, None),
        ("worst <> 100", False, None),
        ("500 > worst", True, 80.0),
        ("worst - 100 <= 0", True, None),
        ("abs(worst) / 2 < least(60, 70)", True, 16.6667),
    ],
)
def test_each_comparison_is_exact_at_its_bound(holds: str, passes: bool, headroom: float | None) -> None:
    verdict = verdict_of(steps(wall_ms=[100.0]), holds=holds)
    assert verdict.result == ("pass" if passes else "fail")
    assert verdict.headroom_percent == (None if headroom is None else pytest.approx(headroom, rel=1e-4))


def test_zero_rows_are_no_evidence_even_for_a_count() -> None:
    gate = {
        "rows": "steps where step > 10",
        "figures": {"bad": "count(*) filter (where wall_ms > 9)"},
        "holds": "bad = 0",
    }
    assert result_of(steps(step=[1], wall_ms=[1.0]), **gate) == "no_evidence"
    assert result_of(steps(step=[], wall_ms=[]), **gate) == "no_evidence"
    assert result_of(steps(step=[11], wall_ms=[1.0]), **gate) == "pass"


def test_a_missing_table_is_no_evidence_and_named() -> None:
    verdict = verdict_of({})
    assert (verdict.result, verdict.reason) == ("no_evidence", "worst: table steps was not recorded")


def test_a_null_figure_is_no_evidence() -> None:
    gate = {"figures": {"spread": "stddev_samp(wall_ms)"}, "holds": "spread < 1"}
    assert result_of(steps(wall_ms=[1.0]), **gate) == "no_evidence"
    assert result_of(steps(wall_ms=[1.0, 1.5]), **gate) == "pass"


@pytest.mark.parametrize("nulls", ["refuse", "ignore"])
def test_a_column_never_recorded_is_no_evidence(nulls: str) -> None:
    assert result_of(steps(step=[1, 2]), nulls=nulls) == "no_evidence"
    assert result_of(steps(wall_ms=[None, None]), nulls=nulls) == "no_evidence"
    assert result_of({"steps": pa.table({"wall_ms": pa.array([None], pa.float64())})}, nulls=nulls) == "no_evidence"


def test_nulls_among_the_rows_are_no_evidence_unless_ignored_and_counted() -> None:
    tables = steps(wall_ms=[1.0, None, 2.0])
    refused = verdict_of(tables)
    assert (refused.result, refused.reason) == ("no_evidence", "worst: 1 of 3 rows hold no wall_ms")
    ignored = verdict_of(tables, nulls="ignore")
    assert (ignored.result, ignored.rows, ignored.nulls_ignored) == ("pass", 3, 1)


def test_nulls_in_a_boolean_aggregate_are_no_evidence() -> None:
    gate = {"figures": {"all_quick": "bool_and(wall_ms < 9)"}, "holds": "all_quick = 1"}
    assert result_of(steps(wall_ms=[1.0, None]), **gate) == "no_evidence"
    assert result_of(steps(wall_ms=[1.0, 10.0]), **gate) == "fail"


def test_nulls_in_the_condition_on_rows_are_no_evidence() -> None:
    gate = {"rows": "steps where train_loss > 0"}
    assert result_of(steps(train_loss=[1.0, None], wall_ms=[1.0, 900.0]), **gate) == "no_evidence"


def test_a_figure_that_tests_for_null_sees_every_null() -> None:
    gate = {"figures": {"empty": NO_NULLS}, "holds": "empty = 0"}
    assert result_of(steps(wall_ms=[1.0, None]), **gate) == "fail"
    assert result_of(steps(wall_ms=[None, None]), **gate) == "fail"
    assert result_of(steps(wall_ms=[1.0, NAN]), **gate) == "pass"
    assert result_of(steps(step=[1]), **gate) == "no_evidence"


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize(
    "figure", ["max(wall_ms)", "min(wall_ms)", "median(wall_ms)", "avg(wall_ms)", "count(*) filter (where wall_ms > 9)"]
)
@pytest.mark.parametrize("sign", ["<", ">", "<>", ">="])
def test_no_bound_holds_for_a_figure_over_a_bad_number(bad: float, figure: str, sign: str) -> None:
    verdict = verdict_of(steps(wall_ms=[1.0, 2.0, bad, 3.0]), figures={"worst": figure}, holds=f"worst {sign} 500")
    assert verdict.result == "fail"
    assert "not finite" in verdict.reason
    assert verdict.figures["worst"] is not None
    assert math.isnan(verdict.figures["worst"])


def test_a_bad_number_in_the_condition_on_rows_fails() -> None:
    gate = {"rows": "steps where train_loss < 5"}
    assert result_of(steps(train_loss=[1.0, NAN], wall_ms=[1.0, 900.0]), **gate) == "fail"


def test_a_bad_number_outside_the_rows_does_not_matter() -> None:
    tables = steps(step=[0, 1], wall_ms=[NAN, 1.0])
    assert result_of(tables, rows="steps where step > 0") == "pass"


def test_a_figure_that_asks_isfinite_counts_bad_numbers() -> None:
    gate = {"figures": {"bad": "count(*) filter (where not isfinite(wall_ms))"}, "holds": "bad = 0"}
    assert verdict_of(steps(wall_ms=[1.0, NAN, INF]), **gate).figures == {"bad": 2.0}
    assert result_of(steps(wall_ms=[1.0, NAN]), **gate) == "fail"
    assert result_of(steps(wall_ms=[1.0]), **gate) == "pass"


def test_a_bad_number_fails_an_optional_gate_though_another_figure_has_no_evidence() -> None:
    gate = {
        "figures": {"none": "max(train_loss)", "worst": "max(wall_ms)"},
        "holds": "none + worst < 9",
        "optional": True,
    }
    assert result_of(steps(wall_ms=[NAN]), **gate) == "fail"


def test_a_figure_that_computes_to_infinity_fails() -> None:
    gate = {"figures": {"worst": "max(train_loss / wall_ms)"}, "holds": "worst > 1"}
    assert result_of(steps(train_loss=[1.0], wall_ms=[0.0]), **gate) == "fail"
    assert result_of(steps(wall_ms=[0.0]), holds="1 / worst > 1") == "fail"


def test_a_figure_that_cannot_be_computed_is_no_evidence_with_the_reason() -> None:
    verdict = verdict_of(steps(wall_ms=["quick"]), figures={"worst": "avg(wall_ms)"})
    assert verdict.result == "no_evidence"
    assert "cannot be computed" in verdict.reason
    assert result_of(steps(wall_ms=["quick"])) == "no_evidence"


def test_figures_may_come_from_rows_of_their_own() -> None:
    gate = {"figures": {"worst": "max(wall_ms)", "bound": {"rows": "config where kind = 'a'", "value": "max(top)"}}}
    tables = facts(steps={"wall_ms": [5.0]}, config={"kind": ["a", "b"], "top": [6.0, 1.0]})
    verdict = verdict_of(tables, **gate, holds="worst <= bound")
    assert (verdict.result, verdict.bound) == ("pass", "worst <= bound (bound 6)")
    assert verdict.headroom_percent == pytest.approx(100 / 6)
    assert result_of(facts(steps={"wall_ms": [5.0]}), **gate, holds="worst <= bound") == "no_evidence"


@pytest.mark.parametrize(
    ("environment", "result"),
    [
        ({"device": "cuda", "parameters": 366_000_000}, "pass"),
        ({"device": "cuda", "parameters": 365_999_999}, "not_applicable"),
        ({"device": "cpu", "parameters": 400_000_000}, "not_applicable"),
        ({"device": "cuda"}, "no_evidence"),
    ],
)
def test_a_gate_applies_where_its_conditions_are_met(environment: dict[str, Any], result: str) -> None:
    tables = facts(steps={"wall_ms": [5.0]}, environment=environment)
    assert result_of(tables, applies={"device": "cuda", "min_parameters": 366_000_000}) == result


def test_not_applicable_names_the_measured_value() -> None:
    tables = facts(steps={"wall_ms": [5.0]}, environment={"device": "cpu"}, config={"layers": 4})
    assert verdict_of(tables, applies={"device": "cuda"}).reason == "applies to device cuda; this run's is cpu"
    assert verdict_of(tables, applies={"max_layers": 3}).reason == "applies to layers at most 3; this run's is 4"


@pytest.mark.parametrize("kind", ["pair", "probe"])
def test_gates_of_other_kinds_are_listed_but_do_not_decide_a_run(kind: str) -> None:
    verdict = verdict_of(steps(wall_ms=[600.0]), kind=kind)
    assert verdict.result == "no_evidence"
    assert verdict.reason.startswith("not decided here")
    assert not decides_exit(verdict)
    [own] = judge(contract_of(kind=kind), steps(wall_ms=[600.0]), kinds={"pair", "probe"})
    assert own.result == "fail"


def test_a_validation_judges_only_the_gates_that_say_so() -> None:
    assert judge(contract_of(), steps(wall_ms=[1.0]), when="validation") == []
    [verdict] = judge(contract_of(judged="validation"), steps(wall_ms=[1.0]), when="validation")
    assert verdict.result == "pass"


@pytest.mark.parametrize(
    ("tables", "gate", "holds", "decides"),
    [
        (steps(wall_ms=[1.0]), {}, True, False),
        (steps(wall_ms=[600.0]), {}, False, True),
        (steps(wall_ms=[600.0]), {"on_fail": "abort"}, False, True),
        (steps(wall_ms=[600.0]), {"on_fail": "warn"}, False, False),
        ({}, {}, False, True),
        ({}, {"on_fail": "warn"}, False, False),
        ({}, {"optional": True}, True, False),
        (steps(wall_ms=[600.0]), {"optional": True}, False, True),
        (facts(environment={"device": "cpu"}), {"applies": {"device": "cuda"}}, True, False),
    ],
)
def test_which_verdicts_decide_the_exit(tables: Any, gate: dict[str, Any], holds: bool, decides: bool) -> None:
    verdict = verdict_of(tables, **gate)
    assert (verdict.holds, decides_exit(verdict)) == (holds, decides)


def test_one_gate_cannot_change_what_the_next_one_sees() -> None:
    contract, tables = contract_of(), steps(wall_ms=[1.0])
    assert [judge(contract, tables)[0].result for _ in range(2)] == ["pass", "pass"]


def test_a_verdict_is_a_value() -> None:
    verdict = verdict_of(steps(wall_ms=[1.0]))
    with pytest.raises(AttributeError):
        verdict.result = "fail"  # type: ignore[misc]  # that is the point
    assert isinstance(verdict, Verdict)
