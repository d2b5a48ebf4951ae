"""What differs between two versions of a contract, and the bump that each difference needs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.contract.facts_tables import contract_data
from trainwright.contract.diff import BUMPS, Comparison, compare, compare_files
from trainwright.contract.load import read_contract, shipped_contracts
from trainwright.contract.schema import ContractFile
from trainwright.contract.validate import Problem, validate
from trainwright.errors import InputError

Data = dict[str, Any]
GATE = "gate GATE-TEST-001"


def gate(data: Data) -> Data:
    found: Data = data["gates"][0]
    return found


def metric(data: Data) -> Data:
    found: Data = data["metrics"][2]
    return found


def versioned(data: Data, version: str) -> Data:
    changes = [{"version": version, "changes": ["next"]}] if version != data["version"] else []
    return {**data, "version": version, "changelog": [*changes, *data["changelog"]]}


def compared(change: Callable[[Data], object], version: str = "1.0.0") -> Comparison:
    new = contract_data()
    change(new)
    return compare(*(ContractFile.model_validate(data) for data in (contract_data(), versioned(new, version))))


def found(change: Callable[[Data], object]) -> list[tuple[str, str, str]]:
    return [(one.needs, one.about, one.text) for one in compared(change).differences]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda data: None, []),
        (lambda data: data["metrics"].pop(), [("major", "metric wall_ms", "removed")]),
        (
            lambda data: metric(data).update(name="step_ms"),
            [("major", "metric wall_ms", "removed"), ("minor", "metric step_ms", "added")],
        ),
        (
            lambda data: data["metrics"].append({**metric(data), "name": "lr"}),
            [("minor", "metric lr", "added")],
        ),
        (lambda data: metric(data).update(required=False), [("major", "metric wall_ms", "is no longer required")]),
        (lambda data: metric(data).update(unit="s"), [("major", "metric wall_ms", "unit changed: 1 → s")]),
        (lambda data: metric(data).update(meaning="time"), [("patch", "metric wall_ms", "meaning changed")]),
        (lambda data: data["metrics"].reverse(), []),
        (
            lambda data: gate(data).update(id="GATE-TEST-002"),
            [("major", GATE, "removed"), ("minor", "gate GATE-TEST-002", "added")],
        ),
        (
            lambda data: gate(data).update(holds="worst < 400"),
            [("major", GATE, "rule tightened: worst < 500 → worst < 400")],
        ),
        (
            lambda data: gate(data).update(holds="worst < 500.5"),
            [("major", GATE, "rule loosened: worst < 500 → worst < 500.5")],
        ),
        (lambda data: gate(data)["fixtures"]["good"].append({}), [("patch", GATE, "fixtures changed")]),
        (lambda data: data.update(id="other"), [("major", "contract", "id changed")]),
        (lambda data: data.update(title="Other"), [("patch", "contract", "title changed")]),
        (
            lambda data: data["changelog"][0].update(changes=["other"]),
            [("patch", "changelog", "entry of 1.0.0 changed")],
        ),
    ],
)
def test_each_difference_is_told_with_the_bump_that_it_needs(
    change: Callable[[Data], object], expected: list[tuple[str, str, str]]
) -> None:
    assert found(change) == expected


def test_a_field_that_is_now_required_is_additive() -> None:
    old, new = contract_data(), contract_data()
    metric(old).update(required=False)
    both = compare(ContractFile.model_validate(old), ContractFile.model_validate(new))
    assert [(one.needs, one.text) for one in both.differences] == [("minor", "is now required")]


@pytest.mark.parametrize(
    ("key", "value", "needs", "text"),
    [
        ("rows", "steps where step > 1", "major", "rows changed: steps → steps where step > 1"),
        ("figures", {"worst": "min(wall_ms)"}, "major", "figures changed"),
        ("applies", {"device": "cuda"}, "major", "applies changed"),
        ("nulls", "ignore", "major", "nulls changed: refuse → ignore"),
        ("kind", "pair", "major", "kind changed: run → pair"),
        ("unit", "ms", "major", "unit changed: none → ms"),
        ("on_fail", "warn", "major", "on_fail changed: fail → warn"),
        ("optional", True, "major", "optional changed: false → true"),
        ("ship_blocking", True, "major", "ship_blocking changed: false → true"),
        ("judged", "validation", "minor", "judged changed: run_end → validation"),
        ("claim", "steps are fast", "patch", "claim changed"),
    ],
)
def test_whatever_decides_a_gate_needs_a_major_version(key: str, value: Any, needs: str, text: str) -> None:
    assert found(lambda data: gate(data).update({key: value})) == [(needs, GATE, text)]


def test_white_space_is_no_difference() -> None:
    assert found(lambda data: gate(data).update(holds="worst\n  <  500")) == []


@pytest.mark.parametrize(
    ("old", "new", "how"),
    [
        ("worst < 500", "worst < 400", "tightened"),
        ("worst > 500", "worst > 400", "loosened"),
        ("worst >= 0", "worst >= -1", "loosened"),
        ("worst <= 5", "worst < 5", "tightened"),
        ("worst < 5", "worst <= 5", "loosened"),
        ("500 > worst", "worst < 400", "tightened"),
        ("worst < 500", "worst > 500", "changed"),
        ("worst = 0", "worst = 1", "changed"),
        ("worst < 500", "2 * worst < 500", "changed"),
        ("worst < 500", "worst <> 500", "changed"),
        ("greatest(worst, 1) < 2", "greatest(worst, 1) < 3", "loosened"),
    ],
)
def test_the_direction_of_a_bound_is_told_where_nothing_else_moved(old: str, new: str, how: str) -> None:
    entries = [ContractFile.model_validate(contract_data(holds=holds)) for holds in (old, new)]
    [difference] = compare(*entries).differences
    assert (difference.needs, difference.text) == ("major", f"rule {how}: {old} → {new}")


def test_true_and_one_are_two_conditions() -> None:
    entries = [ContractFile.model_validate(contract_data(applies={"x": value})) for value in (True, 1)]
    assert [one.text for one in compare(*entries).differences] == ["applies changed"]


@pytest.mark.parametrize(
    ("version", "enough"),
    [("1.0.0", "none"), ("1.0.1", "patch"), ("1.1.0", "minor"), ("1.2.5", "minor"), ("2.0.0", "major")],
)
def test_a_version_is_enough_for_its_own_bump_and_for_every_smaller_one(version: str, enough: str) -> None:
    changes: list[Callable[[Data], object]] = [
        lambda data: None,
        lambda data: data.update(title="Other"),
        lambda data: gate(data).update(judged="validation"),
        lambda data: gate(data).update(holds="worst < 400"),
    ]
    told = {one.needs: one.enough for one in (compared(change, version) for change in changes)}
    assert told == {bump: place <= BUMPS.index(enough) for place, bump in enumerate(BUMPS)}


def test_a_version_that_goes_back_is_enough_for_nothing(tmp_path: Path) -> None:
    older = written(tmp_path, "older.yaml", contract_data())
    newer = written(tmp_path, "newer.yaml", versioned(contract_data(), "1.0.1"))
    both = compare_files(newer, older)
    assert (both.needs, both.enough) == ("patch", False), "its changelog lost an entry"


def written(folder: Path, name: str, data: Data) -> Path:
    path = folder / name
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    return path


def test_a_file_that_is_no_contract_is_told_by_file_and_line(tmp_path: Path) -> None:
    good, bad = written(tmp_path, "good.yaml", contract_data()), tmp_path / "bad.yaml"
    bad.write_text("id: x\nversoin: 1.0.0\n")
    with pytest.raises(InputError, match=r"bad\.yaml:2: unknown key 'versoin'; did you mean 'version'\?"):
        compare_files(good, bad)


# -- the linter ------------------------------------------------------------------------------------------------------


def against(tmp_path: Path, change: Callable[[Data], object], version: str) -> list[Problem]:
    old, new = contract_data(), contract_data()
    change(new)
    older = written(tmp_path, "old.yaml", old)
    return validate(written(tmp_path, "new.yaml", versioned(new, version)), older)


def test_a_change_that_the_version_does_not_allow_is_an_error_at_its_line(tmp_path: Path) -> None:
    def change(data: Data) -> None:
        del data["metrics"][1]
        gate(data).update(holds="worst < 499", claim="steps are fast")

    text = "needs a major version, and version 1.0.0 → 1.1.0 is none"
    problems = against(tmp_path, change, "1.1.0")
    lines = (tmp_path / "new.yaml").read_text().splitlines()
    assert [(problem.severity, problem.gate, problem.text) for problem in problems] == [
        ("error", None, f"metric train_loss: removed: {text}"),
        ("error", "GATE-TEST-001", f"{GATE}: rule tightened: worst < 500 → worst < 499: {text}"),
    ]
    assert [lines[problem.line - 1].strip() for problem in problems] == ["version: 1.1.0", "holds: worst < 499"]
    assert against(tmp_path, change, "2.0.0") == []


def test_a_version_that_goes_back_is_an_error(tmp_path: Path) -> None:
    data = contract_data()
    data["changelog"].append({"version": "0.9.0", "changes": ["before"]})
    older = written(tmp_path, "old.yaml", data)
    data = {**data, "version": "0.9.0", "changelog": data["changelog"][1:]}
    data["metrics"] = [{**entry, "since": "0.9.0"} for entry in data["metrics"]]
    texts = [problem.text for problem in validate(written(tmp_path, "new.yaml", data), older)]
    assert "metric step: since changed: needs a patch version, and version 1.0.0 → 0.9.0 is none" in texts


def test_an_older_contract_that_cannot_be_read_is_an_error_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.yaml: is no file and no shipped contract"):
        validate(written(tmp_path, "new.yaml", contract_data()), "none.yaml")


def shipped() -> Data:
    text, _ = read_contract(shipped_contracts()[0])
    data: Data = yaml.safe_load(text)
    return data


@pytest.mark.parametrize("bump", [(0, 0, 0), (0, 1, 0), (0, 0, 1)])
def test_a_copy_of_a_shipped_contract_is_held_against_it(tmp_path: Path, bump: tuple[int, int, int]) -> None:
    data = shipped()
    version = ".".join(str(old + more) for old, more in zip(map(int, data["version"].split(".")), bump, strict=True))
    data["metrics"][0].update(unit="another")
    problems = validate(written(tmp_path, "copy.yaml", versioned(data, version)))
    assert any("unit changed: " in problem.text and "needs a major version" in problem.text for problem in problems)


def test_an_older_copy_of_a_shipped_contract_is_held_against_nothing(tmp_path: Path) -> None:
    data = shipped()
    data["metrics"][0].update(unit="another")
    older = {**data, "version": "0.1.0", "changelog": [{"version": "0.1.0", "changes": ["old"]}]}
    for entry in older["metrics"]:
        entry["since"] = "0.1.0"
    assert not any("needs a" in problem.text for problem in validate(written(tmp_path, "copy.yaml", older)))
