"""Loading: by name or path; what a rule means is checked before a contract is given."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.contract.facts_tables import contract_data, contract_of
from trainwright.contract.load import file_of, load_contract, parse_contract, shipped_contracts
from trainwright.errors import InputError

PRETRAIN = "training-loop-pretrain-v1"


def refusal(**gate: Any) -> str:
    with pytest.raises(InputError) as caught:
        contract_of(**gate)
    return str(caught.value)


def test_a_shipped_contract_is_found_by_its_name() -> None:
    contract = load_contract(PRETRAIN)
    assert (contract.id, contract.version) == (PRETRAIN, "1.6.4")
    assert PRETRAIN in shipped_contracts()


def test_the_pretrain_contract_requires_seven_fields_of_which_wall_ms_came_last() -> None:
    contract = load_contract(PRETRAIN)
    fields = ("step", "train_loss", "grad_norm", "lr", "tokens_per_sec", "gpu_util_pct", "wall_ms")
    assert tuple(metric.name for metric in contract.entry.metrics if metric.required) == fields
    assert [m.name for m in contract.entry.metrics if m.required and m.since == "1.5.0"] == ["wall_ms"]


def test_the_pretrain_contract_has_the_gates_of_its_claims() -> None:
    gates = {gate.id: gate.entry for gate in load_contract(PRETRAIN).gates}
    numbered = [f"GATE-TRAIN-{number:03d}" for number in range(1, 11)]
    named = ("EXHAUST", "THROUGHPUT", "LR", "APPLIED", "SCHEDULE", "NORM", "MOVED", "BATCHES", "OVERLAP", "LEAK")
    more = ("CONSTANT", "PERPLEXITY", "FLOPS", "INITIAL", "UNIGRAM", "SANITY", "NOISE")
    pairs = [f"GATE-TRAIN-{name}" for name in ("RESUME", "ACCUMULATE", "DRIFT")]
    assert [*gates] == [*numbered, *(f"GATE-TRAIN-{n}" for n in (*named, *more)), "GATE-GPUTRAIN-004", *pairs]
    assert [name for name, gate in gates.items() if gate.ship_blocking] == ["GATE-TRAIN-005", "GATE-TRAIN-010"]
    aborting = ["GATE-TRAIN-005", "GATE-TRAIN-007", "GATE-TRAIN-SANITY"]
    assert [name for name, gate in gates.items() if gate.on_fail == "abort"] == aborting
    assert [name for name, gate in gates.items() if gate.kind != "run"] == ["GATE-TRAIN-006", *pairs]


def test_a_contract_is_found_by_its_path_and_keeps_its_text(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(contract_data()))
    contract = load_contract(path)
    assert (contract.id, contract.name, contract.text) == ("small-v1", str(path), path.read_text())


def test_an_unknown_name_lists_the_shipped_ones() -> None:
    with pytest.raises(InputError, match=f"no-such: is no file and no shipped contract; shipped: .*{PRETRAIN}"):
        load_contract("no-such")


def test_a_file_that_is_no_text_or_too_large_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="cannot be read"):
        load_contract(path)
    path.write_bytes(b"#" * (2 << 20))
    with pytest.raises(InputError, match="larger than"):
        load_contract(path)


def test_an_expression_outside_the_list_is_told_with_file_line_gate_and_key() -> None:
    message = refusal(figures={"worst": "max(random())"})
    assert message.startswith(
        "small.yaml:28: GATE-TEST-001: figures.worst: function 'random' is not allowed; allowed are"
    )


def test_every_bad_gate_is_told_at_once() -> None:
    data = contract_data(rows="nowhere")
    data["gates"].append({**data["gates"][0], "id": "GATE-TEST-002", "rows": "steps where now()"})
    with pytest.raises(InputError) as caught:
        parse_contract(yaml.safe_dump(data, sort_keys=False), "small.yaml")
    first, second = str(caught.value).splitlines()
    assert "GATE-TEST-001: rows: unknown table 'nowhere'; tables: steps, validations" in first
    assert "GATE-TEST-002: rows: function 'now'" in second


@pytest.mark.parametrize(
    ("gate", "message"),
    [
        ({"rows": "steps order by step"}, "rows: 'steps order by step': expected <table> or <table> where"),
        ({"rows": "steps, events"}, "rows: 'steps, events': expected <table>"),
        ({"rows": "steps where perplexity > 1"}, "unknown column 'perplexity' of table steps; known: "),
        ({"figures": {"worst": "max(walls_ms)"}}, "declared under metrics"),
        ({"rows": "validations", "figures": {"worst": "max(loss)"}}, "unknown column 'loss' of table validations"),
        ({"figures": {"worst": {"rows": "other", "value": "count(*)"}}}, "figures.worst: unknown table 'other'"),
        ({"figures": {"worst": "max(step)"}, "holds": "best < 1"}, "unknown figure 'best'; the gate's figures: worst"),
        ({"figures": {"worst": "max(step)", "more": "min(step)"}}, "figure 'more' is not used"),
        ({"holds": "worst"}, "expected one comparison"),
        ({"holds": "worst < 1 and worst > 0"}, "expected one comparison"),
        ({"holds": "worst between 0 and 1"}, "expected one comparison"),
        ({"holds": "worst < max(wall_ms)"}, "function 'max' is not allowed"),
        ({"holds": "worst < exp(1)"}, "function 'exp' is not allowed in holds"),
        ({"holds": "worst < 'x'"}, "is not allowed"),
        ({"holds": "worst < (select 1)"}, "subquery"),
        ({"holds": "worst < " + " - ".join(["1"] * 90)}, "too large"),
    ],
)  # fmt: skip
def test_what_a_rule_means_is_checked(gate: dict[str, Any], message: str) -> None:
    assert message in refusal(**gate)


def test_a_gate_whose_own_rows_no_figure_reads_is_refused() -> None:
    elsewhere = {"rows": "events", "value": "count(*)"}
    assert "no figure is computed over 'steps'" in refusal(figures={"worst": elsewhere})


def test_a_figure_that_reads_no_rows_is_refused() -> None:
    assert "is a constant" in refusal(figures={"worst": "1 + 1"})


def test_a_pipe_is_no_contract_and_is_never_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(InputError, match=r"pipe.yaml: is no file and no shipped contract"):
        load_contract(tmp_path / "pipe.yaml")


def test_a_contract_has_a_file_by_its_name_and_by_its_path(tmp_path: Path) -> None:
    assert file_of(PRETRAIN).read_text() == load_contract(PRETRAIN).text
    path = tmp_path / "mine.yaml"
    path.touch()
    assert file_of(path) == path
