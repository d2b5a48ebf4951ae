"""Claims about runs side by side: the runs are made, and their files compared."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import torch

from trainwright import origins
from trainwright.checkrecords import record_checks
from trainwright.config import RunConfig
from trainwright.contract.judge import Verdict
from trainwright.contract.load import contract_named_by
from trainwright.contract.rules import Contract
from trainwright.environment import describe
from trainwright.errors import InputError
from trainwright.recorder import Watcher
from trainwright.rundir import RunDirectory, read_json
from trainwright.runs import execute

STEPS = 100
Rows = Sequence[Mapping[str, Any]]


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
    """The pair gates that were decided, the runs that were compared, their drift, and the sealed record of that."""

    verdicts: Sequence[Verdict]
    runs: Sequence[RunDirectory]
    drift: Drift
    record: RunDirectory


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
    record, verdicts = recorded(config, contract, "determinism", rows, environment=environment, runs_dir=runs_dir)
    return Determinism(verdicts, made, drift, record)


def accumulation(
    config: RunConfig, figures: Mapping[str, float], device: torch.device, *, runs_dir: Path
) -> tuple[RunDirectory, Sequence[Verdict]]:
    """Seal what was measured of accumulation, and judge the contract's pair gate over it.

    Errors: InputError when there is no contract with a gate of kind `pair`.
    """
    rows = [{"name": "accumulation", "seed": config.seed, **figures}]
    own = {"seed": config.seed, "model_type": config.model.type, "config_sha256": config.sha256()}
    environment = {**describe(device), **own}
    return recorded(config, contract_with_pairs(config), "check", rows, environment=environment, runs_dir=runs_dir)


def contract_with_pairs(config: RunConfig) -> Contract:
    """Give the configuration's contract. Errors: InputError unless it has a gate of kind `pair`."""
    contract = contract_named_by(config)
    if contract is None or not _has_pairs(contract):
        raise InputError(f"{config.name}: contract {config.contract!r} has no gate of kind pair to decide")
    return contract


def decides_pairs(config: RunConfig) -> bool:
    """Tell whether the configuration's contract, where it names one, has a gate of kind `pair`."""
    contract = contract_named_by(config)
    return contract is not None and _has_pairs(contract)


def _has_pairs(contract: Contract) -> bool:
    return any(gate.entry.kind == "pair" for gate in contract.gates)


def recorded(
    config: RunConfig, contract: Contract, what: str, rows: Rows, *, environment: Mapping[str, Any], runs_dir: Path
) -> tuple[RunDirectory, Sequence[Verdict]]:
    """Write comparisons as the record `<run>-<what>`; a row has every column, None where another kind's stands."""
    columns = dict.fromkeys(name for row in rows for name in row)
    whole = [{name: row.get(name) for name in columns} for row in rows]
    return record_checks(f"{config.name}-{what}", runs_dir, contract, environment=environment, rows=whole)


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


def drift_of(runs: Sequence[RunDirectory]) -> Drift:
    """Measure finished runs of equal length against each other, from their rows and their last checkpoints."""
    losses = [[row.train_loss for row in run.read_steps()] for run in runs]
    spreads = [max(step) - min(step) for step in zip(*losses, strict=True)]
    weights = [_last_weights(run) for run in runs]
    cosines = [cosine(one, other) for one, other in combinations(weights, 2)]
    return Drift(len(runs), len(spreads), max(spreads), spreads[-1], min(cosines))


def _last_weights(run: RunDirectory) -> Mapping[str, torch.Tensor]:
    state = origins.of_parent(run).state
    return {
        name: value for name, value in state.items() if name.startswith("model.") and isinstance(value, torch.Tensor)
    }


def cosine(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> float:
    """Give the cosine between two sets of weights, each as one vector, in fp64; exactly 1 for equal bits."""
    pairs = [(tensor.double(), other[name].double()) for name, tensor in one.items() if tensor.is_floating_point()]
    if all(torch.equal(a, b) for a, b in pairs):
        return 1.0
    dot, ours, theirs = (
        math.fsum((a * b).sum().item() for a, b in products)
        for products in (pairs, [(a, a) for a, _ in pairs], [(b, b) for _, b in pairs])
    )
    return dot / math.sqrt(ours * theirs)
