"""What a run's records come to: an in-toto Statement (v1) whose subjects are the records, with their SHA-256.

Subjects are the closed set of records (`SEALED`). The predicate is made from those files and nothing else: whoever has
them makes it again, and holds it against the one that was sealed.
"""

import datetime as dt
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from trainwright.contract.judge import Verdict, figures_told, headroom_told
from trainwright.contract.rules import Contract
from trainwright.contract.run import contract_of, kinds_of
from trainwright.devices import device_memory
from trainwright.errors import InputError
from trainwright.files import sha256_of_file
from trainwright.jsonfile import read_json
from trainwright.metrics import with_siblings
from trainwright.rundir import SEALED, RunDirectory

STAMP: Final = re.compile(r"-(\d{4})(\d{2})(\d{2})-\d{6}-[0-9a-f]{4}$")
STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Final = "urn:trainwright:run-evidence:1"
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

    def verdict_of(self, gate: str) -> dict[str, Any] | None:
        """Give the verdict of a gate; None where the record decides none."""
        return next((verdict for verdict in self.verdicts if verdict["gate"] == gate), None)

    @property
    def device(self) -> str:
        """Give the device that evidence counts for. Errors: InputError where environment.json names none."""
        named = self.environment.get("device_name") or self.environment.get("device")
        if not named:
            raise InputError(f"{self.run}: names no device, and evidence counts for the one that it names")
        return str(named)

    @property
    def day(self) -> dt.date:
        """Give the day on which the run ended; a record of checks, which has no events, was made on that of its id.

        Errors: InputError where neither tells it.
        """
        if self.ended:
            return dt.datetime.fromisoformat(self.ended).date()
        stamp = STAMP.search(self.run)
        if stamp is None:
            raise InputError(f"{self.run}: neither its events nor its id tell the day of the run")
        return dt.date(*map(int, stamp.groups()))


class Statement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """evidence.json: an in-toto Statement (v1); the subjects are the sealed records, the predicate what they say."""

    type: str = msgspec.field(name="_type", default=STATEMENT_TYPE)
    subject: list[Subject]
    predicate_type: str = msgspec.field(name="predicateType", default=PREDICATE_TYPE)
    predicate: Predicate


def statement_of(run: RunDirectory, verdicts: Sequence[Verdict]) -> Statement:
    """Make the statement of a run that has its result, from its files and the verdicts that were judged from them.

    Errors: InputError and DataError for a record that is missing or broken; OSError for one that cannot be read.
    """
    subjects = [Subject(name, {"sha256": value}) for name, value in hashes_of(run).items()]
    return Statement(subject=subjects, predicate=_predicate(run, verdicts))


def read_statement(path: Path) -> Statement:
    """Read evidence.json. Errors: InputError, with its name, when it cannot be read or is no evidence of a run."""
    try:
        statement = msgspec.json.decode(path.read_bytes(), type=Statement)
    except OSError as error:
        raise InputError(f"{path.name}: cannot be read: {error.strerror}") from error
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InputError(f"{path.name}: is no evidence of a run: {error}") from error
    said = statement.predicate
    if any(not isinstance(verdict.get("gate"), str) for verdict in (*said.verdicts, *said.not_decided)):
        raise InputError(f"{path.name}: is no evidence of a run: a verdict in it names no gate")
    return statement


def irregular_records(run: RunDirectory) -> list[str]:
    """Give the names of records that are no files, as a pipe: to open one could wait for ever."""
    found = (file for pattern in SEALED for file in run.path.glob(pattern) if not file.is_file())
    return sorted(file.relative_to(run.path).as_posix() for file in found)


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
        contract=None if contract is None else _contract_identity(contract, run.contract),
        verdicts=[verdict_record(verdict) for verdict in verdicts if verdict.kind in decided],
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


def verdict_record(verdict: Verdict) -> dict[str, Any]:
    """Give a verdict as the predicate holds it, with a sentence that a person can quote."""
    values = {name: getattr(verdict, name) for name in OF_VERDICT}
    return with_siblings({**values, "sentence": sentence(verdict)})


def sentence(verdict: Verdict) -> str:
    """Say what was measured, over how many rows, against which bound; where nothing was, the reason."""
    measured = figures_told(verdict.figures, verdict.unit)
    if not measured:
        return verdict.reason
    rows = f"{verdict.rows} row" if verdict.rows == 1 else f"{verdict.rows} rows"
    parts = [f"{measured} of {rows}", f"required: {verdict.bound}", headroom_told(verdict.headroom_percent)]
    return "; ".join(part for part in parts if part)


def _contract_identity(contract: Contract, file: Path) -> dict[str, str]:
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


def value_differences(name: str, recorded: Any, again: Any) -> Iterator[str]:
    """Give a line for each value that was recorded otherwise than it is now; `name` stands before its keys."""
    if isinstance(recorded, dict) and isinstance(again, dict):
        for key in dict.fromkeys((*recorded, *again)):
            yield from value_differences(f"{name} {key}", recorded.get(key), again.get(key))
    elif not _same(recorded, again):
        yield f"{name}: {json.dumps(recorded)} is recorded, the files say {json.dumps(again)}"


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=CLOSE)
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def plain(value: Any) -> Any:
    """Give a value as it stands after its way through JSON."""
    return msgspec.json.decode(msgspec.json.encode(value))
