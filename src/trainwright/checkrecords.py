"""Records of checks: what a command that compares runs or probes a machine measured, judged and sealed like a run."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import torch

from trainwright.accumulation import Accumulation
from trainwright.config import RunConfig
from trainwright.contract.judge import Verdict
from trainwright.contract.load import contract_named_by
from trainwright.contract.rules import Contract
from trainwright.contract.run import decided_in_checks, failing, judge_run
from trainwright.environment import describe
from trainwright.errors import InputError
from trainwright.evidence import seal
from trainwright.files import write_atomically
from trainwright.jsonfile import write_json
from trainwright.metrics import encode_line
from trainwright.newruns import create_record, storing
from trainwright.outcome import Outcome
from trainwright.rundir import Result, RunDirectory

Rows: TypeAlias = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Record:
    """A sealed record: its folder, the verdicts that it decides, and whether all hold that do not only warn."""

    run: RunDirectory
    verdicts: Sequence[Verdict]
    holds: bool


def record_checks(
    name: str, runs_dir: Path, contract: Contract, *, environment: Mapping[str, Any], rows: Rows
) -> Record:
    """Write `rows` as a record below `runs_dir`, judge the gates that it decides, and seal it. Errors: StoreError."""
    run = create_record(name, runs_dir, contract=contract.text, environment=environment)
    with storing(run.path):
        write_atomically(run.checks, b"".join(encode_line(dict(row)) for row in rows))
        verdicts = judge_run(run)
        bad = failing(run, verdicts)
        write_json(run.result, _result(run, verdicts, bad))
        seal(run, verdicts)
    return Record(run, decided_in_checks(verdicts), not bad)


def _result(run: RunDirectory, verdicts: Sequence[Verdict], bad: Sequence[str]) -> Result:
    outcome = Outcome.GATE_FAILED if bad else Outcome.DONE
    why = f"does not hold: {', '.join(bad)}" if bad else "every gate that it decides holds"
    return Result(
        run=run.id,
        outcome=outcome.label,
        exit_code=outcome.exit_code,
        why=why,
        step=0,
        best_validation=None,
        attempts=0,
        verdicts=[msgspec.to_builtins(verdict) for verdict in verdicts],
    )


# -- comparisons, for gates of kind pair -----------------------------------------------------------------------------


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


def record_comparison(
    config: RunConfig, contract: Contract, what: str, rows: Rows, *, environment: Mapping[str, Any], runs_dir: Path
) -> Record:
    """Seal comparisons as the record `<run>-<what>`; a row has every column, None where another kind's stands."""
    columns = dict.fromkeys(name for row in rows for name in row)
    whole = [{name: row.get(name) for name in columns} for row in rows]
    return record_checks(f"{config.name}-{what}", runs_dir, contract, environment=environment, rows=whole)


def record_accumulation(config: RunConfig, found: Accumulation, device: torch.device, *, runs_dir: Path) -> Record:
    """Seal what was measured of accumulation, and judge the contract's pair gate over it.

    Errors: InputError when there is no contract with a gate of kind `pair`.
    """
    rows = [{"name": "accumulation", "seed": config.seed, **asdict(found)}]
    own = {"seed": config.seed, "model_type": config.model.type, "config_sha256": config.sha256()}
    environment = {**describe(device), **own}
    contract = contract_with_pairs(config)
    return record_comparison(config, contract, "check", rows, environment=environment, runs_dir=runs_dir)
