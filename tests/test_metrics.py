import json
import math
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rows import row, validation, written
from tests.toys import MODEL_TYPE
from trainwright import runs
from trainwright.columns import table_of_rows
from trainwright.config import RunConfig
from trainwright.contract.load import load_contract
from trainwright.contract.schema import version_key
from trainwright.errors import DataError, InputError
from trainwright.metrics import Event, StepMetrics, read_events, read_steps, read_validations
from trainwright.rowfiles import whole_lines

CONTRACT = load_contract("training-loop-pretrain-v1")
NUMBERS = st.floats() | st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 1e308])


def refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def test_step_metrics_rejects_negative_wall_ms() -> None:
    with pytest.raises(InputError, match=r"row of step 3: wall_ms is -0\.001; a clock gives a finite number ≥ 0"):
        row(wall_ms=-0.001)
    assert row(wall_ms=0.0).wall_ms == 0.0


def test_step_metrics_rejects_nan_wall_ms() -> None:
    for value in (math.nan, math.inf, -math.inf):
        with pytest.raises(InputError, match="row of step 3: wall_ms is "):
            row(wall_ms=value)


def test_step_metrics_wall_ms_consistent_with_tokens_per_sec(tmp_path: Path) -> None:
    config = RunConfig.parse(
        {
            "model": {"type": MODEL_TYPE, "n": 400, "unit": "tokens"},
            "train": {"steps": 9, "batch_size": 64, "accumulate": 2, "learning_rate": 1e-3},
            "device": "cpu",
        }
    )
    steps = runs.execute(config, runs_dir=tmp_path).run.read_steps()
    tokens = [int(step.extra["tokens"] or 0) for step in steps]
    assert tokens == [128, 128, 128, 16, 128, 128, 128, 16, 128]
    for step, count in zip(steps, tokens, strict=True):
        assert abs(step.throughput * step.wall_ms / 1000 - count) <= max(0.5, 1e-6 * count)


def test_a_row_without_any_throughput_is_refused() -> None:
    with pytest.raises(InputError, match="row of step 3: neither tokens_per_sec nor samples_per_sec is given"):
        row(tokens_per_sec=msgspec.UNSET)
    assert row(tokens_per_sec=msgspec.UNSET, samples_per_sec=4.0).throughput == 4.0


def test_the_row_type_names_its_contract_and_requires_the_contracts_fields() -> None:
    documentation = StepMetrics.__doc__ or ""
    assert CONTRACT.id in documentation
    newest = max((metric.since for metric in CONTRACT.entry.metrics if metric.required), key=version_key)
    assert f"since version {newest}" in documentation
    required = {field.name for field in msgspec.structs.fields(StepMetrics) if field.required}
    asked_for = [metric.name for metric in CONTRACT.entry.metrics if metric.required]
    assert required | {"tokens_per_sec"} == set(asked_for)
    assert list(json.loads(row().encode())) == asked_for
    for name in required:
        assert name in documentation or name == "step"


@given(st.integers(0, 2**40), NUMBERS, NUMBERS, st.none() | NUMBERS, st.dictionaries(st.sampled_from("abc"), NUMBERS))
def test_a_row_is_valid_json_and_reads_back_as_it_was_also_when_not_finite(
    tmp_path_factory: pytest.TempPathFactory,
    step: int,
    loss: float,
    throughput: float,
    utilisation: float | None,
    extra: dict[str, float],
) -> None:
    before = row(step=step, train_loss=loss, tokens_per_sec=throughput, gpu_util_pct=utilisation, extra=extra)
    line = before.encode()
    assert line.count(b"\n") == 1
    json.loads(line, parse_constant=refuse_constant)
    (after,) = read_steps(written(tmp_path_factory.getbasetemp() / "steps.jsonl", line))
    assert repr(after) == repr(before)


def test_a_number_that_is_not_finite_is_null_with_a_sibling_that_says_what_it_was() -> None:
    found = json.loads(row(train_loss=math.nan, grad_norm=-math.inf, extra={"x": math.inf}).encode())
    assert {name: found[name] for name in found if name.startswith(("train", "grad", "x"))} == {
        "train_loss": None,
        "train_loss_nonfinite": "nan",
        "grad_norm": None,
        "grad_norm_nonfinite": "-inf",
        "x": None,
        "x_nonfinite": "inf",
    }
    assert not any(name.endswith("_nonfinite") for name in json.loads(row(train_loss=1e308, grad_norm=1e308).encode()))


@given(NUMBERS, st.none() | NUMBERS, st.none() | NUMBERS)
def test_a_validation_reads_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, value: float, error: float | None, best: float | None
) -> None:
    before = validation(value=value, standard_error=error, best=best)
    (after,) = read_validations(written(tmp_path_factory.getbasetemp() / "validations.jsonl", before.encode()))
    assert repr(after) == repr(before)


def test_an_event_reads_back_as_it_was(tmp_path: Path) -> None:
    before = Event(time="2026-01-01T00:00:00.000Z", kind="guard", step=None, attempt=1, detail={"why": "a\nb", "n": 1})
    assert read_events(written(tmp_path / "events.jsonl", before.encode())) == [before]


def test_a_torn_last_line_is_left_out_and_told(tmp_path: Path) -> None:
    lines = [row(step=step).encode() for step in range(3)]
    for cut in range(1, len(lines[2])):
        file = written(tmp_path / "steps.jsonl", *lines[:2], lines[2][:-cut])
        assert [found.step for found in read_steps(file)] == [0, 1]
        assert whole_lines(file).torn == (cut < len(lines[2]))
    assert not whole_lines(written(tmp_path / "steps.jsonl", *lines)).torn


def test_a_missing_file_has_no_rows(tmp_path: Path) -> None:
    assert read_steps(tmp_path / "none.jsonl") == []


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"{",
        b"[]",
        b'{"step": 1}',
        row().encode().replace(b"2.0", b"-2.0").rstrip(),
        row().encode().replace(b"2.0", b"NaN").rstrip(),
        row().encode().replace(b"1.5", b'"1.5"').rstrip(),
        row().encode().replace(b"1.5", b"null").rstrip(),
        row(train_loss=math.nan).encode().replace(b'"nan"', b'"7"').rstrip(),
        row(train_loss=math.nan).encode().replace(b'"nan"', b"null").rstrip(),
        row().encode().replace(b"3", b"3.5").rstrip(),
    ],
)
def test_a_broken_line_elsewhere_is_an_error_with_its_number(tmp_path: Path, broken: bytes) -> None:
    file = written(tmp_path / "steps.jsonl", row().encode(), broken + b"\n", row().encode())
    with pytest.raises(DataError, match=r"steps\.jsonl:2: is not a valid row: "):
        read_steps(file)


def test_rows_of_contract_1_4_0_load_with_a_wall_ms_that_is_marked_as_not_measured(tmp_path: Path) -> None:
    six = {"step": 0, "train_loss": 2.5, "grad_norm": 1.0, "lr": 1e-3, "tokens_per_sec": 5.0, "gpu_util_pct": 40.0}
    (old,) = read_steps(written(tmp_path / "steps.jsonl", json.dumps(six).encode() + b"\n"))
    assert (old.wall_ms, old.wall_ms_measured) == (0.0, False)
    assert json.loads(old.encode()) == six, "what was not measured is not written either"
    assert table_of_rows([old, row()])["wall_ms"].to_pylist() == [None, 2.0]
