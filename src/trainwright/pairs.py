"""Claims about runs side by side: the runs are made, and their files compared."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainwright.checkrecords import record_checks
from trainwright.config import RunConfig
from trainwright.contract.judge import Verdict
from trainwright.contract.load import contract_named_by
from trainwright.errors import InputError
from trainwright.recorder import Watcher
from trainwright.rundir import RunDirectory, read_json
from trainwright.runs import execute

STEPS = 100


@dataclass(frozen=True, slots=True)
class Determinism:
    """The pair gates that were decided, the runs that were compared, and the sealed record of that."""

    verdicts: Sequence[Verdict]
    runs: Sequence[RunDirectory]
    record: RunDirectory


def determinism(config: RunConfig, *, runs_dir: Path, watcher: Watcher | None = None) -> Determinism:
    """Make three short runs (the seed, the same seed again, the next one) and judge the contract's pair gates.

    Each takes 100 steps under the configuration's other values. Errors: InputError when there is no contract with a
    gate of kind `pair`, or when a run does not get to its last step.
    """
    contract = contract_named_by(config)
    if contract is None or not any(gate.entry.kind == "pair" for gate in contract.gates):
        raise InputError(f"{config.name}: contract {config.contract!r} has no gate of kind pair to decide")
    seeds = (config.seed, config.seed, config.seed + 1)
    runs = [_short_run(config, seed, runs_dir, watcher) for seed in seeds]
    rows = [_compared(seeds[0], runs[0], seeds[other], runs[other]) for other in (1, 2)]
    environment = read_json(runs[0].environment)
    name = f"{config.name}-determinism"
    record, verdicts = record_checks(name, runs_dir, contract, environment=environment, rows=rows)
    return Determinism(verdicts, runs, record)


def _short_run(config: RunConfig, seed: int, runs_dir: Path, watcher: Watcher | None) -> RunDirectory:
    budget = [f"train.{unit}=null" for unit in ("tokens", "samples", "epochs", "seconds")]
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
