"""What a run's records come to: an in-toto Statement (v1) whose subjects are the records, with their SHA-256.

Subjects are the closed set of records (`SEALED`). The predicate is made from those files and nothing else: whoever has
them makes it again, and holds it against the one that was sealed.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from trainwright.contract.judge import Verdict
from trainwright.contract.rules import Contract
from trainwright.contract.run import contract_of, kinds_of
from trainwright.devices import device_memory
from trainwright.files import sha256_of_file
from trainwright.metrics import with_siblings
from trainwright.rundir import RunDirectory, read_json

STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Final = "urn:trainwright:run-evidence:1"
SEALED: Final = (
    *("run.yaml", "contract.yaml", "environment.json"),
    *(
        f"attempts/*/{name}"
        for name in ("start.json", "steps.jsonl", "validations.jsonl", "events.jsonl", "audits.jsonl")
    ),
    *("attempts/*/devices.csv", "checks.jsonl"),
    *("checkpoints/*/manifest.json", "checkpoints/*/retired.json"),
    *("steps.jsonl", "validations.jsonl", "events.jsonl", "result.json"),
)
OF_ENVIRONMENT: Final = (
    *("git", "trainwright", "python", "packages", "host", "threads", "cpu_capability", "device", "device_name"),
    *("cuda", "driver", "absent", "seed", "model_type", "parameters", "config_sha256", "hashes", "command"),
)
OF_RESULT: Final = ("outcome", "exit_code", "why", "step", "attempts", "parent")
OF_VERDICT: Final = ("gate", "result", "figures", "bound", "unit", "headroom_percent", "rows", "reason")
CLOSE: Final = 1e-9  # relative; an engine may add up floats in another order


class Subject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    digest: dict[str, str]


class Predicate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the records come to. `not_decided` names the gates that one run cannot decide, with the reason."""

    run: str
    ended: str | None
    result: dict[str, Any]
    contract: dict[str, str] | None
    verdicts: list[dict[str, Any]]
    not_decided: list[dict[str, Any]]
    statistics: dict[str, dict[str, Any]]
    environment: dict[str, Any]


class Statement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    type: str = msgspec.field(name="_type", default=STATEMENT_TYPE)
    subject: list[Subject]
    predicate_type: str = msgspec.field(name="predicateType", default=PREDICATE_TYPE)
    predicate: Predicate


def statement_of(run: RunDirectory, verdicts: Sequence[Verdict]) -> Statement:
    subjects = [Subject(name, {"sha256": value}) for name, value in hashes_of(run).items()]
    return Statement(subject=subjects, predicate=_predicate(run, verdicts))


def hashes_of(run: RunDirectory) -> dict[str, str]:
    """Give name → SHA-256 of every record that is there."""
    files = sorted(file for pattern in SEALED for file in run.path.glob(pattern) if file.is_file())
    return {file.relative_to(run.path).as_posix(): sha256_of_file(file) for file in files}


def _predicate(run: RunDirectory, verdicts: Sequence[Verdict]) -> Predicate:
    result, environment = read_json(run.result), read_json(run.environment)
    contract, events, decided = contract_of(run), run.read_events(), kinds_of(run)
    steps, firsts = run.step_table(), {attempt.start().step for attempt in run.attempts()}
    memory = device_memory(run)
    return Predicate(
        run=result["run"],
        ended=events[-1].time if events else None,
        result={name: result[name] for name in OF_RESULT},
        contract=None if contract is None else _named(contract, run.contract),
        verdicts=[recorded(verdict) for verdict in verdicts if verdict.kind in decided],
        not_decided=[
            {"gate": verdict.gate, "kind": verdict.kind, "reason": verdict.reason}
            for verdict in verdicts
            if verdict.kind not in decided
        ],
        statistics=with_siblings(
            {
                "wall_ms": _wall_ms(steps, firsts),
                "train_loss": _train_loss(steps),
                **({"device_memory_mib": memory} if memory else {}),
            }
        ),
        environment={name: environment[name] for name in OF_ENVIRONMENT if name in environment},
    )


def recorded(verdict: Verdict) -> dict[str, Any]:
    """Give a verdict as the predicate holds it, with a sentence that a person can quote."""
    values = {name: getattr(verdict, name) for name in OF_VERDICT}
    return with_siblings({**values, "sentence": sentence(verdict)})


def sentence(verdict: Verdict) -> str:
    """Say what was measured, over how many rows, against which bound; where nothing was, the reason."""
    unit = f" {verdict.unit}" if verdict.unit else ""
    measured = [f"{name} {value:.6g}{unit}" for name, value in verdict.figures.items() if value is not None]
    if not measured:
        return verdict.reason
    rows = f"{verdict.rows} row" if verdict.rows == 1 else f"{verdict.rows} rows"
    parts = [f"{', '.join(measured)} of {rows}", f"required: {verdict.bound}"]
    headroom = verdict.headroom_percent
    return "; ".join(parts if headroom is None else [*parts, f"headroom {headroom:.3g} %"])


def _named(contract: Contract, file: Path) -> dict[str, str]:
    return {"id": contract.id, "version": contract.version, "sha256": sha256_of_file(file)}


def _wall_ms(steps: Any, firsts: set[int]) -> dict[str, Any]:
    """Give figures of the steady steps in ms; the first of each attempt, which warms up, stands apart."""
    numbers, wall_ms = steps["step"].to_numpy(), steps["wall_ms"].to_numpy()
    measured, first = ~np.isnan(wall_ms), np.isin(numbers, list(firsts))
    steady = wall_ms[measured & ~first]
    warming = zip(numbers[measured & first], wall_ms[measured & first], strict=True)
    return {
        "rows": len(steady),
        "median": _over(np.median, steady),
        "p95": _over(lambda values: np.percentile(values, 95), steady),
        "minimum": _over(np.min, steady),
        "maximum": _over(np.max, steady),
        "first_steps": {str(step): float(value) for step, value in warming},
        "not_measured": len(wall_ms) - int(measured.sum()),
    }


def _train_loss(steps: Any) -> dict[str, Any]:
    """Give figures of the loss; the minimum is that of the finite values."""
    losses = steps["train_loss"].to_numpy()
    finite = losses[np.isfinite(losses)]
    return {
        "rows": len(losses),
        "first": _over(lambda values: values[0], losses),
        "last": _over(lambda values: values[-1], losses),
        "minimum": _over(np.min, finite),
        "difference": _over(lambda values: values[-1] - values[0], losses),
        "not_finite": len(losses) - len(finite),
    }


def _over(how: Callable[[Any], Any], values: Any) -> float | None:
    return float(how(values)) if len(values) else None


def encode(statement: Statement) -> bytes:
    return msgspec.json.format(msgspec.json.encode(statement), indent=2) + b"\n"


def differences(name: str, recorded: Any, again: Any) -> Iterator[str]:
    """Give a line for each value that was recorded otherwise than it is now; `name` stands before its keys."""
    if isinstance(recorded, dict) and isinstance(again, dict):
        for key in dict.fromkeys((*recorded, *again)):
            yield from differences(f"{name} {key}", recorded.get(key), again.get(key))
    elif not _same(recorded, again):
        yield f"{name}: {json.dumps(recorded)} is recorded, the files say {json.dumps(again)}"


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=CLOSE)
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def plain(value: Any) -> Any:
    """Give a value as it stands after its way through JSON."""
    return msgspec.json.decode(msgspec.json.encode(value))
