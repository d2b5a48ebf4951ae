"""Commands about evidence: `evidence verify`, `evidence keygen` and `evidence attach`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from trainwright.cli.options import RUNS_DIR, Json, RunsDir
from trainwright.cli.output import console, print_json

if TYPE_CHECKING:
    from rich.table import Table

    from trainwright.attachments import Attachment
    from trainwright.statuses import GateStatus

Sealed: TypeAlias = Annotated[
    str, typer.Argument(metavar="RUN|FILE", help="run id, run directory, its evidence.json or .dsse.json, or latest")
]
Key: TypeAlias = Annotated[Path | None, typer.Option(metavar="FILE", help="public key that has to have signed it")]

app = typer.Typer(help="Check, sign and attach what a run has sealed.", no_args_is_help=True)


@app.callback()
def evidence() -> None:
    """Check, sign and attach what a run has sealed."""


@app.command()
def verify(run: Sealed, runs_dir: RunsDir = RUNS_DIR, key: Key = None, json: Json = False) -> None:
    """Check every hash and the signature of a sealed run, and judge it again. Exit code 0 when it holds, else 3."""
    from trainwright.evidence import verify as problems_of

    problems = problems_of(_place(run, runs_dir), public=key)
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
    from trainwright.attachments import attach as attached
    from trainwright.contract.links import file_of
    from trainwright.evidence import run_of
    from trainwright.statuses import statuses_of

    file, sealed = file_of(to), run_of(_place(run, runs_dir))
    before = statuses_of(file)
    done = attached(sealed, file, gates=gate or (), public=key)
    after = statuses_of(file)
    if json:
        statuses = {"before": before, "after": after}
        told = {name: [one.document() for one in found] for name, found in statuses.items()}
        print_json({"file": str(file), "attachment": done.document(), **told})
    elif done.problems:
        _print_problems(done.problems)
    else:
        _print_attached(file, done, before, after)
    raise typer.Exit(0 if done.entries and not (gate and done.refused) else 3)


def _place(run: str, runs_dir: Path) -> Path:
    """Find what is to be checked; a sealed run is one even where its run.yaml is gone."""
    from trainwright.rundir import RunDirectory

    for path in (Path(run), runs_dir / run):
        if path.is_file() or RunDirectory(path).evidence.is_file():
            return path
    return RunDirectory.find(run, runs_dir).path


def _print_problems(problems: Sequence[str]) -> None:
    ending = "problem" if len(problems) == 1 else "problems"
    print(*problems, f"{len(problems)} {ending}" if problems else "holds", sep="\n")


def _print_attached(file: Path, done: "Attachment", before: "list[GateStatus]", after: "list[GateStatus]") -> None:
    out = console()
    out.print(_changes(done, before, after))
    out.print(*(f"{file.parent / entry.folder}" for entry in done.entries), sep="\n", markup=False, soft_wrap=True)
    attached = f"attached to {len(done.entries)} of {len(after)} gates of {file}"
    out.print(attached, markup=False, soft_wrap=True)


def _changes(done: "Attachment", before: "list[GateStatus]", after: "list[GateStatus]") -> "Table":
    from rich.markup import escape
    from rich.table import Table

    grid = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("gate", "before → after", "what still blocks, or why it was not attached"):
        grid.add_column(column, no_wrap=column == "gate")
    for old, new in zip(before, after, strict=True):
        reasons = [*([f"not attached: {done.refused[new.gate]}"] if new.gate in done.refused else []), *new.blocks]
        grid.add_row(new.gate, f"{old.status} → {new.status}", escape("; ".join(reasons)))
    return grid
