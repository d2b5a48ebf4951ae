"""Commands about checkpoints, of a run's directory or of its copy in a store: ls, verify, pull, gc, sync."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from trainwright.cli.options import RUNS_DIR, Json, RunsDir
from trainwright.cli.output import console, grid, print_json
from trainwright.errors import InputError, StoreError
from trainwright.redaction import redacted

if TYPE_CHECKING:
    from rich.table import Table

    from trainwright.app import Place
    from trainwright.checkpoints.base import Store
    from trainwright.holdings import Holding

ANY_RUN = "run id, path of a run directory, latest, or URL of a run in a store, as s3://bucket/prefix/runs/ID"
AnyRun: TypeAlias = Annotated[str, typer.Argument(metavar="RUN", help=ANY_RUN)]
StoreUrl: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="URL", help="the store, or env:NAME, file:PATH; else that of run.yaml or of the settings"),
]

app = typer.Typer(help="List, verify, fetch and tidy checkpoints, here and in a store.", no_args_is_help=True)


@app.callback()
def checkpoints() -> None:
    """List, verify, fetch and tidy checkpoints, here and in a store."""


@app.command()
def ls(run: AnyRun, store: StoreUrl = None, runs_dir: RunsDir = RUNS_DIR, json: Json = False) -> None:
    """List the checkpoints of a run from their manifests, and whether each is in its store."""
    from trainwright.app import place_of
    from trainwright.holdings import holdings

    place = place_of(run, runs_dir, store)
    found, away = holdings(place.checkpoints), _names_there(place)
    if json:
        copies = [None if away is None else one.name in away for one in found]
        rows = [{**_fields(one), "in_store": copy} for one, copy in zip(found, copies, strict=True)]
        print_json({"run": place.run_id, "checkpoints": rows})
    else:
        console().print(_table(found, away))


@app.command()
def verify(run: AnyRun, runs_dir: RunsDir = RUNS_DIR, json: Json = False) -> None:
    """Read the checkpoints that are kept, every byte, against their manifests. Exit code 0 when they hold, else 7."""
    from trainwright.app import place_of
    from trainwright.holdings import problems

    place = place_of(run, runs_dir)
    found = problems(place.checkpoints)
    if json:
        print_json({"run": place.run_id, "holds": not found, "problems": found})
    else:
        print(*[f"{one.checkpoint}: {one.reason}" for one in found] or [f"{place.run_id}: all hold"], sep="\n")
    raise typer.Exit(StoreError.exit_code if found else 0)


@app.command()
def pull(
    run: AnyRun,
    out: Annotated[Path, typer.Option(metavar="DIR", help="folder that gets a folder of the checkpoint's name")],
    checkpoint: Annotated[str | None, typer.Option(metavar="NAME", help="else the newest that is kept")] = None,
    store: StoreUrl = None,
    runs_dir: RunsDir = RUNS_DIR,
) -> None:
    """Fetch one checkpoint, of the store where there is one; each file has its name once its hash is verified."""
    from trainwright.app import place_of
    from trainwright.holdings import chosen
    from trainwright.restoration import pull_whole

    place = place_of(run, runs_dir, store)
    saved = place.checkpoints_there if place.there else place.checkpoints
    print(pull_whole(saved, chosen(saved, checkpoint), out))


@app.command()
def gc(
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help=f"{ANY_RUN}; else each run of the store")] = None,
    store: StoreUrl = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say what would go, and remove nothing")] = False,
    unfinished: Annotated[
        bool, typer.Option("--unfinished", help="of a run in a store that has no end, too: nothing may be training it")
    ] = False,
    runs_dir: RunsDir = RUNS_DIR,
    json: Json = False,
) -> None:
    """Remove what no manifest names: of interrupted saves and uploads, of retired checkpoints. Models stay."""
    from trainwright.holdings import tidy, unnamed

    removed = {}
    for name, saved in _to_tidy(run, store, runs_dir, unfinished=unfinished):
        removed[name] = (unnamed if dry_run else tidy)(saved)
    if json:
        print_json({"removed": not dry_run, "keys": removed})
    for name, keys in {} if json else removed.items():
        print(*[f"{name}: {key}" for key in keys] or [f"{name}: nothing to remove"], sep="\n")


@app.command()
def sync(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="run id, path of a run directory or latest; else every run")
    ] = None,
    store: StoreUrl = None,
    runs_dir: RunsDir = RUNS_DIR,
) -> None:
    """Complete the copies in the store, of a run or of each run that is here, and model versions that wait for theirs.

    Exit code 7 when one could not be completed.
    """
    from trainwright.app import place_of
    from trainwright.rundir import all_runs

    failed = False
    of_the_run: StoreError | InputError | None = None
    for name in [run] if run else [str(one.path) for one in all_runs(runs_dir)]:
        try:
            place = place_of(name, runs_dir, store)
            if run is None and place.there is None:
                continue
            done = place.sync()
        except (StoreError, InputError) as error:
            failed = True
            if run:
                of_the_run = error  # told once the versions, which need no copy of the run, had their turn
            else:
                print(redacted(f"{name}: {error}"), file=sys.stderr)
            continue
        print(f"{place.run_id}: {len(done.uploaded)} checkpoints went up, {done.size_bytes} bytes in all")
        for checkpoint, why in done.damaged.items():
            failed = True
            print(f"{place.run_id}: {checkpoint} stays here: {why}", file=sys.stderr)
    failed = not _complete_versions(runs_dir) or failed
    if of_the_run:
        raise of_the_run
    raise typer.Exit(StoreError.exit_code if failed else 0)


def _complete_versions(runs_dir: Path) -> bool:
    """Complete the model versions that wait for their files; tell of each, and whether all are ready."""
    from trainwright.library import complete_pending
    from trainwright.registration import told

    done = complete_pending(runs_dir)
    for text in told(done):
        print(text)
    return all(one.why is None for one in done)


def _to_tidy(run: str | None, store: str | None, runs_dir: Path, *, unfinished: bool) -> "Iterator[tuple[str, Store]]":
    """Give the stores of checkpoints to tidy: of one run, held while it is tidied, or of each run in a store."""
    from trainwright.app import place_of, whole_store

    if run is None:
        yield from ((place.run_id, place.checkpoints) for place in whole_store(store, runs_dir, unfinished=unfinished))
        return
    place = place_of(run, runs_dir, store)
    if place.here:
        with place.here.locked():
            yield place.run_id, place.checkpoints
    elif unfinished or place.has_ended:
        yield place.run_id, place.checkpoints
    else:
        raise InputError(
            f"{place.run_id}: has no end in the store; it may be in training. If nothing trains it: --unfinished"
        )


def _names_there(place: "Place") -> set[str] | None:
    """Give the checkpoints that are whole in the store of a run's directory; None where there is none to compare."""
    from trainwright.checkpoints.checkpoints import Checkpoints

    if place.here is None or place.there is None:
        return None
    return {one.name for one in Checkpoints(place.checkpoints_there).committed()}


def _fields(one: "Holding") -> dict[str, object]:
    from msgspec.structs import asdict

    return asdict(one)


def _table(found: "list[Holding]", away: set[str] | None) -> "Table":
    table = grid("checkpoint!", "step>", "state", "files>", "bytes>", "saved", *(["store"] if away is not None else []))
    for one in found:
        state = f"{one.state}: {one.reason}" if one.reason else one.state
        numbers = ("–" if value is None else f"{value:,}" for value in (one.files, one.size_bytes))
        copy = [] if away is None else ["there" if one.name in away else "pending"]
        table.add_row(one.name, str(one.step), state, *numbers, one.saved or "–", *copy)
    return table
