"""`evaluate`: how good the agent of a run is, by episodes that did not select its checkpoint."""

from typing import Annotated

import typer

from trainwright.cli.options import RUNS_DIR, Json, Run, RunsDir
from trainwright.cli.output import print_json


def evaluate(
    run: Run,
    episodes: Annotated[int, typer.Option(help="how many are played")] = 100,
    seed: Annotated[int, typer.Option(help="of the episodes; no seed gives those of a validation")] = 0,
    checkpoint: Annotated[str, typer.Option(help="best (by validation) or last")] = "best",
    runs_dir: RunsDir = RUNS_DIR,
    json: Json = False,
) -> None:
    """Play episodes with the agent of a run, and print the mean of their returns and its standard error."""
    from trainwright import evaluation
    from trainwright.rundir import RunDirectory

    found = evaluation.evaluate(RunDirectory.find(run, runs_dir), episodes=episodes, seed=seed, choice=checkpoint)
    if json:
        print_json(found.to_dict())
    else:
        error = f" ± {found.standard_error:.2f}" if found.standard_error is not None else ""
        print(f"{found.metric} {found.value:.2f}{error} over {found.episodes} episodes of seed {found.seed}")
        print(f"checkpoint {found.checkpoint} of {found.run}")
