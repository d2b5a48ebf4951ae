"""Records of checks: what a command that compares runs or probes a machine measured, judged and sealed like a run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from trainwright.contract.judge import Verdict
from trainwright.contract.rules import Contract
from trainwright.contract.run import failing, judge_run
from trainwright.evidence import seal
from trainwright.files import write_atomically
from trainwright.metrics import encode_line
from trainwright.outcome import Outcome
from trainwright.rundir import Result, RunDirectory, create_record, storing, write_json


def record_checks(
    name: str, runs_dir: Path, contract: Contract, *, environment: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> tuple[RunDirectory, Sequence[Verdict]]:
    """Write `rows` as a record below `runs_dir`, judge the gates that it decides, and seal it.

    The verdicts are those of gates over pairs of runs and of probes whose `checks` are among the rows; the others are
    no evidence in the record, and left out of what is given. Errors: StoreError.
    """
    run = create_record(name, runs_dir, contract=contract.text, environment=environment)
    with storing(run.path):
        write_atomically(run.checks, b"".join(encode_line(dict(row)) for row in rows))
        verdicts = judge_run(run)
        decided = [verdict for verdict in verdicts if verdict.kind != "run" and verdict.result != "no_evidence"]
        write_json(run.result, _result(run, verdicts))
        seal(run, verdicts)
    return run, decided


def _result(run: RunDirectory, verdicts: Sequence[Verdict]) -> Result:
    bad = failing(run, verdicts)
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
