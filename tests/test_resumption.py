"""Runs that are killed and resumed, held against one that was not: what is equal, and what differs by name."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import pytest

from tests.acceptance import harness
from trainwright.config import RunConfig
from trainwright.errors import InputError
from trainwright.evidence import verify
from trainwright.jsonfile import read_json
from trainwright.metrics import read_checks
from trainwright.resumption import Resumption, rows_to_cut_after, verify_resume

CONTRACT = "training-loop-pretrain-v1"


class Forked:
    """The command in a process of the fork server, which has imported torch already."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._process = harness.start(harness._command, folder, words)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def runs(self) -> bool:
        return self._process.exitcode is None

    def kill(self) -> bool:
        return harness.kill(self._process) < 0

    def finish(self) -> None:
        if (code := harness.finish(self._process)) not in {0, 3}:
            raise InputError(f"exit code {code}")


def config(kind: str = "tests.toys:Toy", contract: str | None = CONTRACT) -> RunConfig:
    values = harness.config(contract=contract)
    return RunConfig.parse({**values, "model": {**values["model"], "type": kind}})


def resumed(kind: str, folder: Path, cuts: int) -> Resumption:
    return verify_resume(
        config(kind), runs_dir=folder, steps=20, cuts=cuts, start=lambda *words: Forked(folder, *words)
    )


def test_runs_killed_at_several_rows_and_resumed_equal_the_uncut_one(tmp_path: Path) -> None:
    told: list[str] = []
    found = verify_resume(
        config(), runs_dir=tmp_path, cuts=3, tell=told.append, start=lambda *words: Forked(tmp_path, *words)
    )
    assert [(v.gate, v.result) for v in found.record.verdicts] == [("GATE-TRAIN-RESUME", "pass")]
    assert read_json(found.record.run.environment)["command"] == sys.argv
    assert [cut.cut for cut in found.cuts] == [0, 9, 18]
    assert [(cut.is_equal, cut.attempts) for cut in found.cuts] == [(True, 2)] * 3
    assert all(cut.cut <= cut.killed_after < 20 for cut in found.cuts)
    assert [len(run.read_steps()) for run in (found.uncut, *(cut.run for cut in found.cuts))] == [20] * 4
    assert len(told) == 4
    assert verify(found.record.run.path) == []
    assert [(row["name"], row["cut"], row["is_equal"]) for row in read_checks(found.record.run.checks)] == [
        ("resume", 0, True),
        ("resume", 9, True),
        ("resume", 18, True),
    ]


@pytest.mark.parametrize(
    ("liar", "named"),
    [
        ("Forgetful", ["train_loss is ", "tensor model."]),
        ("Redraws", ["random stream rng.torch differs in "]),
        ("StepsBack", ["data position source."]),
    ],
)
def test_what_a_resume_does_not_bring_back_is_named(liar: str, named: Sequence[str], tmp_path: Path) -> None:
    [cut] = resumed(f"tests.liars_of_promises:{liar}", tmp_path, 1).cuts
    assert not cut.is_equal
    assert cut.differences[0].startswith("row ")
    assert all(any(text in difference for difference in cut.differences) for text in named), cut.differences


def test_as_many_cuts_as_the_gate_asks_for_do_not_help_a_liar(tmp_path: Path) -> None:
    found = resumed("tests.liars_of_promises:StepsBack", tmp_path, 3)
    assert [cut.attempts for cut in found.cuts] == [2] * 3
    assert [(v.gate, v.result) for v in found.record.verdicts] == [("GATE-TRAIN-RESUME", "fail")]
    assert not found.record.holds


@pytest.mark.parametrize("steps", [6, 7, 20, 33, 1000])
def test_cuts_go_from_the_first_row_to_the_last_but_one_and_none_stands_before_a_checkpoint(steps: int) -> None:
    every = max(2, steps // 5)
    for cuts in range(3, steps // 2 + 1 if steps < 100 else 9):
        rows = rows_to_cut_after(steps, cuts, every)
        assert rows[0] == 0
        assert steps - 3 <= rows[-1] <= steps - 2
        assert rows == sorted(set(rows))
        assert not [row for row in rows if (row + 1) % every == 0]


def test_the_default_cuts_are_as_many_as_were_asked_for() -> None:
    assert rows_to_cut_after(20, 4, 4) == [0, 6, 12, 18]
    assert rows_to_cut_after(20, 1, 4) == [9]


@pytest.mark.parametrize(("steps", "cuts"), [(5, 2), (20, 0), (20, 11)])
def test_too_few_steps_for_the_cuts_are_refused(steps: int, cuts: int, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"--steps {steps} --cuts {cuts}: expected"):
        verify_resume(config(), runs_dir=tmp_path, steps=steps, cuts=cuts)
    assert not list(tmp_path.iterdir())


def test_without_a_gate_over_pairs_there_is_nothing_to_decide(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no gate of kind pair"):
        verify_resume(config(contract=None), runs_dir=tmp_path)


def test_a_run_that_cannot_be_made_is_told_with_what_its_process_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"exit code 2: error: .*no module 'nowhere'"):
        verify_resume(config("nowhere:Class"), runs_dir=tmp_path)
