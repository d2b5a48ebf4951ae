"""Logs of other tools: what is read of each format, and that nothing else is told of them."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from transformers.trainer_callback import TrainerState

from tests.contract.facts_tables import contract_of
from trainwright.contract.foreign import Log, facts_of_log, judge_log, parse_mappings, read_log
from trainwright.contract.judge import judge
from trainwright.errors import InputError
from trainwright.metrics import StepMetrics

CONTRACT = contract_of()  # of the metrics step, train_loss, wall_ms
LIGHTNING = "epoch,lr-AdamW,step,train_loss,val_loss\n0,0.1,,,\n0,,49,2.5,\n0,,99,nan,\n0,,99,,2.75\n1,,199,,2.5\n"
TRAINER = [
    {"loss": 3.5, "grad_norm": math.nan, "learning_rate": 1e-3, "epoch": 0.5, "step": 1},
    {"loss": 3.25, "grad_norm": 1.5, "learning_rate": 5e-4, "epoch": 1.0, "step": 2},
    {"eval_loss": 3.4, "eval_runtime": 0.5, "epoch": 1.0, "step": 2},
    {"train_runtime": 9.0, "train_loss": 3.3, "total_flos": 1e9, "epoch": 1.0, "step": 2},
]


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def jsonl(folder: Path, *rows: Any) -> Path:
    return written(folder, "log.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


def tables(path: Path, *given: str) -> dict[str, dict[str, list[Any]]]:
    facts = facts_of_log(read_log(path), CONTRACT, parse_mappings(given))
    return {name: table.to_pydict() for name, table in facts.items()}


def refusal(path: Path, *given: str) -> str:
    with pytest.raises(InputError) as caught:
        tables(path, *given)
    return str(caught.value).replace(str(path), path.name)


def validations(**columns: list[Any]) -> dict[str, list[Any]]:
    return {"ordinal": list(range(len(columns["value"]))), **columns}


def test_of_a_jsonl_the_columns_of_the_contract_are_read_and_no_step_is_renumbered(tmp_path: Path) -> None:
    path = jsonl(tmp_path, {"step": 1, "train_loss": 2, "note": "x"}, {"step": 3, "train_loss": 1.5, "note": [1]})
    assert tables(path) == {"steps": {"step": [1, 3], "train_loss": [2.0, 1.5]}}


def test_a_mapping_names_what_the_log_calls_a_column(tmp_path: Path) -> None:
    path = jsonl(tmp_path, {"it": 0, "loss": 2.5, "train_loss": 9.0}, {"it": 0, "heldout": 2.25})
    assert tables(path, "step=it", "train_loss = loss", "value=heldout") == {
        "steps": {"step": [0], "train_loss": [2.5]},
        "validations": validations(step=[0], value=[2.25], previous=[None], best_before=[None]),
    }


def test_numbers_that_are_not_finite_are_read_as_such_in_both_ways_to_write_them(tmp_path: Path) -> None:
    theirs = {"step": 0, "train_loss": math.nan, "wall_ms": -math.inf}
    ours = {"step": 1, "train_loss": None, "train_loss_nonfinite": "nan", "wall_ms": None, "wall_ms_nonfinite": "-inf"}
    read = tables(jsonl(tmp_path, theirs, ours))["steps"]
    assert [math.isnan(value) for value in read["train_loss"]] == [True, True]
    assert read["wall_ms"] == [-math.inf, -math.inf]


@pytest.mark.parametrize("word", [3, [], "high", None])
def test_an_unknown_word_in_our_way_to_write_them_is_told_with_its_place(tmp_path: Path, word: Any) -> None:
    told = refusal(jsonl(tmp_path, {"train_loss": 1.0}, {"train_loss": None, "train_loss_nonfinite": word}))
    assert told == f"log.jsonl:2: train_loss_nonfinite is {word!r}; expected one of nan, inf, -inf"


def test_a_value_that_was_not_logged_is_null_and_no_evidence(tmp_path: Path) -> None:
    path = jsonl(tmp_path, {"step": 0, "train_loss": None}, {"step": 1, "train_loss": 1.0, "wall_ms": 5.0}, {"step": 2})
    assert tables(path) == {"steps": {"step": [0, 1], "train_loss": [None, 1.0], "wall_ms": [None, 5.0]}}
    [verdict] = judge(CONTRACT, facts_of_log(read_log(path), CONTRACT, {}))
    assert (verdict.result, verdict.reason) == ("no_evidence", "worst: 1 of 2 rows hold no wall_ms")


def test_a_row_of_ours_reads_as_it_was_written(tmp_path: Path) -> None:
    row = StepMetrics(
        step=4, train_loss=math.inf, grad_norm=1.0, lr=0.1, tokens_per_sec=9.0, gpu_util_pct=None, wall_ms=5.5
    )
    path = written(tmp_path, "steps.jsonl", row.encode().decode())
    assert tables(path) == {"steps": {"step": [4], "train_loss": [math.inf], "wall_ms": [5.5]}}


def test_a_trainer_state_of_hugging_face_is_read_without_its_summary(tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    TrainerState(log_history=TRAINER).save_to_json(str(path))
    assert tables(path) == {
        "steps": {"step": [1, 2], "train_loss": [3.5, 3.25]},
        "validations": validations(step=[2], value=[3.4], previous=[None], best_before=[None]),
    }
    given = "train_loss=grad_norm"  # wins over what the tool is known to call it
    assert math.isnan(tables(path, given)["steps"]["train_loss"][0])


def test_a_metrics_csv_of_lightning_is_read_with_empty_cells_as_null(tmp_path: Path) -> None:
    read = tables(written(tmp_path, "metrics.csv", LIGHTNING))
    assert read["steps"]["step"] == [49, 99]
    assert math.isnan(read["steps"]["train_loss"].pop())
    assert read["steps"]["train_loss"] == [2.5]
    assert read["validations"] == validations(
        step=[99, 199], value=[2.75, 2.5], previous=[None, 2.75], best_before=[None, 2.75]
    )
    assert "wall_ms" not in read["steps"], "what was never logged is no column"
    mapped = tables(written(tmp_path, "metrics.csv", LIGHTNING), "wall_ms=lr-AdamW")["steps"]
    assert mapped["wall_ms"] == [0.1, None, None]


def test_rows_of_a_metrics_csv_that_tell_different_things_of_one_step_are_one(tmp_path: Path) -> None:
    csv = "step,lr-AdamW,train_loss,val_loss\n9,0.1,,\n9,,2.5,\n9,,,2.25\n19,0.05,,\n19,,2.0,\n19,,1.5,\n"
    read = tables(written(tmp_path, "metrics.csv", csv), "wall_ms=lr-AdamW")
    assert read["steps"] == {"step": [9, 19, 19], "train_loss": [2.5, 2.0, 1.5], "wall_ms": [0.1, 0.05, None]}
    assert read["validations"]["value"] == [2.25]


def test_the_loss_of_a_metrics_csv_is_found_under_its_three_names(tmp_path: Path) -> None:
    for name in ("train_loss", "train_loss_step", "loss"):
        read = tables(written(tmp_path, "metrics.csv", f"step,{name},train_loss_epoch\n1,2.5,\n1,,2.0\n"))
        assert read == {"steps": {"step": [1], "train_loss": [2.5]}}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("log.jsonl", '{"step": 0}\n\n{"step":\n', "log.jsonl:3: is not valid JSON: Expecting value"),
        ("log.jsonl", '{"step": 0}\n[1]\n', "log.jsonl:2: expected an object of names and values, found a list"),
        ("log.jsonl", '{"train_loss": "2.5"}\n', "log.jsonl:1: train_loss: expected a number, found text '2.5'"),
        ("log.jsonl", '{"train_loss": true}\n', "log.jsonl:1: train_loss: expected a number, found a truth value True"),
        ("log.jsonl", '{"step": 0.5, "wall_ms": 1}\n', "log.jsonl:1: step: expected a whole number, found the number"),
        ("log.jsonl", '{"wall_ms": 1' + "0" * 400 + "}\n", "log.jsonl:1: wall_ms: expected a number of 64 bits"),
        ("log.jsonl", '{"wall_ms": ' + "[" * 100_000 + "\n", "log.jsonl:1: is not valid JSON: "),
        (
            "log.jsonl",
            '{"loss": 1, "it": 0}\n',
            "log.jsonl: has no column that small-v1 knows (step, tokens, samples, ",
        ),
        ("log.jsonl", "", "log.jsonl: has no column that small-v1 knows"),
        ("state.json", "[]", "state.json: expected an object of names and values, found a list"),
        ("state.json", "{}", "state.json: has no list log_history, as trainer_state.json of Hugging Face has"),
        ("state.json", '{"log_history": [{}, 3]}', "state.json: log_history.1: expected an object"),
        ("metrics.csv", "step,loss\n1,2\n3\n", "metrics.csv:3: has 1 cells, and the first line names 2 columns"),
        ("metrics.csv", "step,loss\n1,high\n", "metrics.csv:2: loss: expected a number, found text 'high'"),
        ("metrics.csv", 'step,loss\n1,"2"3\n', "metrics.csv:2: is no row of a CSV file: "),
        ("metrics.csv", "", "metrics.csv: has no column that small-v1 knows"),
        ("log.txt", "", "log.txt: is none of .jsonl, .json, .csv; known are JSONL, trainer_state.json, metrics.csv"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_place(tmp_path: Path, name: str, text: str, message: str) -> None:
    assert refusal(written(tmp_path, name, text)).startswith(message)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.jsonl") == "none.jsonl: cannot be read: No such file or directory"
    (tmp_path / "log.jsonl").write_bytes(b"\xff")
    assert refusal(tmp_path / "log.jsonl").startswith("log.jsonl: is not UTF-8 text: ")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("train_loss", "--map 'train_loss': expected a column of ours and one of the log, as in train_loss=loss"),
        ("=loss", "--map '=loss': expected a column of ours"),
        (
            "train_los=loss",
            "--map train_los=loss: 'train_los' is no column of the contract; did you mean 'train_loss'?",
        ),
        (
            "train_loss=los",
            "--map train_loss=los: 'los' is no column of log.jsonl; did you mean 'loss'? known: step, loss",
        ),
        ("train_loss=q", "--map train_loss=q: 'q' is no column of log.jsonl; known: step, loss"),
    ],
)
def test_a_mapping_that_names_nothing_is_told_with_the_nearest_name(tmp_path: Path, given: str, message: str) -> None:
    assert refusal(jsonl(tmp_path, {"step": 0, "loss": 1.0}), given).startswith(message)


def test_a_column_is_mapped_once() -> None:
    with pytest.raises(InputError, match=r"--map 'lr=b': lr is mapped already, to a"):
        parse_mappings(["lr=a", "lr=b"])


def test_gates_that_need_more_than_was_logged_have_no_evidence(tmp_path: Path) -> None:
    path = jsonl(tmp_path, *({"step": step, "loss": 9.0 - step} for step in range(4)))
    verdicts = judge_log(str(path), "training-loop-pretrain-v1", ["train_loss=loss"])
    assert {verdict.result for verdict in verdicts} == {"no_evidence"}
    reasons = {verdict.gate: verdict.reason for verdict in verdicts}
    assert reasons["GATE-TRAIN-002"] == "without_manifest: table validations was not recorded"
    assert "grad_norm of steps was never recorded" in reasons["GATE-TRAIN-007"] + reasons["GATE-TRAIN-001"]


def test_the_keys_of_a_log_stand_in_the_order_of_their_appearance() -> None:
    assert Log("x", [("x:1", {"b": 1, "a": 2}), ("x:2", {"c": 1, "b": 2})]).keys == ["b", "a", "c"]
