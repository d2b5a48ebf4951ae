"""Expressions: what the list allows is rewritten; everything else is refused before anything is bound."""

from collections.abc import Iterator
from time import perf_counter

import duckdb
import pyarrow as pa
import pytest

from tests.contract.hostile import HOSTILE
from trainwright.contract import expressions
from trainwright.contract.expressions import Parser
from trainwright.errors import InputError


@pytest.fixture(scope="module")
def parser() -> Iterator[Parser]:
    with expressions.connect() as connection:
        yield Parser(connection)


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_expression_is_refused_before_it_is_bound(parser: Parser, text: str) -> None:
    began = perf_counter()
    with pytest.raises(InputError):
        parser.figure(text)
    assert perf_counter() - began < 2.0


def test_the_names_of_clocks_are_columns_and_nothing_else(parser: Parser) -> None:
    for name in ("current_timestamp", "current_date", "user"):
        assert parser.figure(f"max({name})").sql == f'max(t."{name}")'


def test_a_refusal_names_the_function_and_what_is_allowed(parser: Parser) -> None:
    with pytest.raises(InputError, match=r"function 'now' is not allowed; allowed are .*coalesce; in a figure count"):
        parser.figure("max(now())")
    with pytest.raises(InputError, match=r"window \(WINDOW_LAG\) is not allowed"):
        parser.figure("lag(a) over ()")


@pytest.mark.parametrize(
    ("text", "sql"),
    [
        ("median(wall_ms)", 'median(t."wall_ms")'),
        ("count(*)", "count(*)"),
        ("count(distinct a)", 'count(DISTINCT t."a")'),
        ("quantile_cont(a, 0.95)", "quantile_cont(t.\"a\", CAST('0.95' AS DOUBLE))"),
        ("arg_min(a, b)", 'arg_min(t."a", t."b")'),
        ("max(a) - 2 * min(b)", '(max(t."a") - ((2) * min(t."b")))'),
        ("count(*) filter (where not isfinite(a))", 'count(*) FILTER (WHERE (NOT isfinite(t."a")))'),
        ("sum(coalesce(a, 0))", 'sum(coalesce(t."a", (0)))'),
        ("max(-a / greatest(b, 1e-6))", "max(((-t.\"a\") / greatest(t.\"b\", CAST('1e-6' AS DOUBLE))))"),
        ("max(- -a - -2.5 - -3)", "max((((-(-t.\"a\")) - CAST('-2.5' AS DOUBLE)) - (-3)))"),
        ("bool_and(a between 1 and 2 or b in ('it''s', 'x'))",
         "bool_and(((t.\"a\" BETWEEN (1) AND (2)) OR (t.\"b\" IN ('it''s', 'x'))))"),
        ("count(*) filter (where a is not null and b <> true)",
         'count(*) FILTER (WHERE ((t."a" IS NOT NULL) AND (t."b" <> (true))))'),
    ],
)  # fmt: skip
def test_an_allowed_expression_is_written_anew_from_its_nodes(parser: Parser, text: str, sql: str) -> None:
    assert parser.figure(text).sql == sql


def test_an_expression_tells_the_columns_that_it_reads_and_those_that_it_tests(parser: Parser) -> None:
    figure = parser.figure("count(*) filter (where a is null or not isfinite(b) or coalesce(c, d) > e)")
    assert figure.columns == {"a", "b", "c", "d", "e"}
    assert figure.valued == {"b", "c", "d", "e"}
    assert figure.null_tested == {"a", "c"}
    assert figure.finite_tested == {"b"}


def test_a_condition_holds_no_aggregate(parser: Parser) -> None:
    with pytest.raises(InputError, match="aggregate max cannot stand here"):
        parser.condition("a > max(a)")


@pytest.mark.parametrize(
    "statement",
    [
        "select * from '/etc/passwd'",
        "select * from read_csv('/etc/passwd')",
        "copy (select 1) to '/tmp/contract-test.csv'",
        "attach '/tmp/contract-test.db'",
        "install httpfs",
        "load httpfs",
        "set enable_external_access = true",
        "set memory_limit = '1TB'",
        "select * from python_variable",
    ],
)
def test_the_connection_itself_refuses_files_extensions_and_settings(statement: str) -> None:
    python_variable = pa.table({"a": [1]})
    assert python_variable.num_rows
    with expressions.connect() as connection, pytest.raises(duckdb.Error):
        connection.execute(statement).fetchall()
