"""The suite of every trainable, held against known ones: the toy passes it, and each liar fails its check."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests import liars_of_promises as liars
from tests.acceptance import harness
from tests.models import test_trainables
from tests.suites.resumes import ResumeTests
from tests.suites.trainable import TrainableTests
from tests.toys import Toy
from trainwright.candidates import Candidate
from trainwright.config import RunConfig
from trainwright.models.table import BUILT_IN

CHECKS = [
    *("test_protocol_conformance", "test_forward", "test_backward", "test_optimizer_step", "test_checkpoint_save"),
    *("test_checkpoint_load", "test_metrics", "test_training_step", "test_device_transfer", "test_nan_detection"),
]
RESUME = "test_resume_is_exact_at_the_first_step_within_an_epoch_and_at_its_end"
FAILS: dict[type[Toy], str] = {
    liars.SeedOfNought: "test_protocol_conformance",
    liars.Summed: "test_forward",
    liars.Drifts: "test_forward",
    liars.Unreached: "test_backward",
    liars.ClipsTooLittle: "test_backward",
    liars.StepsByTwo: "test_optimizer_step",
    liars.KeepsGradients: "test_optimizer_step",
    liars.FirstGroupOnly: "test_optimizer_step",
    liars.OnlyCounts: "test_optimizer_step",
    liars.Unmasked: "test_optimizer_step",
    liars.Placeless: "test_checkpoint_save",
    liars.AddsAtLoad: "test_checkpoint_load",
    liars.Redraws: "test_checkpoint_load",
    liars.StepsBack: "test_checkpoint_load",
    liars.StaysInEvaluation: "test_metrics",
    liars.DrawsInValidation: "test_metrics",
    liars.NoisyValidation: "test_metrics",
    liars.Misnamed: "test_metrics",
    liars.DrawsToIllustrate: "test_metrics",
    liars.ShowsNoPanel: "test_metrics",
    liars.UsedByASet: "test_protocol_conformance",
    liars.Undeclared: "test_metrics",
    liars.Raises: "test_metrics",
    liars.NoisyWeights: "test_training_step",
    liars.Elsewhere: "test_device_transfer",
    liars.NormOfOne: "test_nan_detection",
    liars.Forgetful: RESUME,
}


class TestToy(TrainableTests):
    def configuration(self, folder: Path) -> dict[str, Any]:
        return harness.config()


def fails(check: str, liar: type[Toy], folder: Path) -> bool:
    values = harness.config()
    values["model"] = {**values["model"], "type": f"{liar.__module__}:{liar.__name__}"}
    candidate = Candidate(RunConfig.parse(values).resolved(), torch.device("cpu"))
    suite = ResumeTests() if check == RESUME else TrainableTests()
    try:
        getattr(suite, check)(candidate, *([folder] if check == "test_nan_detection" else []))
    except Exception:  # noqa: BLE001  a liar may raise anything
        return True
    return False


@pytest.mark.parametrize(("liar", "check"), FAILS.items())
def test_a_liar_fails_its_check_where_the_toy_does_not(liar: type[Toy], check: str, tmp_path: Path) -> None:
    assert not fails(check, Toy, tmp_path)
    assert fails(check, liar, tmp_path)


def test_the_checks_are_ten_and_a_liar_fails_each() -> None:
    assert [name for name in vars(TrainableTests) if name.startswith("test_")] == CHECKS
    assert set(FAILS.values()) == {*CHECKS, RESUME}
    assert FAILS.keys() >= {liar for liar, _ in liars.LIARS}


def test_every_model_of_the_table_has_its_class() -> None:
    described = {name.removeprefix("Test").lower() for name in vars(test_trainables) if name.startswith("Test")}
    assert described == {name.replace("_", "") for name in BUILT_IN}
