"""Rows as columns: what is read by the block is what is read row by row, values and errors alike."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rows import row, written
from trainwright.columns import joined, read_step_table, table_of_rows
from trainwright.errors import DataError
from trainwright.metrics import read_steps

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
NUMBERS = FLOATS | st.integers(0, 9) | st.sampled_from([2**63 + 1, 12345678901234567890123])
ODD: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, "1.5", "nan", -1, -0.001, [1], {}, 1.0, 2**63 - 1, 2**63, 10**30, 10**400]
)
FIELDS = {
    **dict.fromkeys(("train_loss", "grad_norm", "lr", "tokens_per_sec"), NUMBERS),
    "step": st.integers(-3, 40),
    "gpu_util_pct": NUMBERS | st.none(),
    "wall_ms": FLOATS.map(abs),
    "tokens": NUMBERS | st.none(),
}
ROW = st.fixed_dictionaries(FIELDS)
KEYS = (*FIELDS, "samples_per_sec", "train_loss_nonfinite", "a", "b c", "class", "a_nonfinite", "a_nonfinite_nonfinite")


def line_of(pairs: list[tuple[str, Any]], *, escaped: bool = False) -> bytes:
    """Give a JSON object in which a key may stand twice, and be written in another way."""
    keys = [json.dumps(name).replace("t", "\\u0074") if escaped else json.dumps(name) for name, _ in pairs]
    return f"{{{','.join(f'{k}:{json.dumps(v)}' for k, (_, v) in zip(keys, pairs, strict=True))}}}".encode()


def with_more(row: dict[str, Any], more: list[tuple[str, Any]], escaped: bool) -> bytes:
    return line_of([*row.items(), *more], escaped=escaped)


def without(row: dict[str, Any], name: str) -> bytes:
    return line_of([pair for pair in row.items() if pair[0] != name])


GOOD = ROW.map(lambda row: line_of([*row.items()]))
OTHER = st.one_of(
    st.builds(without, ROW, st.sampled_from([*FIELDS])),
    st.builds(with_more, ROW, st.lists(st.tuples(st.sampled_from(KEYS), ODD | NUMBERS), max_size=2), st.booleans()),
    st.builds(lambda loss, extra: row(train_loss=loss, extra={"a": extra}).encode()[:-1], st.floats(), st.floats()),
    GOOD.map(lambda line: line + b"\r"),
    st.sampled_from([b"", b" ", b"{", b"[]", b"{} {}", b'{"step": 1,', b"\xff", b"NaN", b"null"]),
)
LINES = st.tuples(st.lists(GOOD, max_size=4), st.lists(OTHER, max_size=2), st.lists(GOOD, max_size=3))
SOUND = row(extra={"a": 1.0}).encode()[:-1]
CASES = {
    "a time below zero": [SOUND, SOUND.replace(b"2.0", b"-0.5"), SOUND],
    "a time of minus nought": [SOUND, SOUND.replace(b"2.0", b"-0.0"), SOUND],
    "no time": [SOUND, SOUND.replace(b'"wall_ms":2.0,', b"")],
    "never a time": [SOUND.replace(b'"wall_ms":2.0,', b"")] * 3,
    "no throughput": [SOUND, SOUND.replace(b'"tokens_per_sec":9.0,', b"")],
    "both throughputs": [SOUND.replace(b'"gpu', b'"samples_per_sec":1.0,"gpu'), SOUND],
    "another throughput": [SOUND, SOUND.replace(b"tokens_per_sec", b"samples_per_sec")],
    "an extra of nulls": [SOUND.replace(b'"a":1.0', b'"a":null')] * 3,
    "a sibling": [SOUND, row(lr=float("inf"), extra={"a": float("nan")}).encode()[:-1], SOUND],
    "an extra that is a sibling of itself": [
        SOUND.replace(b'"a":1.0', b'"a_nonfinite_nonfinite":"inf"'),
        *[SOUND] * 2,
        SOUND.replace(b'"a":1.0', b'"a_nonfinite":1.0'),
    ],
    "an extra that comes late": [SOUND, SOUND, SOUND.replace(b'"a"', b'"b"'), SOUND],
    "an extra that is taken back": [SOUND, SOUND.replace(b'"a"', b'"b"').replace(b'"step":3', b'"step":9')],
    "two rows on a line and none on the next": [SOUND + b" " + SOUND, b""],
    "a row over two lines": [SOUND[:30], SOUND[30:]],
}


def outcome(read: Any) -> Any:
    """Give what reading comes to: each column with its type, in order of names, or the error."""
    try:
        table = read()
    except DataError as error:
        return re.sub(r"^.*?:(?=\d+:)", "", str(error))
    values = {name: repr(table[name].to_pylist()).replace("-0.0", "0.0") for name in table.column_names}
    return sorted((name, str(table[name].type), values[name]) for name in values)


def both_ways(file: Path, below: int | None, block_bytes: int) -> tuple[Any, Any]:
    """Give what reading by the block and row by row come to, rows from step `below` on left out."""
    return (
        outcome(lambda: read_step_table(file, below=below, block_bytes=block_bytes)),
        outcome(lambda: joined([table_of_rows(r for r in read_steps(file) if below is None or r.step < below)])),
    )


@settings(max_examples=100, deadline=None)
@given(LINES, st.binary(max_size=5), st.none() | st.integers(-1, 20), st.sampled_from([1, 300, 9999]))
def test_rows_by_the_block_are_the_rows_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, parts: tuple[list[bytes], ...], torn: bytes, below: int | None, block: int
) -> None:
    lines = (line + b"\n" for part in parts for line in part)
    file = written(tmp_path_factory.getbasetemp() / "columns.jsonl", *lines, torn)
    by_the_block, one_by_one = both_ways(file, below, block)
    assert by_the_block == one_by_one


@pytest.mark.parametrize("case", CASES)
def test_lines_of_every_kind_are_read_alike(case: str, tmp_path: Path) -> None:
    file = written(tmp_path / "steps.jsonl", *(line + b"\n" for line in CASES[case]))
    for block_bytes in (1, 300, 9999):
        for below in (None, 0, 5):
            by_the_block, one_by_one = both_ways(file, below, block_bytes)
            assert by_the_block == one_by_one


def test_columns_hold_each_row_in_its_place() -> None:
    rows = [row(step=0, extra={"a": 1.0}), row(step=1, extra={"b": 2.0}), row(step=2, gpu_util_pct=7.0)]
    table = table_of_rows(rows)
    assert table["step"].to_pylist() == [0, 1, 2]
    assert (table["a"].to_pylist(), table["b"].to_pylist()) == ([1.0, None, None], [None, 2.0, None])
    assert table["gpu_util_pct"].to_pylist() == [None, None, 7.0]
    assert "samples_per_sec" not in table.column_names


def test_a_column_that_comes_late_is_null_before_it_and_the_order_is_that_of_the_fields(tmp_path: Path) -> None:
    rows = [row(step=0, extra={"a": 1.0}), row(step=1, tokens_per_sec=msgspec.UNSET, samples_per_sec=4.0)]
    table = read_step_table(written(tmp_path / "steps.jsonl", *(one.encode() for one in rows)), block_bytes=1)
    fields = ["step", "train_loss", "grad_norm", "lr", "gpu_util_pct", "wall_ms"]
    assert table.column_names == [*fields, "tokens_per_sec", "samples_per_sec", "a"]
    assert (table["samples_per_sec"].to_pylist(), table["a"].to_pylist()) == ([None, 4.0], [1.0, None])


def test_a_file_without_rows_has_the_columns_of_one_with_rows(tmp_path: Path) -> None:
    table = read_step_table(tmp_path / "none.jsonl")
    assert table.num_rows == 0
    assert table.schema.field("step").type == pa.int64()
    assert {"train_loss", "wall_ms", "tokens_per_sec"} <= set(table.column_names)


def test_a_row_whose_step_no_integer_column_holds_is_refused_with_its_number(tmp_path: Path) -> None:
    file = written(tmp_path / "steps.jsonl", row().encode(), row(step=2**63).encode())
    for read in (read_steps, read_step_table):
        with pytest.raises(DataError, match=r"steps\.jsonl:2: is not a valid row: "):
            read(file)
