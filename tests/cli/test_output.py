from io import StringIO

import pytest
from rich.console import Console

from trainwright.cli.output import grid, line


def console(width: int) -> Console:
    return Console(file=StringIO(), width=width, highlight=False)


def printed(out: Console) -> list[str]:
    assert isinstance(out.file, StringIO)
    return out.file.getvalue().splitlines()


def test_a_line_is_printed_as_it_is_and_never_broken() -> None:
    out = console(20)
    line(out, "run runs/[bold]a-name-that-is-longer-than-the-console")
    assert printed(out) == ["run runs/[bold]a-name-that-is-longer-than-the-console"]


@pytest.mark.parametrize(
    ("column", "cells"), [("n", ["n", "1", "22"]), ("n>", [" n", " 1", "22"]), ("n!", ["n", "1", "22"])]
)
def test_a_column_is_aligned_as_the_end_of_its_name_says(column: str, cells: list[str]) -> None:
    out, table = console(20), grid(column, "last")
    for value in ("1", "22"):
        table.add_row(value, "x")
    out.print(table)
    assert [text[:2].rstrip() for text in printed(out)] == cells


def test_a_column_that_is_never_wrapped_keeps_its_width_and_another_folds() -> None:
    out, table = console(24), grid("gate!", "claim")
    table.add_row("GATE-WITH-A-NAME", "a_word_that_is_long")
    out.print(table)
    header, *rows = printed(out)
    assert header.split() == ["gate", "claim"]
    assert rows[0].startswith("GATE-WITH-A-NAME ")
    assert "".join(row.removeprefix("GATE-WITH-A-NAME").strip() for row in rows) == "a_word_that_is_long"
