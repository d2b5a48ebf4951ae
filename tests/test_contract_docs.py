"""docs/contract.md, held against the code: its examples are sound, and its tables name all there is and no more."""

import re
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pytest
import yaml
from pydantic import BaseModel

from trainwright import yamlfile
from trainwright.contract import allowlist, device_facts, diff, facts, foreign, gatechecks, holds, load, rules, schema
from trainwright.contract.audit_facts import audits_table
from trainwright.contract.confined import LIMITS
from trainwright.contract.judge import Result
from trainwright.contract.validate import validate_text
from trainwright.statuses import STATUSES

PAGE = (Path(__file__).parent.parent / "docs" / "contract.md").read_text(encoding="utf-8")
EXAMPLES = [match[1] for match in re.finditer(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)]
NO_STEPS = {"step": pa.int64(), "lr": pa.float64(), "grad_norm": pa.float64()}
MODELS: dict[str, type[BaseModel]] = {
    "The file": schema.ContractFile,
    "An entry of `changelog`": schema.Change,
    "An entry of `metrics`": schema.Metric,
    "An entry of `gates`": schema.Gate,
    "An entry of `evidence`": schema.EvidenceEntry,
}


def section(heading: str) -> str:
    """Give the text below a heading, up to the next one."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, heading
    return found[1]


def rows(text: str) -> dict[str, list[str]]:
    """Give the rows of the tables in a text, less their heads: first cell -> the others."""
    lines = [re.split(r"\s\|\s", line.strip("| ")) for line in text.splitlines() if line.startswith("| ")]
    heads = {"key", "table", "part", "aggregate", "function", "verdict", "status", "bump", "file"}
    return {first: rest for first, *rest in lines if first not in heads}


def named(text: str) -> set[str]:
    return set(re.findall(r"`([a-z_][a-z0-9_]*)`", text))


def test_every_example_of_a_contract_or_of_gates_has_no_problem() -> None:
    whole = [example for example in EXAMPLES if example.startswith("id:")]
    gates = [example for example in EXAMPLES if example.startswith("- id: GATE")]
    assert (len(whole), len(whole) + len(gates)) == (1, len(EXAMPLES))
    for example in whole:
        assert validate_text(example, "docs") == []
    for example in gates:
        data = {**yaml.safe_load(whole[0]), "gates": yaml.safe_load(example)}
        data["changelog"] = [{**change, "changes": ["words"]} for change in data["changelog"]]
        assert validate_text(yaml.safe_dump(data, sort_keys=False), "docs") == []


@pytest.mark.parametrize("heading", MODELS)
def test_every_key_is_explained_with_its_default(heading: str) -> None:
    told = {key.strip("`"): default for key, (default, _) in rows(section(heading)).items()}
    assert told == {key: default_of(field) for key, field in MODELS[heading].model_fields.items()}


def default_of(field: Any) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    return str(value).lower() if isinstance(value, bool) else str(value) if value else "none"


def test_the_keys_of_figures_and_fixtures_are_named() -> None:
    gates = section("An entry of `gates`")
    assert "{rows: …, value: …}" in gates
    assert [*schema.OwnRows.model_fields] == ["rows", "value"]
    assert schema.Fixtures.model_fields.keys() <= named(gates)
    for words in (schema.Kind, schema.Nulls, schema.Judged, schema.OnFail):
        assert {*get_args(words)} <= set(re.findall(r"\w+", gates))


def test_every_table_is_listed_with_its_columns() -> None:
    told = {name.strip("`"): named(cells[-1]) for name, cells in rows(section("Tables")).items()}
    assert told.keys() == rules.TABLES.keys()
    for table, columns in rules.TABLES.items():
        assert columns <= told[table], table
        assert not columns or told[table] <= columns, table
    no_steps = pa.table({name: pa.array([], kind) for name, kind in NO_STEPS.items()})
    assert told["audits"] == {*audits_table([], no_steps).column_names}
    assert told["devices"] == {*device_facts.AS_RECORDED, *device_facts.COMPUTED}


def test_every_column_that_the_facts_tell_of_is_named() -> None:
    told = set(re.findall(r"\w+", section("Tables")))
    assert facts.__doc__
    words = set(re.findall(r"\b[a-z0-9]+(?:_[a-z0-9]+)+\b", facts.__doc__)) - {"audit_facts", "device_facts"}
    assert words - told - {"sensor_lost"} == set()


def test_every_function_is_listed_and_no_other() -> None:
    called = {
        re.sub(r"\(.*", "", key.strip("`")): cells for key, cells in rows(section("Expressions")).items() if "(" in key
    }
    assert called.keys() | {"count_star"} == {*allowlist.AGGREGATES, *allowlist.SCALARS, "coalesce"}
    assert "`count(*)`" in section("Expressions")
    in_holds = {name for name, cells in called.items() if cells[0] == "yes"}
    assert in_holds == {name for name in holds.COMPUTE if name.isalpha()}
    assert all((len(cells) == 1) == (name in allowlist.AGGREGATES) for name, cells in called.items())


def test_every_operator_is_listed_and_no_other() -> None:
    told = rows(section("Expressions"))
    assert set(re.findall(r"`([^`]+)`", told["comparisons"][0])) == {*allowlist.COMPARISONS.values()}
    assert set(re.findall(r"`([^`]+)`", told["arithmetic"][0])) == {*allowlist.ARITHMETIC}


def test_verdicts_and_statuses_are_all_there_are() -> None:
    assert {key.strip("`") for key in rows(section("Verdicts"))} == {*get_args(Result)}
    assert [key.strip("`") for key in rows(section("Statuses"))] == [*STATUSES]


def test_what_each_bump_is_for_is_what_the_code_asks() -> None:
    told = {bump: named(cells[0]) for bump, cells in rows(section("Versions")).items()}
    needs: dict[str, set[str]] = {bump: set() for bump in diff.BUMPS[1:]}
    for key in schema.Gate.model_fields:
        needs[diff.OF_GATE.get(key, "major")].add(key)
    for key in schema.Metric.model_fields:
        needs[diff.OF_METRIC.get(key, "major")].add(key)
    for bump, keys in needs.items():
        assert keys - {"id", "name", "fixtures"} <= told[bump], bump


def test_what_other_tools_call_our_columns_is_told() -> None:
    told = rows(section("Logs of other tools"))
    for file, names in (("`trainer_state.json`", foreign.HUGGING_FACE), ("`metrics.csv`", foreign.LIGHTNING)):
        assert named(told[file][1]) == {*names, *(source for sources in names.values() for source in sources)}


def test_the_limits_are_those_of_the_code() -> None:
    words = " ".join(PAGE.split())
    for told in (
        f"at most {load.MAX_SIZE_BYTES >> 20} MiB, and at most {yamlfile.MAX_ENTRIES:,} entries",
        f"at most {allowlist.MAX_LENGTH} characters, {allowlist.MAX_NODES} parts, nested {allowlist.MAX_DEPTH} deep",
        f"at most {allowlist.MAX_TEXT} characters",
        f"may use {LIMITS}",
        f"over {gatechecks.FAR_PERCENT:g} % from the bound",
        f"over {gatechecks.LONGEST_CLAIM} characters",
    ):
        assert told in words
