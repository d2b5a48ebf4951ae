"""Promises of a trainable: kept by the toy and every model, and each one broken by a liar of its own."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.acceptance import harness
from tests.liars_of_promises import LIARS
from tests.models import test_trainables
from tests.toys import Toy
from trainwright.accumulation import measured
from trainwright.candidates import Candidate
from trainwright.config import RunConfig
from trainwright.errors import TrainwrightError
from trainwright.promises import PROMISES, check

CUDA = torch.cuda.is_available()


def candidate(model_type: str = "tests.toys:Toy", **changes: Any) -> Candidate:
    values = harness.config(**changes)
    return Candidate(RunConfig.parse({**values, "model": {**values["model"], "type": model_type}}), torch.device("cpu"))


def not_kept(of: Candidate) -> dict[str, str]:
    return {promise.name: promise.seen for promise in check(of).promises if promise.result != "holds"}


def nothing_but_cuda(found: dict[str, str]) -> bool:
    return found == ({} if CUDA else {"cuda": "no CUDA device"})


def test_the_toy_keeps_every_promise() -> None:
    assert nothing_but_cuda(not_kept(candidate()))


@pytest.mark.parametrize("name", [name for name in vars(test_trainables) if name.startswith("Test")])
def test_every_model_keeps_every_promise(name: str, tmp_path: Path) -> None:
    values = getattr(test_trainables, name)().configuration(tmp_path)
    assert nothing_but_cuda(not_kept(Candidate(RunConfig.parse(values), torch.device("cpu"))))


@pytest.mark.parametrize("implementation", ["foreach", "single"])
def test_a_mask_is_not_tried_on_an_optimizer_without_one(implementation: str) -> None:
    found = not_kept(candidate(optimizer__implementation=implementation))
    assert found.pop("masked_step") == "masks_steps is False"
    assert nothing_but_cuda(found)


@pytest.mark.parametrize(("liar", "broken"), LIARS, ids=[liar.__name__ for liar, _ in LIARS])
def test_a_liar_breaks_its_promise_and_no_other(liar: type[Toy], broken: str) -> None:
    found = {
        promise.name
        for promise in check(candidate(f"{liar.__module__}:{liar.__name__}")).promises
        if promise.result == "broken"
    }
    assert found == {broken}


def test_each_promise_has_a_liar() -> None:
    assert {promise for _, promise in LIARS} == set(PROMISES) - {"cuda"}


def test_what_was_seen_says_where_and_what_was_expected() -> None:
    seen = {
        liar: not_kept(candidate(f"tests.liars_of_promises:{liar}"))
        for liar in ("FirstGroupOnly", "Placeless", "Raises")
    }
    assert seen["FirstGroupOnly"]["learning_rate"] == (
        "group 1 of the optimizer has 0.01 after it was set, expected 0.005"
    )
    assert seen["Placeless"]["data_position"].startswith("batch 1 without and after a load: batch.x_bf differs in ")
    assert seen["Raises"]["collect_metrics"].startswith("it raised ValueError: no metrics today (at ")


def test_what_cannot_be_built_is_an_error_and_no_broken_promise() -> None:
    with pytest.raises(TrainwrightError, match="no class with a classmethod build"):
        check(candidate("tests.toys:ToyOptions"))


def test_accumulation_is_measured_in_fp32_whatever_the_precision() -> None:
    assert measured(candidate(train__precision="bf16")) == measured(candidate())


def test_what_was_measured_of_accumulation_is_given_whether_or_not_the_promise_holds() -> None:
    honest, summed = (
        check(candidate(kind)).accumulation for kind in ("tests.toys:Toy", "tests.liars_of_promises:Summed")
    )
    assert honest == measured(candidate())
    assert summed is not None
    assert summed.loss_difference > 0.1
