"""The command tree. It imports nothing heavy: each command does so when it runs."""

import sys
from collections.abc import Callable

import typer

from trainwright.cli import (
    checkpoints,
    checks,
    contract,
    data,
    doctor,
    evaluate,
    evidence,
    inspect,
    models,
    registry,
    train,
)
from trainwright.errors import TrainwrightError
from trainwright.redaction import redact_process, redacted

app = typer.Typer(
    name="trainwright",
    help="Train models under contract: every step on record, every claim recomputed from the run's files.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(checkpoints.app, name="checkpoints")
app.add_typer(contract.app, name="contract")
app.add_typer(data.app, name="data")
app.add_typer(evidence.app, name="evidence")
app.add_typer(registry.app, name="models")
app.add_typer(inspect.runs_app, name="runs")
COMMANDS: tuple[Callable[..., None], ...] = (
    *(train.train, train.resume),
    *(checks.check, checks.verify_resume, checks.determinism),
    *(inspect.gates, inspect.report, inspect.config, inspect.version),
    checks.probe,
    *(models.init, models.plan, models.sample, models.export),
    evaluate.evaluate,
    doctor.doctor,
)
for command in COMMANDS:
    app.command()(command)


def main() -> None:
    """Run one command and exit with its code. An error of ours is one message on stderr; a traceback is a bug."""
    redact_process()
    try:
        code = app(standalone_mode=False)
    except TrainwrightError as error:
        print(redacted(f"error: {error}"), file=sys.stderr)
        code = error.exit_code
    except typer.Abort:
        code = 130
    except Exception as error:
        show = getattr(error, "show", None)  # a usage error of the command line knows how to show itself
        if show is None:
            raise
        show()
        code = getattr(error, "exit_code", 2)
    sys.exit(code if isinstance(code, int) else 0)
