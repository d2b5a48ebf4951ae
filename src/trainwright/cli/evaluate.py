"""`evaluate`: how good the model of a run is, on what did not select its checkpoint."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from trainwright.cli.options import RUNS_DIR, Json, Run, RunsDir
from trainwright.cli.output import print_json

if TYPE_CHECKING:
    from rich.table import Table

    from trainwright.evaluation import EpisodeEvaluation, ForecastEvaluation, HeldOutEvaluation

NOTHING: Final = "–"
BANDS: Final = ("as_forecast", "by_validation")


def evaluate(
    run: Run,
    episodes: Annotated[int | None, typer.Option(help="of an agent: how many are played; 100 if not given")] = None,
    seed: Annotated[int | None, typer.Option(help="of the episodes; no seed gives those of a validation")] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="other data than the run's: a folder of shards, or of mamba2_sequence a file of x and y"),
    ] = None,
    checkpoint: Annotated[str, typer.Option(help="best (by validation) or last")] = "best",
    runs_dir: RunsDir = RUNS_DIR,
    json: Json = False,
) -> None:
    """Print how well a model does: an agent by episodes, a forecaster by its test rows, others by held-out data."""
    from trainwright import evaluation
    from trainwright.rundir import RunDirectory

    found = evaluation.evaluate(
        RunDirectory.find(run, runs_dir), episodes=episodes, seed=seed, data=data, choice=checkpoint
    )
    if json:
        print_json(found.to_dict())
        return
    if isinstance(found, evaluation.EpisodeEvaluation):
        _print_episodes(found)
    elif isinstance(found, evaluation.ForecastEvaluation):
        _print_forecasts(found)
    elif isinstance(found, evaluation.HeldOutEvaluation):
        _print_held_out(found)
    print(f"checkpoint {found.checkpoint} of {found.run}")


def _print_episodes(found: "EpisodeEvaluation") -> None:
    error = f" ± {found.standard_error:.2f}" if found.standard_error is not None else ""
    print(f"{found.metric} {found.value:.2f}{error} over {found.episodes} episodes of seed {found.seed}")


def _print_forecasts(found: "ForecastEvaluation") -> None:
    from trainwright.cli.output import console, grid

    error = f" ± {found.standard_error:.4f}" if found.standard_error is not None else ""
    print(f"{found.metric} {found.value:.4f}{error} over {found.windows} windows of the test rows, in deviations")
    console().print(_table(found))
    bands = grid("band", "holds>", "width>")
    bands.add_row("promised", f"{found.band.nominal:.1%}", "")
    for name in BANDS:
        held = getattr(found.band, name)
        numbers = (NOTHING, NOTHING) if held is None else (f"{held.coverage:.1%}", f"{held.width:.4f}")
        bands.add_row(name.replace("_", " "), *numbers)
    console().print(bands)


def _print_held_out(found: "HeldOutEvaluation") -> None:
    from trainwright.cli.output import console, grid

    error = f" ± {found.standard_error:.4f}" if found.standard_error is not None else ""
    where = "that the run held out" if found.data is None else f"of {found.data}"
    print(f"{found.metric} {found.value:.4f}{error} {found.unit} over {found.n:,} {found.items} {where}")
    table = grid("beside it", "value>")
    for name, value in {**found.measures, **found.baselines}.items():
        table.add_row(name, NOTHING if value is None else f"{value:.4f}")
    if table.row_count:
        console().print(table)
    print(_chosen(found))


def _chosen(found: "HeldOutEvaluation") -> str:
    if found.is_other:
        return "these are other data than the run's own, by their hash"
    if found.data is not None:
        return f"whether the run was trained on any of these {found.items} was not looked at"
    if found.chose_checkpoint:
        return f"these {found.items} chose the checkpoint, so it may do worse on others"
    return f"these {found.items} did not choose the checkpoint, which is the last"


def _table(found: "ForecastEvaluation") -> "Table":
    from trainwright.cli.output import grid

    table = grid("forecast", "mae>", "±>", "mse>", "quantile loss>", "crossings>", "ridge>")
    for name, one in found.forecasts.items():
        numbers = (one.mae, one.standard_error, one.mse, one.quantile_loss, one.crossings)
        ridge = NOTHING if one.ridge is None else f"{one.ridge:g}"
        table.add_row(name, *(NOTHING if number is None else f"{number:.4f}" for number in numbers), ridge)
    return table
