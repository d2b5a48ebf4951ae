"""The YAML of a contract: strict words, versions and changelog that agree, each id once."""

from typing import Any

import pytest
import yaml

from tests.contract.facts_tables import contract_data
from trainwright.contract.load import parse_contract
from trainwright.contract.schema import version_key
from trainwright.errors import InputError


def refusal(data: dict[str, Any]) -> str:
    with pytest.raises(InputError) as caught:
        parse_contract(yaml.safe_dump(data, sort_keys=False), "small.yaml")
    return str(caught.value)


def test_an_unknown_key_is_told_with_file_line_and_the_nearest_right_key() -> None:
    data = contract_data(ship_bloking=True)
    assert refusal(data) == "small.yaml:39: unknown key 'gates.0.ship_bloking'; did you mean 'ship_blocking'?"


@pytest.mark.parametrize(
    ("gate", "message"),
    [
        ({"id": "gate-1"}, "gates.0.id: found 'gate-1'; string should match pattern"),
        ({"kind": "guess"}, "gates.0.kind: found 'guess'; input should be 'run', 'pair' or 'probe'"),
        ({"on_fail": "ignore"}, "gates.0.on_fail"),
        ({"judged": "never"}, "gates.0.judged"),
        ({"nulls": "skip"}, "gates.0.nulls"),
        ({"figures": {}}, "gates.0.figures"),
        ({"fixtures": {"good": [], "bad": [{}]}}, "gates.0.fixtures.good"),
        ({"fixtures": {"good": [{}]}}, "key 'gates.0.fixtures.bad' is missing"),
        ({"ship_blocking": "perhaps"}, "gates.0.ship_blocking"),
    ],
)
def test_each_word_of_a_gate_is_checked(gate: dict[str, Any], message: str) -> None:
    assert message in refusal(contract_data(**gate))


def test_a_gate_needs_fixtures() -> None:
    data = contract_data()
    del data["gates"][0]["fixtures"]
    assert "key 'gates.0.fixtures' is missing" in refusal(data)


def test_version_and_changelog_agree() -> None:
    assert "version is 1.1.0, but the newest entry of changelog is 1.0.0" in refusal(
        {**contract_data(), "version": "1.1.0"}
    )
    older = {"version": "0.9.0", "date": "2026-11-01", "changes": ["first"]}
    data = contract_data()
    assert "newest entry" in refusal({**data, "changelog": [older, *data["changelog"]]})
    assert "each version once" in refusal({**data, "changelog": data["changelog"] * 2})


@pytest.mark.parametrize("version", ["1.0", "v1.0.0", "1.0.0-rc", "01.0.0"])
def test_a_version_is_three_numbers(version: str) -> None:
    assert "expected a version of three numbers" in refusal({**contract_data(), "version": version})


def test_versions_are_ordered_by_number() -> None:
    assert version_key("1.10.0") > version_key("1.9.0")


def test_gate_ids_and_metric_names_stand_once() -> None:
    data = contract_data()
    assert "gate 'GATE-TEST-001' stands 2 times" in refusal({**data, "gates": data["gates"] * 2})
    assert "metric 'step' stands 2 times" in refusal({**data, "metrics": [*data["metrics"], data["metrics"][0]]})


def test_a_metric_is_since_a_version_of_the_changelog() -> None:
    data = contract_data()
    data["metrics"][0]["since"] = "0.5.0"
    assert "metric 'step': since 0.5.0 is not a version of the changelog" in refusal(data)


def test_a_contract_is_frozen() -> None:
    contract = parse_contract(yaml.safe_dump(contract_data()), "small.yaml")
    with pytest.raises(ValueError, match="frozen"):
        contract.entry.version = "2.0.0"  # type: ignore[misc]  # that is the point
