"""A run judged from its files alone: at its end, during it, or years later in a fresh process."""

from collections.abc import Sequence
from typing import get_args

from trainwright import yamlfile
from trainwright.contract.facts import load_facts
from trainwright.contract.judge import RUN_ONLY, Verdict, decides_exit, judge
from trainwright.contract.load import load_contract, parse_contract
from trainwright.contract.rules import Contract
from trainwright.contract.schema import Kind
from trainwright.errors import InputError
from trainwright.rundir import RunDirectory


def contract_of(run: RunDirectory) -> Contract | None:
    """Give the contract that the run was started under, from its own copy; None for a run that names none.

    Errors: InputError when run.yaml names a contract and the copy is not there: such a run cannot pass unjudged.
    """
    if not run.contract.exists():
        if run.checks.exists():
            return None
        named = yamlfile.load(run.config).data.get("contract")
        if named is not None:
            raise InputError(f"{run.contract}: is missing, and {run.config} names contract {named!r}; put it back")
        return None
    return parse_contract(run.contract.read_text(encoding="utf-8"), str(run.contract))


def judge_run(run: RunDirectory, contract: str | None = None) -> Sequence[Verdict]:
    """Judge by the run's own contract, or by another: a shipped name or a path. No contract: no verdicts."""
    judged_by = contract_of(run) if contract is None else load_contract(contract)
    return judge(judged_by, load_facts(run), kinds=kinds_of(run)) if judged_by else []


def failing(run: RunDirectory, verdicts: Sequence[Verdict]) -> list[str]:
    """Give the gates that keep a record from its good end; what only warns is none of them."""
    if run.checks.exists():
        return [v.gate for v in decided_in_checks(verdicts) if v.on_fail != "warn" and not v.holds]
    return [verdict.gate for verdict in verdicts if decides_exit(verdict)]


def decided_in_checks(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Give what a record of checks decides: the gates it has evidence for, and of one of probes every probe.

    A comparison of runs is one of several and says nothing of the others; probes are made all at once.
    """
    compares = any(v.kind == "pair" and v.result in {"pass", "fail"} for v in verdicts)
    due = set() if compares else {"probe"}
    return [v for v in verdicts if v.kind != "run" and (v.result != "no_evidence" or v.kind in due)]


def kinds_of(run: RunDirectory) -> frozenset[Kind]:
    """Give the kinds of gates that a record decides: those of a run, or for a record of checks the others."""
    return RUN_ONLY ^ frozenset(get_args(Kind)) if run.checks.exists() else RUN_ONLY
