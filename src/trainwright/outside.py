"""Work on any contract: by one that is shipped here, by one from outside in a child with limits (see `confined`)."""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, TypeVar

from trainwright.attachments import Attachment, attach
from trainwright.contract.confined import confined
from trainwright.contract.diff import Comparison, compare_files
from trainwright.contract.foreign import judge_log
from trainwright.contract.judge import Verdict
from trainwright.contract.load import read_contract, shipped_contracts
from trainwright.contract.run import judge_run
from trainwright.contract.validate import Problem, validate
from trainwright.errors import InputError
from trainwright.evidence import verify
from trainwright.rundir import RunDirectory
from trainwright.statuses import GateStatus, statuses_of

ResultT = TypeVar("ResultT")


def problems_of(contract: str, against: str | None = None) -> list[Problem]:
    """Give every problem of a contract, as `validate`. Errors: InputError also where a limit ended the child."""
    named = [contract] if against is None else [contract, against]
    return _worked(named, validate, contract, against, gives=list[Problem])


def comparison_of(old: str, new: str) -> Comparison:
    """Compare two contracts, as `compare_files`. Errors: InputError also where a limit ended the child."""
    return _worked([old, new], compare_files, old, new, gives=Comparison)


def verdicts_of_log(log: str, contract: str, given: Sequence[str]) -> list[Verdict]:
    """Judge the log of another tool, as `judge_log`. Errors: InputError also where a limit ended the child."""
    return _worked([contract], judge_log, log, contract, list(given), gives=list[Verdict])


def verdicts_of_run(run: RunDirectory, contract: str | None) -> Sequence[Verdict]:
    """Judge a run, as `judge_run`. Its own contract is from outside too, unless it is one that is shipped."""
    named = str(run.contract) if contract is None else contract
    return _worked([named], judge_run_at, str(run.path), contract, gives=list[Verdict])


def problems_of_evidence(run: RunDirectory, public: Path | None = None) -> list[str]:
    """Check a sealed run, as `verify`. Errors: InputError also where a limit ended the child."""
    return _worked([str(run.contract)], verify_at, str(run.path), str(public) if public else None, gives=list[str])


def statuses_in(file: Path) -> list[GateStatus]:
    """Compute the status of every gate, as `statuses_of`. Errors: InputError also where a limit ended the child."""
    found = _worked([str(file)], statuses_at, str(file), gives=list[dict[str, Any]])
    return [GateStatus.of_document(document) for document in found]


def attached(
    run: RunDirectory, file: Path, gates: Collection[str] = (), public: Path | None = None
) -> tuple[list[GateStatus], Attachment, list[GateStatus]]:
    """Attach a sealed run, as `attach`; give what came of it between the statuses before and after.

    Errors: as `attach`; InputError also where a limit ended the child.
    """
    named, given = [str(file), str(run.contract)], (list(gates), str(public) if public else None)
    before, done, after = _worked(named, attach_at, str(run.path), str(file), *given, gives=tuple[Any, Any, Any])
    return (
        [GateStatus.of_document(document) for document in before],
        Attachment.of_document(done),
        [GateStatus.of_document(document) for document in after],
    )


def judge_run_at(path: str, contract: str | None) -> list[Verdict]:
    """Judge the run in a directory, as `judge_run`."""
    return list(judge_run(RunDirectory(Path(path)), contract))


def verify_at(path: str, public: str | None) -> list[str]:
    return verify(Path(path), public=Path(public) if public else None)


def statuses_at(file: str) -> list[dict[str, Any]]:
    return [status.document() for status in statuses_of(Path(file))]


def attach_at(path: str, file: str, gates: Sequence[str], public: str | None) -> tuple[Any, Any, Any]:
    before = statuses_at(file)
    done = attach(RunDirectory(Path(path)), Path(file), gates=gates, public=Path(public) if public else None)
    return before, done.document(), statuses_at(file)


def _worked(contracts: Sequence[str], work: Callable[..., ResultT], *arguments: Any, gives: Any) -> ResultT:
    """Call `work` here when every contract is ours, else in a child whose result is of type `gives`."""
    theirs = next((contract for contract in contracts if not _is_ours(contract)), None)
    return work(*arguments) if theirs is None else confined(work, *arguments, gives=gives, about=theirs)


def _is_ours(contract: str) -> bool:
    """Tell whether a contract is shipped, or a copy of one as a run keeps it; one that is not there does no harm."""
    if contract in shipped_contracts() or not Path(contract).exists():
        return True
    try:
        text, _ = read_contract(contract)
    except InputError:
        return False
    return any(text == read_contract(name)[0] for name in shipped_contracts())
