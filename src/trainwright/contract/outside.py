"""Work on any contract: by one that is shipped here, by one from outside in a child with limits (see `confined`)."""

from collections.abc import Sequence
from pathlib import Path

from trainwright.contract.confined import confined
from trainwright.contract.foreign import judge_log
from trainwright.contract.judge import Verdict
from trainwright.contract.load import read_contract, shipped_contracts
from trainwright.contract.run import judge_run
from trainwright.contract.validate import Problem, validate
from trainwright.rundir import RunDirectory


def problems_of(contract: str, against: str | None = None) -> list[Problem]:
    """Give every problem of a contract, as `validate`. Errors: InputError also where a limit ended the child."""
    if contract in shipped_contracts():
        return validate(contract, against)
    return confined(validate, contract, against, gives=list[Problem], about=contract)


def verdicts_of_log(log: str, contract: str, given: Sequence[str]) -> list[Verdict]:
    """Judge the log of another tool, as `judge_log`. Errors: InputError also where a limit ended the child."""
    if contract in shipped_contracts():
        return judge_log(log, contract, given)
    return confined(judge_log, log, contract, list(given), gives=list[Verdict], about=contract)


def verdicts_of_run(run: RunDirectory, contract: str | None) -> Sequence[Verdict]:
    """Judge a run, as `judge_run`. Its own contract is from outside too, unless it is one that is shipped."""
    named = str(run.contract) if contract is None else contract
    if named in shipped_contracts() or not Path(named).is_file() or _is_copy_of_shipped(named):
        return judge_run(run, contract)
    return confined(judge_run_at, str(run.path), contract, gives=list[Verdict], about=named)


def judge_run_at(path: str, contract: str | None) -> list[Verdict]:
    """Judge the run in a directory, as `judge_run`."""
    return list(judge_run(RunDirectory(Path(path)), contract))


def _is_copy_of_shipped(file: str) -> bool:
    text, _ = read_contract(file)
    return any(text == read_contract(name)[0] for name in shipped_contracts())
