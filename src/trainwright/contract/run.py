"""A run judged from its files alone: at its end, during it, or years later in a fresh process."""

from collections.abc import Sequence

from trainwright import yamlfile
from trainwright.contract.facts import load_facts
from trainwright.contract.judge import Verdict, judge
from trainwright.contract.load import load_contract, parse_contract
from trainwright.contract.rules import Contract
from trainwright.errors import InputError
from trainwright.rundir import RunDirectory


def contract_of(run: RunDirectory) -> Contract | None:
    """Give the contract that the run was started under, from its own copy; None for a run that names none.

    Errors: InputError when run.yaml names a contract and the copy is not there: such a run cannot pass unjudged.
    """
    if not run.contract.exists():
        named = yamlfile.load(run.config).data.get("contract")
        if named is not None:
            raise InputError(f"{run.contract}: is missing, and {run.config} names contract {named!r}; put it back")
        return None
    return parse_contract(run.contract.read_text(encoding="utf-8"), str(run.contract))


def judge_run(run: RunDirectory, contract: str | None = None) -> Sequence[Verdict]:
    """Judge by the run's own contract, or by another: a shipped name or a path. No contract: no verdicts."""
    judged_by = contract_of(run) if contract is None else load_contract(contract)
    return judge(judged_by, load_facts(run)) if judged_by else []
