"""Commands about evidence: `evidence verify`, `evidence keygen` and `evidence attach`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from trainwright.cli.options import RUNS_DIR, Json, RunsDir
from trainwright.cli.output import console, grid, line, print_json

if TYPE_CHECKING:
    from rich.table import Table

    from trainwright.attachments import Attachment
    from trainwright.statuses import GateStatus

Sealed: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="RUN|FILE",
        help="id or folder of a run or a record of checks, its evidence.json or .dsse.json, or latest",
    ),
]
Key: TypeAlias = Annotated[Path | None, typer.Option(metavar="FILE", help="public key that has to have signed it")]

app = typer.Typer(help="Check, sign and attach what a run has sealed.", no_args_is_help=True)


@app.callback()
def evidence() -> None:
    """Check, sign and attach what a run has sealed."""


@app.command()
def verify(run: Sealed, runs_dir: RunsDir = RUNS_DIR, key: Key = None, json: Json = False) -> None:
    """Check every hash and the signature of a sealed run, and judge it again. Exit code 0 when it holds, else 3."""
    from trainwright.outside import problems_of_evidence
    from trainwright.rundir import RunDirectory

    problems = problems_of_evidence(RunDirectory.find(run, runs_dir, records=True), public=key)
    if json:
        print_json({"holds": not problems, "problems": problems})
    else:
        _print_problems(problems)
    raise typer.Exit(3 if problems else 0)


@app.command()
def keygen(
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="the private key; default: keys/evidence.pem in TRAINWRIGHT_HOME"),
    ] = None,
    json: Json = False,
) -> None:
    """Make an Ed25519 key that runs are sealed with from now on: FILE, and beside it its public half, .pub."""
    from trainwright.signing import KEY_VARIABLE, default_key, make_key

    made = make_key(out or default_key())
    if json:
        print_json({"private": str(made.private), "public": str(made.public), "key_id": made.key_id})
        return
    print(f"private key {made.private}", f"public key  {made.public}", f"key id      {made.key_id}", sep="\n")
    if out is not None:
        print(f"to sign with it: export {KEY_VARIABLE}={out.resolve()}")


@app.command()
def attach(
    run: Sealed,
    to: Annotated[str, typer.Option(metavar="FILE", help="the contract file, or the name of a shipped contract")],
    gate: Annotated[list[str] | None, typer.Option(metavar="ID", help="this gate alone; may be given again")] = None,
    runs_dir: RunsDir = RUNS_DIR,
    key: Key = None,
    json: Json = False,
) -> None:
    """Copy a sealed run's evidence beside a contract and link it there, for each gate that the run passes by itself.

    Exit code 3 when the evidence does not hold, when no gate takes it, or when one that was named does not.
    """
    from trainwright.contract.load import file_of
    from trainwright.outside import attached
    from trainwright.rundir import RunDirectory

    file, sealed = file_of(to), RunDirectory.find(run, runs_dir, records=True)
    before, done, after = attached(sealed, file, gate or (), key)
    if json:
        statuses = {"before": before, "after": after}
        told = {name: [one.document() for one in found] for name, found in statuses.items()}
        print_json({"file": str(file), "attachment": done.document(), **told})
    elif done.problems:
        _print_problems(done.problems)
    else:
        _print_attached(file, done, before, after)
    raise typer.Exit(0 if done.entries and not (gate and done.refused) else 3)


def _print_problems(problems: Sequence[str]) -> None:
    ending = "problem" if len(problems) == 1 else "problems"
    print(*problems, f"{len(problems)} {ending}" if problems else "holds", sep="\n")


def _print_attached(file: Path, done: "Attachment", before: "list[GateStatus]", after: "list[GateStatus]") -> None:
    out = console()
    out.print(_changes(done, before, after))
    for entry in done.entries:
        line(out, f"{file.parent / entry.folder}")
    line(out, f"attached to {len(done.entries)} of {len(after)} gates of {file}")


def _changes(done: "Attachment", before: "list[GateStatus]", after: "list[GateStatus]") -> "Table":
    from rich.markup import escape

    table = grid("gate!", "before → after", "what still blocks, or why it was not attached")
    for old, new in zip(before, after, strict=True):
        reasons = [*([f"not attached: {done.refused[new.gate]}"] if new.gate in done.refused else []), *new.blocks]
        table.add_row(new.gate, f"{old.status} → {new.status}", escape("; ".join(reasons)))
    return table
