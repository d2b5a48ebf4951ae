"""The linter of contracts: every problem is told, with its line and gate, and nothing of what we ship is one."""

import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.contract.facts_tables import contract_data
from tests.contract.hostile import HOSTILE
from tests.contract.mutants import mutants, unchanged_in
from trainwright.contract import schema
from trainwright.contract.expressions import connect
from trainwright.contract.gatechecks import problems_of_gate
from trainwright.contract.load import load_contract, shipped_contracts
from trainwright.contract.validate import Problem, validate, validate_text

GATE = "GATE-TEST-001"
FAST: dict[str, Any] = {"steps": {"wall_ms": 1.0}}
SLOW: dict[str, Any] = {"steps": {"wall_ms": 500.1}}


def problems_of(data: dict[str, Any]) -> list[Problem]:
    return validate_text(yaml.safe_dump(data, sort_keys=False), "small.yaml")


def problems(**gate: Any) -> list[Problem]:
    return problems_of(contract_data(**gate))


def texts(found: list[Problem], severity: str = "error") -> list[str]:
    return [problem.text for problem in found if problem.severity == severity]


def line_of(data: dict[str, Any], start: str) -> int:
    lines = yaml.safe_dump(data, sort_keys=False).splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.lstrip(" -").startswith(start))


@pytest.mark.parametrize("name", shipped_contracts())
def test_a_shipped_contract_has_no_problem(name: str) -> None:
    assert validate(name) == []


def test_a_contract_of_one_good_gate_has_no_problem() -> None:
    assert problems() == []


@pytest.mark.parametrize("name", shipped_contracts())
def test_a_weakened_rule_of_any_shipped_gate_is_an_error(name: str) -> None:
    entry = load_contract(name).entry
    unnoticed = set()
    with connect() as connection:
        for gate in entry.gates:
            for change, mutant in mutants(gate):
                found = problems_of_gate(connection, mutant.model_dump(exclude_unset=True), entry.declared)
                if not any(severity == "error" for severity, *_ in found):
                    unnoticed.add(f"{gate.id}: {change}")
    assert unnoticed == unchanged_in(entry.gates)


def test_each_shipped_gate_is_weakened_by_a_flip_by_its_numbers_and_by_an_empty_window() -> None:
    for name in shipped_contracts():
        for gate in load_contract(name).entry.gates:
            told = [change for change, _ in mutants(gate)]
            assert "empty window" in told
            assert any(re.fullmatch("holds: .* negated", change) for change in told), gate.id
            assert any(re.fullmatch("holds: .* -> .*|bound", change) for change in told), gate.id


def test_a_lower_bound_is_weakened_by_division() -> None:
    gate = schema.Gate.model_validate(contract_data(holds="worst >= 500")["gates"][0])
    assert "worst >= 50" in [mutant.holds for _, mutant in mutants(gate)]


def test_every_problem_of_a_file_is_told_by_line_and_gate() -> None:
    data = contract_data(figures={"worst": "max(now())", "best": "min(walls_ms)"}, holds="worst < 1 and best < 1")
    data["gates"] += [
        {**contract_data()["gates"][0], "ship_bloking": True},
        {**contract_data(rows="nowhere")["gates"][0], "id": "GATE-TEST-003", "claim": "x" * 121},
    ]
    found = problems_of({**data, "version": "1.1.0"})
    assert [(problem.gate, problem.severity, re.split(r"[;(,]", problem.text)[0]) for problem in found] == [
        (None, "error", "version is 1.1.0"),
        (GATE, "error", "figures.worst: function 'now' is not allowed"),
        (GATE, "error", "figures.best: unknown column 'walls_ms' of table steps"),
        (GATE, "error", "holds: 'worst < 1 and best < 1': expected one comparison of figures and constants"),
        (GATE, "error", f"gate '{GATE}' stands 2 times"),
        (GATE, "error", "unknown key 'gates.1.ship_bloking'"),
        ("GATE-TEST-003", "warning", "claim of 121 characters"),
        ("GATE-TEST-003", "error", "rows: unknown table 'nowhere'"),
    ]
    assert [problem.line for problem in found] == sorted(problem.line for problem in found)


def test_a_flaw_in_one_key_hides_nothing_in_the_others() -> None:
    told = texts(problems(id="gate-1", on_fail="ignore", claim=None, fixtures={"good": [SLOW], "bad": [SLOW]}))
    assert [text.partition(":")[0] for text in told] == [
        *("gates.0.id", "gates.0.claim", "good fixture 1", "gates.0.on_fail"),
    ]
    refused = texts(problems(applies=3, figures={"worst": "max(now())"}))
    assert any(text.startswith("gates.0.applies") for text in refused)
    assert any(text.startswith("figures.worst: function 'now'") for text in refused)


def test_a_gate_without_an_id_is_told_by_its_line_alone() -> None:
    data = contract_data(holds="worst * 0 < 1")
    del data["gates"][0]["id"]
    assert {problem.gate for problem in problems_of(data)} == {None}


def test_an_unknown_key_is_told_with_the_nearest_right_one_and_its_line() -> None:
    [problem] = problems(on_fial="warn")
    assert problem.text == "unknown key 'gates.0.on_fial'; did you mean 'on_fail'?"
    assert (problem.line, problem.gate) == (line_of(contract_data(on_fial="warn"), "on_fial"), GATE)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_expression_is_an_error_of_its_gate(name: str) -> None:
    for gate in ({"figures": {"worst": HOSTILE[name]}}, {"holds": f"worst < {HOSTILE[name]}"}):
        found = problems(**gate)
        assert texts(found), found
        assert {problem.gate for problem in found} == {GATE}


def test_ids_and_names_that_stand_twice_are_told_at_their_last_place() -> None:
    data = contract_data()
    data["gates"] *= 2
    data["metrics"].append({**data["metrics"][0], "unit": "twice"})
    found = problems_of(data)
    assert [(problem.gate, problem.text.partition(";")[0]) for problem in found] == [
        (None, "metric 'step' stands 2 times"),
        (GATE, f"gate '{GATE}' stands 2 times"),
    ]
    assert found[0].line == line_of(data, "unit: twice") - 1


def test_version_changelog_and_since_that_disagree_are_all_told() -> None:
    data = contract_data()
    data["changelog"].append({**data["changelog"][0], "version": "2.0.0"})
    data["metrics"][0]["since"] = "0.5.0"
    told = " | ".join(texts(problems_of({**data, "version": "1.1.0"})))
    assert "the newest entry of changelog is 1.0.0" in told
    assert "each version once, newest first: 2.0.0, 1.0.0" in told
    assert "since 0.5.0 is not a version of the changelog" in told


def test_a_version_that_is_none_is_told_beside_names_that_stand_twice() -> None:
    data = contract_data()
    told = " | ".join(texts(problems_of({**data, "version": "1.0", "gates": data["gates"] * 2})))
    assert "expected a version of three numbers" in told
    assert "stands 2 times" in told


def test_a_column_of_steps_that_nobody_records_is_an_error() -> None:
    [problem] = problems(figures={"worst": "max(perplexity)"})
    assert "unknown column 'perplexity' of table steps" in problem.text
    assert "is declared under metrics" in problem.text


@pytest.mark.parametrize(
    ("holds", "figure"),
    [
        ("worst - worst < 1", "max(wall_ms)"),
        ("worst * 0 < 1", "max(wall_ms)"),
        ("greatest(worst, 5) > 3", "max(wall_ms)"),
        ("abs(worst) >= 0", "max(wall_ms)"),
        ("worst / 0 > 1", "max(wall_ms)"),
        ("worst >= 0", "count(*)"),
        ("worst < -1", "count(distinct step)"),
    ],
)
def test_a_rule_whose_truth_no_figure_changes_is_an_error(holds: str, figure: str) -> None:
    found = problems(holds=holds, figures={"worst": figure})
    assert any("is constant; no figures" in text for text in texts(found)), found


@pytest.mark.parametrize(
    ("holds", "figure"),
    [("worst < 500", "max(wall_ms)"), ("worst = 123.25", "max(wall_ms)"), ("abs(worst) > 0", "max(wall_ms)"),
     ("worst > 0", "count(*)"), ("worst >= 0", "max(wall_ms)"), ("1 / worst > 1e-9", "max(wall_ms)")],
)  # fmt: skip
def test_a_rule_that_can_hold_and_fail_is_not_called_constant(holds: str, figure: str) -> None:
    assert "constant" not in " ".join(texts(problems(holds=holds, figures={"worst": figure})))


@pytest.mark.parametrize("figure", ["1 + 1", "max(1)", "bool_and('count(*)' = 'x')"])
def test_a_figure_that_is_a_constant_is_an_error(figure: str) -> None:
    told = texts(problems(figures={"worst": figure}))
    assert any(text.startswith("figures.worst: ") and " is a constant" in text for text in told), told


def test_a_condition_that_names_no_column_is_an_error() -> None:
    [rows] = [text for text in texts(problems(rows="steps where 1 = 2")) if "takes all rows or none" in text]
    assert rows.startswith("rows: the condition of 'steps where 1 = 2' names no column")
    figures = {"worst": "max(wall_ms)", "ends": {"rows": "events where true", "value": "count(*)"}}
    told = texts(problems(figures=figures, holds="worst + ends < 500"))
    assert any(text.startswith("figures.ends: the condition of 'events where true'") for text in told)


@pytest.mark.parametrize(
    ("fixtures", "message"),
    [
        ({"good": [FAST]}, "key 'gates.0.fixtures.bad' is missing"),
        ({"bad": [SLOW]}, "key 'gates.0.fixtures.good' is missing"),
        ({"good": [], "bad": [SLOW]}, "gates.0.fixtures.good: expected at least one entry, found none"),
    ],
)
def test_a_gate_without_good_or_bad_fixtures_is_an_error(fixtures: dict[str, Any], message: str) -> None:
    [problem] = problems(fixtures=fixtures)
    assert (problem.severity, problem.gate, problem.text) == ("error", GATE, message)


def test_a_gate_without_fixtures_is_an_error_and_its_rule_is_still_checked() -> None:
    data = contract_data(holds="worst * 0 < 1")
    del data["gates"][0]["fixtures"]
    missing, constant = texts(problems_of(data))
    assert missing == "key 'gates.0.fixtures' is missing"
    assert "is constant" in constant


def test_a_bad_fixture_that_passes_and_a_good_one_that_fails_are_errors_at_their_lines() -> None:
    data = contract_data(fixtures=deepcopy({"good": [FAST], "bad": [SLOW]}))
    data["gates"][0]["fixtures"]["good"].append(deepcopy(SLOW))
    data["gates"][0]["fixtures"]["bad"].append(deepcopy(FAST))
    good, bad = problems_of(data)
    assert good.text.startswith("good fixture 2: expected pass, is fail: worst 500.1")
    assert bad.text.startswith("bad fixture 2: expected fail, is pass: worst 1")
    assert good.line == line_of(data, "good:") + 3
    assert bad.line == line_of(data, "bad:") + 3


def test_a_fixture_that_is_no_table_is_an_error() -> None:
    uneven = {"steps": {"wall_ms": [1.0, 2.0], "step": [1, 2, 3]}}
    mixed = {"steps": {"wall_ms": [1.0, "two"]}}
    first, second = texts(problems(fixtures={"good": [uneven, mixed, FAST], "bad": [SLOW]}))
    assert first.startswith("good fixture 1: table steps: columns of 2 and 3 values")
    assert second.startswith("good fixture 2: table steps: a column mixes kinds of values: ")


def test_a_bad_fixture_without_evidence_is_a_warning_while_another_fails() -> None:
    [problem] = problems(fixtures={"good": [FAST], "bad": [SLOW, {"steps": {"step": 1}}]})
    assert problem.severity == "warning"
    assert problem.text.startswith("bad fixture 2: expected fail, is no_evidence: worst: column wall_ms")


def test_a_gate_that_no_bad_fixture_makes_fail_is_an_error() -> None:
    found = problems(fixtures={"good": [FAST], "bad": [{"steps": {"step": 1}}]})
    assert texts(found) == ["no bad fixture makes the gate fail; nobody has seen that it can"]
    assert len(texts(found, "warning")) == 1


def test_a_typed_status_is_an_error_that_says_why_and_is_told_once() -> None:
    [problem] = problems(status="active_with_live_evidence")
    assert problem.text == "statuses are computed, never typed; take it out"
    assert (problem.severity, problem.gate) == ("error", GATE)
    assert problem.line == line_of(contract_data(status="active_with_live_evidence"), "status")


def test_bad_fixtures_that_are_all_far_from_the_bound_are_a_warning() -> None:
    far, near = {"steps": {"wall_ms": 751.0}}, {"steps": {"wall_ms": 749.0}}
    [problem] = problems(fixtures={"good": [FAST], "bad": [far, far]})
    assert (problem.severity, problem.gate) == ("warning", GATE)
    assert problem.text == "every bad fixture is over 50 % from the bound; add one near it"
    assert problems(fixtures={"good": [FAST], "bad": [far, near]}) == []


@pytest.mark.parametrize("holds", ["worst < 1 / 0", "1 / 0 < worst", "worst < 1.7e308", "worst > -1.7e308 * 10"])
def test_a_bound_that_cannot_be_computed_does_not_end_the_linter(holds: str) -> None:
    assert texts(problems(holds=holds))


def test_a_bound_that_only_allows_for_rounding_has_no_far_side() -> None:
    gate = {"holds": "worst <= 1e-9", "fixtures": {"good": [{"steps": {"wall_ms": 0.0}}], "bad": [FAST]}}
    assert problems(**gate) == []


def test_a_long_claim_is_a_warning() -> None:
    assert problems(claim="x" * 120) == []
    assert texts(problems(claim="x" * 121), "warning") == ["claim of 121 characters; keep to 120, for tables"]


def test_a_gate_that_only_the_newest_changes_know_is_a_warning_unless_it_was_removed() -> None:
    data = contract_data()
    data["changelog"][0]["changes"] = [f"{GATE} is new", "GATE-TEST-002 is new", "GATE-TEST-003 is removed"]
    [problem] = problems_of(data)
    assert problem.severity == "warning"
    assert problem.text == "changelog names GATE-TEST-002, which is no gate of this contract"
    assert problem.line == line_of(data, "GATE-TEST-002 is new")


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a: 1\nb: ]\n", 2, "is not valid YAML"),
        ("a: 1\na: 2\n", 2, "key 'a' stands twice; it was first on line 1"),
        ("- a\n", 1, "expected a mapping"),
        ("", 1, "expected a mapping"),
    ],
)
def test_a_file_that_is_no_mapping_is_one_error_with_its_line(text: str, line: int, message: str) -> None:
    [problem] = validate_text(text, "small.yaml")
    assert (problem.line, problem.gate) == (line, None)
    assert message in problem.text


@pytest.mark.parametrize(
    "data",
    [
        {"gates": 1, "metrics": "x", "changelog": {}},
        {"gates": [1, None, []], "metrics": [None], "changelog": [1]},
        {"gates": [{"id": [1], "figures": 3, "holds": None, "fixtures": 4, "status": 1}]},
        {"gates": [{"figures": {"worst": None}}], "metrics": [{"name": [1], "since": {}}]},
        {"version": 1.0, "changelog": [{"version": 1.0, "changes": 7}]},
    ],
)
def test_no_shape_of_a_file_ends_the_linter(data: dict[str, Any]) -> None:
    assert texts(problems_of(data))
    assert texts(problems_of({**contract_data(), **data}))


def test_a_file_that_is_not_there_is_an_error_that_lists_the_shipped_names(tmp_path: Path) -> None:
    [problem] = validate(tmp_path / "none.yaml")
    assert problem.text.startswith("is no file and no shipped contract; shipped: ")
    assert (problem.line, problem.severity) == (1, "error")
