"""`trainwright contract`: commands about contract files."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainwright.cli.options import Json
from trainwright.cli.output import print_json
from trainwright.cli.status import status

if TYPE_CHECKING:
    from trainwright.contract.validate import Problem

app = typer.Typer(help="Check contracts.", no_args_is_help=True)


@app.callback()
def contract() -> None:
    """Check contracts."""


app.command()(status)


@app.command("validate")
def validate_command(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="contract files, or names of shipped contracts")
    ],
    against: Annotated[
        str | None, typer.Option(help="an older contract; without it, the shipped one of the same id")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="exit 2 on warnings as well")] = False,
    json: Json = False,
) -> None:
    """Tell every problem of contracts, each with file, line and gate. Exit code 2 when there are errors, else 0."""
    from trainwright.outside import problems_of

    found = {file: problems_of(file, against) for file in files}
    severities = [problem.severity for problems in found.values() for problem in problems]
    errors, warnings = severities.count("error"), severities.count("warning")
    if json:
        print_json(_document(found, errors, warnings))
    else:
        for file, problems in found.items():
            for problem in problems:
                print(_line(file, problem))
        print(f"{errors} errors, {warnings} warnings")
    raise typer.Exit(2 if errors or (strict and warnings) else 0)


@app.command("diff")
def diff_command(
    old: Annotated[str, typer.Argument(metavar="OLD", help="a contract's file, or a shipped contract's name")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="the contract that follows it")],
    json: Json = False,
) -> None:
    """Tell what differs, and which bump of the version that needs. Exit code 0 when it was made, else 3."""
    from trainwright.outside import comparison_of

    compared = comparison_of(old, new)
    enough = "enough" if compared.enough else "not enough"
    if json:
        names = ("needs", "old", "new", "enough", "differences")
        print_json({name: getattr(compared, name) for name in names})
    else:
        for found in compared.differences:
            print(f"{found.needs}: {found.about}: {found.text}")
        print(f"needs: {compared.needs}; versions {compared.old} → {compared.new}: {enough}")
    raise typer.Exit(0 if compared.enough else 3)


def _line(file: str, problem: "Problem") -> str:
    gate = f"{problem.gate}: " if problem.gate else ""
    return f"{file}:{problem.line}: {gate}{problem.severity}: {problem.text}"


def _document(found: dict[str, list["Problem"]], errors: int, warnings: int) -> dict[str, Any]:
    files = [{"file": file, "problems": problems} for file, problems in found.items()]
    return {"files": files, "errors": errors, "warnings": warnings}
