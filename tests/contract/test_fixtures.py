"""Every gate of every shipped contract can fail, and no number or sign in it can be changed unnoticed."""

import math

import pytest

from tests.contract.facts_tables import contract_of
from tests.contract.mutants import mutants, unchanged_in
from trainwright import guards
from trainwright.contract import fixtures
from trainwright.contract.expressions import Parser, connect
from trainwright.contract.fixtures import check_fixtures
from trainwright.contract.judge import judge_gate
from trainwright.contract.load import load_contract, shipped_contracts
from trainwright.contract.readings import registered
from trainwright.contract.rules import accept_gate

PRETRAIN = load_contract("training-loop-pretrain-v1")


@pytest.mark.parametrize("name", shipped_contracts())
def test_every_fixture_of_a_shipped_contract_is_judged_as_it_says(name: str) -> None:
    assert check_fixtures(load_contract(name)) == []


@pytest.mark.parametrize("name", shipped_contracts())
def test_a_changed_number_or_sign_in_any_gate_is_noticed_by_its_fixtures(name: str) -> None:
    contract = load_contract(name)
    metrics = frozenset(metric.name for metric in contract.entry.metrics)
    unnoticed = set()
    with connect() as connection:
        for gate in contract.gates:
            for change, mutant in mutants(gate.entry):
                accepted = accept_gate(Parser(connection), mutant, metrics)
                if not any(fixtures._problems(connection, accepted)):
                    unnoticed.add(f"{gate.id}: {change}")
    assert unnoticed == unchanged_in(contract.entry.gates)


@pytest.mark.parametrize("first", [3.5, 0.1, 7.3, 1e-3])
@pytest.mark.parametrize("factor", [0.5, 1.0, 1.999999, 2.0, 2.000001, 3.0])
@pytest.mark.parametrize("towards", [-math.inf, None, math.inf])
def test_the_divergence_gate_agrees_with_the_guard(first: float, factor: float, towards: float | None) -> None:
    last = first * factor if towards is None else math.nextafter(first * factor, towards)
    [gate] = [gate for gate in PRETRAIN.gates if gate.id == "GATE-TRAIN-005"]
    stopped = guards.diverged(last, previous=first, best=first, ratio=2.0, direction="min") is not None
    rows = {"ordinal": [0, 1], "value": [first, last], "previous": [None, first], "best_before": [None, first]}
    capped = {"ordinal": 0, "value": last, "previous": None, "best_before": None}
    with connect() as connection:
        for validations, cap, fails in ((rows, 100.0, stopped), (capped, first, last > first)):
            tables = fixtures.facts_of_fixture({"validations": validations, "config": {"first_validation_cap": cap}})
            with registered(connection, tables):
                assert judge_gate(connection, gate, tables).result == ("fail" if fails else "pass")
    assert (guards.above_cap(last, first) is not None) == (last > first)


def test_a_bad_fixture_that_passes_is_a_problem() -> None:
    contract = contract_of(fixtures={"good": [{"steps": {"wall_ms": 1.0}}], "bad": [{"steps": {"wall_ms": 2.0}}]})
    [problem] = check_fixtures(contract)
    assert problem.startswith("GATE-TEST-001: bad fixture 1: expected fail, is pass: worst 2")


def test_a_bad_fixture_without_evidence_is_a_problem() -> None:
    contract = contract_of(fixtures={"good": [{"steps": {"wall_ms": 1.0}}], "bad": [{"steps": {"step": 1}}]})
    [problem] = check_fixtures(contract)
    assert "expected fail, is no_evidence" in problem


def test_columns_of_unequal_length_or_mixed_kinds_are_a_problem() -> None:
    uneven = {"steps": {"wall_ms": [1.0, 2.0], "step": [1, 2, 3]}}
    mixed = {"steps": {"wall_ms": [1.0, "two"]}}
    contract = contract_of(fixtures={"good": [uneven, mixed], "bad": [{"steps": {"wall_ms": 501}}]})
    first, second = check_fixtures(contract)
    assert "columns of 2 and 3 values" in first
    assert "mixes kinds" in second


def test_a_single_value_fills_its_column() -> None:
    table = fixtures.facts_of_fixture({"steps": {"step": [1, 2], "lr": 0.5, "kind": "a"}})["steps"]
    assert table.to_pydict() == {"step": [1, 2], "lr": [0.5, 0.5], "kind": ["a", "a"]}
