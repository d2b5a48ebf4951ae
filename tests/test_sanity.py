"""Overfitting one batch before step 0: it tells whether the model can learn, and leaves nothing behind."""

import math
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.acceptance import harness
from tests.contract.facts_tables import contract_data
from tests.toys import Samples, Toy, toy
from trainwright import runs, yamlfile
from trainwright.budget import LoopSettings
from trainwright.config import RunConfig
from trainwright.contract.facts import load_facts
from trainwright.contract.load import load_contract
from trainwright.errors import MemoryExhaustedError
from trainwright.metrics import Event
from trainwright.outcome import Outcome
from trainwright.recorder import Recorder, Silent
from trainwright.rundir import RunDirectory
from trainwright.sanity import MOST_UPDATES, Overfit, overfit, overfit_once
from trainwright.schedules import Schedule
from trainwright.state import State

SCHEDULE = Schedule(1e-2, "constant")
SANITY_GATE = "GATE-TRAIN-SANITY"


class Stuck(Toy):
    """Its updates change nothing."""

    def optimizer_step(self, skip: Tensor | None = None) -> None:
        self.step += 1


class Bursting(Toy):
    """Its loss is no number from the third look at a batch on."""

    looks = 0

    def compute_loss(self, predictions: Tensor, batch: Samples) -> tuple[Tensor, int]:
        self.looks += 1
        loss, items = super().compute_loss(predictions, batch)
        return loss * (math.nan if self.looks > 2 else 1.0), items


def built(kind: type[Toy]) -> Toy:
    return kind.build(toy().setup)


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return bool(one.dtype == other.dtype and one.numpy().tobytes() == other.numpy().tobytes())
    return bool(one == other)


def differences(before: State, after: State) -> Sequence[str]:
    changed = [name for name in before.keys() & after.keys() if not equal(before[name], after[name])]
    return sorted([*changed, *(before.keys() ^ after.keys())])


def copied(trainable: Toy) -> dict[str, Any]:
    return {k: v.clone() if isinstance(v, Tensor) else v for k, v in trainable.save_checkpoint().items()}


def ticking(seconds: float) -> Any:
    moments = (seconds * number for number in range(10_000))
    return lambda: next(moments)


def test_a_model_that_can_learn_halves_the_loss_of_one_batch() -> None:
    found = overfit(toy(), SCHEDULE)
    assert (found.outcome, found.steps < MOST_UPDATES) == ("reached", True)
    assert found.last_loss <= found.first_loss / 2


def test_all_is_afterwards_as_it_was_before_bit_for_bit() -> None:
    trainable = toy()
    trainable.next_batch()
    torch.rand(3)
    before = copied(trainable)
    assert overfit(trainable, SCHEDULE, clip_norm=1.0).steps > 0
    assert differences(before, trainable.save_checkpoint()) == []
    assert [p for p in trainable.parameters() if p.grad is not None] == []
    assert trainable.training


def test_a_trainable_that_fails_on_the_way_is_put_back_as_well() -> None:
    trainable = toy()
    before = copied(trainable)

    def clock() -> float:
        if trainable.step:
            raise MemoryExhaustedError
        return 0.0

    with pytest.raises(MemoryExhaustedError):
        overfit(trainable, SCHEDULE, clock=clock)
    assert differences(before, trainable.save_checkpoint()) == []


def test_a_model_that_learns_nothing_gives_up_after_its_updates_or_its_seconds() -> None:
    found = overfit(built(Stuck), SCHEDULE)
    assert (found.outcome, found.steps) == ("not_reached", MOST_UPDATES)
    slow = overfit(built(Stuck), SCHEDULE, clock=ticking(20.0))
    assert (slow.outcome, slow.steps) == ("out_of_time", 2)


def test_a_stop_request_ends_it_before_the_next_update() -> None:
    assert overfit(toy(), SCHEDULE, stopped=lambda: True).steps == 0


def test_a_loss_that_is_no_number_ends_it_and_is_told_as_one() -> None:
    found = overfit(built(Bursting), SCHEDULE)
    assert (found.steps, found.outcome) == (2, "not_reached")
    assert found.detail()["last_loss"] is None
    assert found.detail()["last_loss_nonfinite"] == "nan"


@pytest.mark.parametrize(("last", "outcome"), [(2.0, "reached"), (2.01, "not_reached")])
def test_half_of_the_first_loss_is_enough(last: float, outcome: str) -> None:
    assert Overfit(4.0, last, MOST_UPDATES, 0.0).outcome == outcome


# -- in a run ---------------------------------------------------------------------------------------------------------


def contract_file(folder: Path) -> Path:
    """Write a contract of the shipped gate alone."""
    [gate] = [gate for gate in load_contract("training-loop-pretrain-v1").entry.gates if gate.id == SANITY_GATE]
    data = {**contract_data(), "gates": [gate.model_dump(mode="json", exclude_unset=True)], "metrics": []}
    path = folder / "sanity.yaml"
    path.write_text(yamlfile.dump(data))
    return path


def trained(folder: Path, *, wanted: bool, kind: str = "tests.toys:Toy") -> runs.RunResult:
    values = harness.config(train__steps=20, train__sanity=wanted, contract=str(contract_file(folder)))
    values["model"] = {"type": kind, "n": 320}
    return runs.execute(RunConfig.parse(values), runs_dir=folder / ("with" if wanted else "without"))


def told(run: RunDirectory) -> list[Event]:
    return [event for event in run.read_events() if event.kind == "sanity"]


def test_a_run_with_it_trains_as_one_without_it_bit_for_bit(tmp_path: Path) -> None:
    checked, plain = trained(tmp_path, wanted=True), trained(tmp_path, wanted=False)
    assert [(row.step, row.train_loss, row.grad_norm, row.lr) for row in checked.run.read_steps()] == [
        (row.step, row.train_loss, row.grad_norm, row.lr) for row in plain.run.read_steps()
    ]
    optimizers = [[v.optimizer_state_sha256 for v in result.run.read_validations()] for result in (checked, plain)]
    assert optimizers[0] == optimizers[1]
    assert (len(told(checked.run)), len(told(plain.run))) == (1, 0)
    assert [verdict.result for result in (checked, plain) for verdict in result.verdicts] == ["pass", "not_applicable"]


def test_a_run_that_cannot_learn_one_batch_stops_before_its_budget_is_spent(tmp_path: Path) -> None:
    result = trained(tmp_path, wanted=True, kind="tests.test_sanity:Stuck")
    assert (result.outcome, result.step) == (Outcome.ABORTED, 0)
    assert result.why.startswith(f"{SANITY_GATE}: share_left 1")
    [event] = told(result.run)
    assert (event.step, event.detail["outcome"], event.detail["steps"]) == (0, "not_reached", MOST_UPDATES)


def test_it_is_done_once_a_run(tmp_path: Path) -> None:
    run = trained(tmp_path, wanted=True).run
    with closing(Recorder(run.new_attempt(), Silent())) as recorder:
        overfit_once(run, toy(), LoopSettings(schedule=SCHEDULE), recorder=recorder)
    assert len(told(run)) == 1


def test_the_facts_tell_both_losses_and_one_that_is_no_number(tmp_path: Path) -> None:
    result = trained(tmp_path, wanted=True, kind="tests.test_sanity:Bursting")
    events = load_facts(result.run)["events"].to_pylist()
    [row] = [row for row in events if row["kind"] == "sanity"]
    assert row["first_loss"] > 0
    assert math.isnan(row["last_loss"])
    assert {row["last_loss"] for row in events if row["kind"] != "sanity"} == {None}
    assert result.outcome is Outcome.ABORTED
