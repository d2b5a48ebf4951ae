"""Commands about model versions: `models ls`, `show`, `register`, `diff`, `verify`, `pull`, `export` and others."""

from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from trainwright.cli import versionviews
from trainwright.cli.options import RUNS_DIR, Json, Run, RunsDir
from trainwright.cli.output import console, grid, print_json

Reference: TypeAlias = Annotated[
    str, typer.Argument(metavar="NAME[@VERSION|@ALIAS]", help="a version; NAME alone is the latest one that passes")
]
Out: TypeAlias = Annotated[Path, typer.Option(help="folder to write")]
Remove: TypeAlias = Annotated[bool, typer.Option("--remove", help="take it away")]

app = typer.Typer(help="List, trace, verify, pull and export registered model versions.", no_args_is_help=True)


@app.callback()
def models() -> None:
    """List, trace, verify, pull and export registered model versions."""


@app.command()
def ls(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="of this model alone")] = None,
    deleted: Annotated[bool, typer.Option("--deleted", help="deleted versions too; their numbers stay used")] = False,
    json: Json = False,
) -> None:
    """List the versions of all models, or of one, in the order of versions."""
    from trainwright import library

    with library.opened() as mine:
        versions = mine.registry.ls(name, deleted=deleted)
    if json:
        print_json({"versions": [version.document() for version in versions]})
    elif versions:
        console().print(versionviews.versions_table(versions))
    else:
        print(f"no versions{f' of {name}' if name else ''}")


@app.command()
def show(version: Reference, json: Json = False) -> None:
    """Print a version and where it came from, back to the hash of its data."""
    from trainwright import library
    from trainwright.registry import references

    with library.opened() as mine:
        found = references.find(mine.registry, version)
    if json:
        print_json(found.document())
    else:
        versionviews.print_version(found)


@app.command()
def register(
    run: Run,
    name: Annotated[str, typer.Option(metavar="NAME", help="of the model")],
    bump: Annotated[str, typer.Option(help="the number to raise: major, minor or patch; the first minor is 0.1.0")] = (
        "minor"
    ),
    version: Annotated[str | None, typer.Option(metavar="VERSION", help="this very version, as 2.0.0-rc.1")] = None,
    allow_failing: Annotated[
        bool, typer.Option("--allow-failing", help="also a run whose gates do not hold; it is marked for ever")
    ] = False,
    checkpoint: Annotated[str, typer.Option(help="the checkpoint: best (by validation) or last")] = "best",
    runs_dir: RunsDir = RUNS_DIR,
    json: Json = False,
) -> None:
    """Make a finished run a version: judged again from its files, copied to the store, numbered.

    Exit code 7 when the store fails: the version has its number and is pending, and the same command completes it.
    """
    from trainwright import library, registration
    from trainwright.config import RunConfig
    from trainwright.rundir import RunDirectory

    found, wanted = RunDirectory.find(run, runs_dir), _wanted(bump, version)
    with library.opened(RunConfig.load(found.config).checkpoint.named_store) as mine:
        done = registration.register(
            *(found, mine.registry, mine.shelf, name, wanted),
            who=registration.person(),
            allow_failing=allow_failing,
            choice=checkpoint,
        )
    if json:
        print_json({**done.version.document(), "is_new": done.is_new, "why": done.why})
    else:
        print(*registration.told([done]), sep="\n")
    raise typer.Exit(7 if done.why else 0)


@app.command()
def diff(one: Reference, other: Reference, json: Json = False) -> None:
    """Print the configurations, metrics and gates of two versions side by side."""
    from trainwright import library
    from trainwright.registry import references
    from trainwright.registry.diff import compare

    with library.opened() as mine:
        found = [references.find(mine.registry, reference) for reference in (one, other)]
    comparison = compare(*found)
    if json:
        print_json({"versions": [version.reference for version in found], **versionviews.document(comparison)})
    else:
        versionviews.print_comparison(found, comparison)


@app.command()
def alias(
    version: Annotated[str, typer.Argument(metavar="NAME[@VERSION]", help="a version; with --remove the model's name")],
    name: Annotated[str, typer.Argument(metavar="ALIAS", help="as champion")],
    remove: Remove = False,
    json: Json = False,
) -> None:
    """Have an alias name a version from now on: it is then found as NAME@ALIAS."""
    from trainwright import library, registration
    from trainwright.registry import references

    with library.opened() as mine:
        if remove:
            model, number = version.partition("@")[0], None
        else:
            found = references.find(mine.registry, version)
            model, number = found.name, found.number
        mine.registry.alias(model, name, number, who=registration.person())
    told = {"model": model, "alias": name, "version": None if number is None else str(number)}
    _tell(json, told, f"{model}@{name} " + ("is no more" if number is None else f"is {model}@{number}"))


@app.command()
def tag(
    version: Reference,
    pair: Annotated[str, typer.Argument(metavar="KEY=VALUE", help="or KEY, with --remove")],
    remove: Remove = False,
    json: Json = False,
) -> None:
    """Set a tag of a version, or take it away."""
    from trainwright.errors import InputError

    key, separator, value = pair.partition("=")
    if bool(separator) == remove:
        raise InputError(f"{pair!r}: expected KEY=VALUE, or KEY with --remove")
    _change(version, lambda registry, found, who: registry.tag(*found, key, None if remove else value, who=who), json)


@app.command()
def note(
    version: Reference,
    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="markdown")] = None,
    file: Annotated[Path | None, typer.Option(metavar="FILE", help="the text stands in this file")] = None,
    json: Json = False,
) -> None:
    """Set the notes of a version, in markdown."""
    from trainwright.errors import InputError

    if (text is None) == (file is None):
        raise InputError("expected TEXT or --file FILE")
    try:
        notes = text if file is None else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: cannot be read as UTF-8 text: {error}") from error
    _change(version, lambda registry, found, who: registry.note(*found, notes, who=who), json)


@app.command()
def verify(version: Reference, json: Json = False) -> None:
    """Hash every file of a version in the store again. Exit code 0 when all are what the registry says, else 3."""
    from trainwright import library, versionfiles
    from trainwright.registry import references

    with library.opened() as mine:
        found = references.find(mine.registry, version)
    problems = versionfiles.problems_of(library.shelf_of(found).store, found)
    told = f"{found.reference}: {len(found.facts.files)} files, sha256 {found.facts.sha256}"
    if json:
        print_json({"version": found.reference, "holds": not problems, "problems": problems})
    else:
        ending = "problem" if len(problems) == 1 else "problems"
        print(told, *problems, f"{len(problems)} {ending}" if problems else "holds", sep="\n")
    raise typer.Exit(3 if problems else 0)


@app.command()
def pull(version: Reference, out: Out, json: Json = False) -> None:
    """Write the files of a version to a folder; none has its name before its hash is verified."""
    from trainwright import library, versionfiles
    from trainwright.registry import references

    with library.opened() as mine:
        found = references.find(mine.registry, version)
    folder = versionfiles.pull(library.shelf_of(found).store, found, out)
    _tell(json, {"version": found.reference, "folder": str(folder)}, str(folder))


@app.command()
def delete(
    version: Annotated[str, typer.Argument(metavar="NAME@VERSION", help="the version itself, by its number")],
    json: Json = False,
) -> None:
    """Delete a version's files. Its record stays, and its number is never used again."""
    from trainwright import library, registration, versionfiles
    from trainwright.errors import InputError
    from trainwright.registry import references
    from trainwright.registry.versions import Version

    name, _, number = version.partition("@")
    if not references.is_number(number):
        raise InputError(f"{version!r}: expected NAME@VERSION: what is deleted is named by its number")
    with library.opened() as mine:
        deleted = mine.registry.delete(name, Version.parse(number), who=registration.person())
        own = library.shelf_of_run(deleted) or mine.shelf
    shelf = library.shelf_of(deleted) if deleted.artifact_url else own
    versionfiles.remove(shelf.store, deleted)
    _tell(json, deleted.document(), f"{deleted.reference} is deleted")


@app.command()
def export(
    version: Reference,
    out: Annotated[Path, typer.Option(help="folder to write: new, empty, or an earlier export")],
    kind: Annotated[
        str | None,
        typer.Option("--format", help="hf: a folder for AutoModelForCausalLM; safetensors: of any model"),
    ] = None,
    json: Json = False,
) -> None:
    """Write the model of a version as a folder that other tools load, with a model card (README.md)."""
    from trainwright import library
    from trainwright.modelcard import export_version
    from trainwright.registry import references

    with library.opened() as mine:
        found = references.find(mine.registry, version)
    folder = export_version(library.shelf_of(found).store, found, out, kind=kind)
    _tell(json, {"version": found.reference, "folder": str(folder)}, str(folder))


@app.command()
def audit(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="of this model alone")] = None, json: Json = False
) -> None:
    """Print who changed what, oldest first."""
    from trainwright import library

    with library.opened() as mine:
        changes = mine.registry.audit(name)
    if json:
        print_json({"changes": changes})
        return
    table = grid("time!", "who", "what!", "on", "detail")
    for one in changes:
        table.add_row(
            one.time, *map(versionviews.text, (one.who, one.action, one.subject, versionviews.pairs_told(one.detail)))
        )
    console().print(table)


@app.command()
def migrate(
    to: Annotated[str, typer.Option(metavar="REVISION", help="a revision, head or base; base removes all there is")] = (
        "head"
    ),
    json: Json = False,
) -> None:
    """Bring the registry's database to the revision of this version. Save a copy of it before."""
    from trainwright.registry import revisions
    from trainwright.settings import Settings

    done = revisions.migrate(Settings.load().registry_url(), to)
    told = {"before": done.before, "after": done.after}
    _tell(json, told, f"revision {done.before or 'none'} → {done.after or 'none'}")


# -- what several do -------------------------------------------------------------------------------------------------


def _wanted(bump: str, version: str | None) -> Any:
    from trainwright.errors import InputError
    from trainwright.registry.versions import BUMPS, Version

    if version is not None:
        return Version.parse(version)
    if bump not in BUMPS:
        raise InputError(f"bump {bump!r} is not one of: {', '.join(BUMPS)}")
    return bump


def _change(version: str, change: Any, json: bool) -> None:
    """Find a version, change it, and print it as it then is."""
    from trainwright import library, registration
    from trainwright.registry import references

    with library.opened() as mine:
        found = references.find(mine.registry, version)
        change(mine.registry, (found.name, found.number), registration.person())
        now = mine.registry.get(found.name, found.number)
    if json:
        print_json(now.document())
    else:
        versionviews.print_version(now)


def _tell(json: bool, document: object, text: str) -> None:
    if json:
        print_json(document)
    else:
        print(text)
