"""A contract of one gate, and facts for it or for a shipped gate, as small as a test needs them."""

from functools import cache
from typing import Any

import yaml

from trainwright.contract.expressions import connect
from trainwright.contract.fixtures import facts_of_fixture
from trainwright.contract.judge import Result, Verdict, judge, judge_gate
from trainwright.contract.load import load_contract, parse_contract
from trainwright.contract.readings import Facts, registered
from trainwright.contract.rules import Contract, Gate

METRICS = ("step", "train_loss", "wall_ms")


def contract_data(**gate: Any) -> dict[str, Any]:
    """Give a contract of one gate as plain data; keywords change the gate."""
    return {
        "id": "small-v1",
        "version": "1.0.0",
        "title": "small",
        "purpose": "a test",
        "changelog": [{"version": "1.0.0", "date": "2026-11-30", "changes": ["first"]}],
        "metrics": [{"name": name, "unit": "1", "meaning": "a number", "since": "1.0.0"} for name in METRICS],
        "gates": [
            {
                "id": "GATE-TEST-001",
                "claim": "steps are quick",
                "rows": "steps",
                "figures": {"worst": "max(wall_ms)"},
                "holds": "worst < 500",
                "fixtures": {
                    "good": [{"steps": {"wall_ms": [1.0]}}],
                    "bad": [{"steps": {"wall_ms": [500.1]}}],
                },
                **gate,
            }
        ],
    }


def contract_of(**gate: Any) -> Contract:
    return parse_contract(yaml.safe_dump(contract_data(**gate), sort_keys=False), "small.yaml")


def facts(**tables: dict[str, Any]) -> Facts:
    return facts_of_fixture(tables)


def verdict_of(tables: Facts, **gate: Any) -> Verdict:
    [verdict] = judge(contract_of(**gate), tables)
    return verdict


@cache
def pretrain_gates() -> dict[str, Gate]:
    return {gate.id: gate for gate in load_contract("training-loop-pretrain-v1").gates}


def result_of_shipped(gate: str, **tables: dict[str, Any]) -> Result:
    """Judge one gate of the pre-training contract, whatever its kind."""
    found = facts(**tables)
    with connect() as connection, registered(connection, found):
        return judge_gate(connection, pretrain_gates()[gate], found).result
