"""A contract of one gate, and facts for it, as small as a test needs them."""

from typing import Any

import yaml

from trainwright.contract.fixtures import facts_of_fixture
from trainwright.contract.judge import Verdict, judge
from trainwright.contract.load import parse_contract
from trainwright.contract.readings import Facts
from trainwright.contract.rules import Contract

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
