"""What commands print: tables for people, one JSON document for programs."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from trainwright.rundir import RunDirectory

PLAIN_WIDTH = 132


def print_json(document: object) -> None:
    """Print one JSON document and a newline on stdout."""
    import msgspec

    sys.stdout.buffer.write(msgspec.json.encode(document) + b"\n")
    sys.stdout.flush()


def tell_torn(run: "RunDirectory") -> None:
    """Tell on stderr which files of rows end in one that was cut by a crash; whoever reads them goes without it."""
    for file in run.torn_files():
        print(f"{file}: ends in a torn row, which is left out", file=sys.stderr)


def console() -> "Console":
    """Give the console of stdout; where that is no terminal, wide enough for tables."""
    from rich.console import Console

    out = Console(highlight=False)
    return out if out.is_terminal else Console(highlight=False, width=PLAIN_WIDTH)


def line(out: "Console", text: str, style: str | None = None) -> None:
    """Print a text as it is: no markup is read in it, and a long one, as a path, is not broken."""
    out.print(text, markup=False, soft_wrap=True, style=style)


def grid(*columns: str) -> "Table":
    """Give a plain table. A column whose name ends in `>` is aligned right, one that ends in `!` is never wrapped."""
    from rich.table import Table

    plain = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        whole = column.endswith("!")
        plain.add_column(
            column.rstrip(">!"),
            justify="right" if column.endswith(">") else "left",
            overflow="ellipsis" if whole else "fold",
            no_wrap=whole,
        )
    return plain
