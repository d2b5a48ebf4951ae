"""Claims about runs side by side: the runs are made, and their files compared."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from trainwright import origins
from trainwright.checkrecords import Record, contract_with_pairs, record_comparison
from trainwright.config import BUDGETS, RunConfig
from trainwright.equality import cosine
from trainwright.errors import InputError
from trainwright.jsonfile import read_json
from trainwright.recorder import Watcher
from trainwright.rundir import RunDirectory
from trainwright.runs import execute
from trainwright.state import weights_in

STEPS = 100


@dataclass(frozen=True, slots=True)
class Drift:
    """How far runs of one seed are from each other: 0, 0 and 1 where they are equal.

    `max_loss_difference` between any two at any step · `final_loss_spread` largest less smallest loss of the last step
    · `least_cosine` of the weights of any two, all of a run as one vector.
    """

    runs: int
    compared_steps: int
    max_loss_difference: float
    final_loss_spread: float
    least_cosine: float


@dataclass(frozen=True, slots=True)
class Determinism:
    """The runs that were compared, their drift, and the sealed record that decides the pair gates."""

    runs: Sequence[RunDirectory]
    drift: Drift
    record: Record


def determinism(config: RunConfig, *, runs_dir: Path, runs: int = 2, watcher: Watcher | None = None) -> Determinism:
    """Make `runs` short runs of the seed and one of the next seed, and judge the contract's pair gates over them.

    Each takes 100 steps under the configuration's other values. Errors: InputError for fewer than 2 runs, when there
    is no contract with a gate of kind `pair`, or when a run does not get to its last step.
    """
    if runs < 2:
        raise InputError(f"--runs {runs}: two runs of one seed are the fewest that can be compared")
    contract = contract_with_pairs(config)
    seeds = [config.seed] * runs + [config.seed + 1]
    made = [_short_run(config, seed, runs_dir, watcher) for seed in seeds]
    rows = [_compared(seeds[0], made[0], seed, run) for seed, run in zip(seeds[1:], made[1:], strict=True)]
    drift = drift_of(made[:runs])
    rows.append({"name": "drift", "seed": config.seed, **asdict(drift)})
    environment = read_json(made[0].environment)
    record = record_comparison(config, contract, "determinism", rows, environment=environment, runs_dir=runs_dir)
    return Determinism(made, drift, record)


def _short_run(config: RunConfig, seed: int, runs_dir: Path, watcher: Watcher | None) -> RunDirectory:
    budget = [f"train.{unit}=null" for unit in (*BUDGETS, "seconds") if unit != "steps"]
    changes = [*budget, f"train.steps={STEPS}", f"seed={seed}", "contract=null", "early_stopping=null"]
    result = execute(RunConfig.from_document(config.document_with(changes)), runs_dir=runs_dir, watcher=watcher)
    if result.step != STEPS:
        raise InputError(f"{result.run.id}: did not get to step {STEPS}: {result.why}; nothing can be compared")
    return result.run


def _compared(seed: int, run: RunDirectory, other_seed: int, other: RunDirectory) -> dict[str, Any]:
    pairs = list(zip(run.read_steps(), other.read_steps(), strict=True))
    equal = [(a.train_loss, a.grad_norm, a.lr) == (b.train_loss, b.grad_norm, b.lr) for a, b in pairs]
    optimizers = {r.read_validations()[-1].optimizer_state_sha256 for r in (run, other)}
    return {
        "name": "determinism",
        "seed": seed,
        "other_seed": other_seed,
        "compared_steps": len(pairs),
        "equal_steps": sum(equal),
        "equal_optimizer": len(optimizers) == 1,
    }


def drift_of(runs: Sequence[RunDirectory]) -> Drift:
    """Measure finished runs of equal length against each other, from their rows and their last checkpoints."""
    losses = [[row.train_loss for row in run.read_steps()] for run in runs]
    spreads = [max(step) - min(step) for step in zip(*losses, strict=True)]
    weights = [weights_in(origins.of_parent(run).state) for run in runs]
    cosines = [cosine(one, other) for one, other in combinations(weights, 2)]
    return Drift(len(runs), len(spreads), max(spreads), spreads[-1], min(cosines))
