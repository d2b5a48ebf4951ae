"""What every trainable must do, in ten checks: a model's tests inherit `TrainableTests` and describe a small one."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import torch

from tests.loops import run_loop
from tests.suites.insides import (
    MEMBERS,
    copied,
    gradients_of,
    misfit,
    module,
    nan_in_gradient,
    norm_of,
    places,
    plantings,
    rows_of,
    seeded_loss,
    silently_missed,
    slope,
    tensors_of,
    through_a_store,
    weights_and_moments,
)
from trainwright import environment
from trainwright.budget import check_metrics, loop_settings
from trainwright.candidates import Candidate, after_updates, backward, stored, trained_tensors, update
from trainwright.config import RunConfig
from trainwright.equality import bit_differences, entries_of
from trainwright.guards import ExplosionGuard
from trainwright.illustrations import Illustration
from trainwright.optimizers import ADAMW_ENTRIES
from trainwright.outcome import Outcome
from trainwright.state import under_prefix, weights_in
from trainwright.steps import HostStepper
from trainwright.torch_trainable import to_device
from trainwright.trainable import Trainable

CPU, META = torch.device("cpu"), torch.device("meta")
NAME: Final = re.compile("[a-z][a-z0-9_]*")


def stepper_of(candidate: Candidate, made: Trainable) -> HostStepper:
    guard = ExplosionGuard("off", ratio=10.0, window=10, max_skips=0)
    return HostStepper(made, loop_settings(candidate.config, made), guard)


class Described:
    """Base of both suites: a model's class overrides `configuration`."""

    def configuration(self, folder: Path) -> dict[str, Any]:
        """Give run.yaml as a mapping, of a trainable whose updates take milliseconds; `folder` is for its data."""
        raise NotImplementedError("a model's class gives the configuration of a small one")

    @pytest.fixture
    def candidate(self, tmp_path: Path) -> Iterator[Candidate]:
        config = RunConfig.parse(self.configuration(tmp_path)).resolved()
        with environment.deterministic(config, CPU):
            yield Candidate(config, CPU)


class TrainableTests(Described):
    """Ten checks, each on trainables of its own."""

    def test_protocol_conformance(self, candidate: Candidate) -> None:
        """All that the loop asks for is there, of the declared type, and true of the tensors."""
        made = candidate.built()
        assert [problem for name in MEMBERS if (problem := misfit(made, name))] == []
        assert (made.step, made.learning_rate) == (0, candidate.config.train.learning_rate)
        assert made.parameter_count == sum(tensor.numel() for tensor in trained_tensors(made).values())
        for told in (made.architecture, made.interface):
            assert json.loads(json.dumps(told)) == told
        assert all(re.fullmatch("[0-9a-f]{64}", told) for told in made.data_hashes.values())
        assert all(math.isfinite(value) for value in made.baselines.values())
        assert made.micro_batches_left is None or made.micro_batches_left >= 1
        other = candidate.built(seed=candidate.other_seed)
        assert other.architecture == made.architecture
        assert list(bit_differences(weights_in(stored(made)), weights_in(stored(other))))

    def test_forward(self, candidate: Candidate) -> None:
        """It gives finite numbers for each row of a batch, by that row alone, the same each time; changes nothing."""
        made, size = candidate.built(), candidate.config.train.batch_size
        batch = made.next_batch()
        seen, before = copied(tensors_of(batch)), stored(made)
        with torch.random.fork_rng(devices=()):
            first, second = (tensors_of(made.forward(batch)) for _ in map(torch.manual_seed, (0, 0)))
        assert not list(bit_differences(first, second))
        assert {len(tensor) for tensor in (*first.values(), *seen.values())} == {size}
        assert [name for name, tensor in first.items() if not torch.isfinite(tensor).all()] == []
        assert not list(bit_differences(seen, tensors_of(batch)))
        assert not list(bit_differences(before, stored(made)))
        assert not gradients_of(made)
        module(made).eval()
        parts = [rows_of(batch, rows) for rows in (slice(None), slice(size // 2), slice(size // 2, None))]
        predictions = [made.forward(part) for part in parts]
        whole, first, second = map(tensors_of, predictions)
        for name, tensor in whole.items():
            torch.testing.assert_close(torch.cat((first[name], second[name])), tensor, rtol=1e-4, atol=1e-5)
        losses = [made.compute_loss(*told) for told in zip(predictions, parts, strict=True)]
        (mean, items), *halves = [(loss.item(), items) for loss, items in losses]
        assert mean * items == pytest.approx(sum(loss * count for loss, count in halves), rel=1e-4, abs=1e-6)
        assert items == sum(count for _, count in halves)

    def test_backward(self, candidate: Candidate) -> None:
        """It leaves the slope of the loss in every trained tensor, finite, added to what was there; nothing else."""
        made = candidate.built()
        batch = made.next_batch()
        before = stored(made)
        with torch.random.fork_rng(devices=()):
            loss, items = seeded_loss(made, batch)
            made.backward(loss)
            gradients = copied(gradients_of(made))
            assert (loss.dim(), math.isfinite(loss.item()), type(items), items > 0) == (0, True, int, True)
            assert gradients.keys() == trained_tensors(made).keys()
            assert [name for name, gradient in gradients.items() if not torch.isfinite(gradient).all()] == []
            assert [name for name, gradient in gradients.items() if not gradient.any()] == []
            length = norm_of(gradients)
            assert slope(made, batch, gradients) == pytest.approx(length, rel=0.02)
            made.backward(seeded_loss(made, batch)[0])
        assert not list(bit_differences({**before, "rng.torch": None}, {**stored(made), "rng.torch": None}))
        for name, gradient in gradients_of(made).items():
            torch.testing.assert_close(gradient, 2 * gradients[name], rtol=1e-3, atol=1e-6)
        assert made.clip_gradients(length / 2).item() == pytest.approx(2 * length, rel=1e-4)
        assert norm_of(gradients_of(made)) == pytest.approx(length / 2, rel=1e-4)

    def test_optimizer_step(self, candidate: Candidate) -> None:
        """It moves every trained tensor by the rate that was set, and its moments; a masked one moves nothing."""
        made = candidate.built()
        backward(made, made.next_batch())
        before = copied(trained_tensors(made))
        made.learning_rate = 0.0
        made.optimizer_step()
        assert not list(bit_differences(before, trained_tensors(made)))
        made.learning_rate = 1e-3
        made.optimizer_step()
        assert {name for name, _ in bit_differences(before, trained_tensors(made))} == before.keys()
        moments = under_prefix("optimizer", stored(made)).keys() - {"groups"}
        assert moments == {f"{name}.{entry}" for name in before for entry in ADAMW_ENTRIES}
        masked = stored(made)
        made.optimizer_step(skip=torch.ones(()))
        assert made.step == 3
        assert not list(bit_differences({**masked, "step": 3}, stored(made)))
        made.zero_grad()
        assert not any(gradient.any() for gradient in gradients_of(made).values())

    def test_checkpoint_save(self, candidate: Candidate) -> None:
        """What is saved is whole and comes back from a store as it was; saving changes nothing."""
        never_saved = stored(after_updates(candidate, 2))
        made = candidate.built()
        for _ in range(2):
            update(made)
            state = made.save_checkpoint()
        assert {name.partition(".")[0] for name in state} >= {"model", "optimizer", "rng", "source", "step"}
        assert state["step"] == 2
        back = through_a_store(state)
        parameters = {f"model.{name}": tensor for name, tensor in made.named_parameters()}
        assert not list(bit_differences(parameters, {name: back[name] for name in parameters}))
        assert not list(bit_differences(never_saved, back))

    def test_checkpoint_load(self, candidate: Candidate) -> None:
        """All of it is taken over, whatever was there; a missing entry is refused; nothing is shared."""
        begun = through_a_store(candidate.built().save_checkpoint())
        made = after_updates(candidate, 2)
        state = through_a_store(made.save_checkpoint())
        kept = copied(tensors_of(state))
        other, again = after_updates(candidate, 1, seed=candidate.other_seed), after_updates(candidate, 1)
        for one, given in ((other, begun), (other, state), (again, begun), (again, state)):
            one.load_checkpoint(given)
            assert not list(bit_differences(given, stored(one)))
        for _ in range(3):
            assert not list(bit_differences(entries_of(made.next_batch()), entries_of(again.next_batch())))
        update(again)
        assert not list(bit_differences(kept, tensors_of(state)))
        assert list(silently_missed(again, state)) == []

    def test_metrics(self, candidate: Candidate) -> None:
        """Those given are those declared, finite or None, at every step and validation; asking changes nothing."""
        made = candidate.built()
        check_metrics(made)
        for _ in range(4):
            update(made)
            before, given = stored(made), dict(made.collect_metrics())
            assert set(given) == {metric.name for metric in made.metrics}
            assert [name for name, value in given.items() if value is not None and not math.isfinite(value)] == []
            validation, modes = made.validate(), {part.training for part in module(made).modules()}
            assert (made.validate(), modes) == (validation, {True})
            shown = msgspec.json.encode(Illustration(made.step, made.illustrate()))
            assert msgspec.json.encode(msgspec.json.decode(shown, type=Illustration)) == shown
            assert {part.training for part in module(made).modules()} == {True}
            assert not list(bit_differences(before, stored(made)))
        assert validation.metric == made.validation_metric.name
        assert made.validation_metric.direction in {"min", "max"}
        assert math.isfinite(validation.value)
        assert validation.n > 0
        assert set(validation.measures) == {metric.name for metric in made.validation_measures}
        assert all(NAME.fullmatch(name) for name in validation.measures)
        assert all(value is None or math.isfinite(value) for value in validation.measures.values())

    def test_training_step(self, candidate: Candidate) -> None:
        """A step of the loop tells the loss, norm and rate of what it did; updates on one batch lower its loss."""
        made = candidate.built()
        [done] = stepper_of(candidate, made).take(0)
        told = candidate.built()
        batch = told.next_batch()
        loss, items = told.compute_loss(told.forward(batch), batch)
        told.backward(loss)
        assert (done.loss, done.taken.items, done.problem) == (loss.item(), items, None)
        assert done.norm == pytest.approx(norm_of(gradients_of(told)), rel=1e-5)
        told.learning_rate = done.taken.learning_rate
        told.clip_gradients(candidate.config.train.clip_norm)
        told.optimizer_step()
        assert done.taken.learning_rate == made.learning_rate > 0
        assert not list(bit_differences(weights_and_moments(made), weights_and_moments(told)))
        losses = [update(told, batch) for _ in range(3)]
        assert losses[-1] < losses[0]

    def test_device_transfer(self, candidate: Candidate) -> None:
        """Every tensor reports the device; one built on another takes over the state, and all of it is there."""
        made = candidate.built()
        update(made)
        assert places(made, made.next_batch()) == {CPU}
        plain = RunConfig.from_document(candidate.config.document_with(["optimizer.implementation=foreach"]))
        moved = Candidate(plain, META).built()
        moved.load_checkpoint(stored(made))
        batch = moved.next_batch()
        predictions = moved.forward(batch)
        loss, _ = moved.compute_loss(predictions, batch)
        moved.backward(loss)
        norm = moved.clip_gradients(1.0)
        assert moved.device == META
        assert places(moved, (batch, predictions, loss, norm, gradients_of(moved))) == {META}
        moved.optimizer_step()
        assert places(moved, to_device(made.next_batch(), META)) == {META}

    def test_nan_detection(self, candidate: Candidate, tmp_path: Path) -> None:
        """A NaN in any weight, gradient or batch stops the loop before the optimizer step, and is on record."""
        made = after_updates(candidate, 1)
        state = stored(made)
        for where, planted in plantings(made).items():
            made.load_checkpoint(state)
            with planted:
                before = weights_and_moments(made)
                [done] = stepper_of(candidate, made).take(made.step)
                assert "stopped before the optimizer took the step" in (done.problem or ""), where
                assert (made.step, done.ends_run) == (1, True)
                assert not list(bit_differences(before, weights_and_moments(made))), where
        made = candidate.built()
        with nan_in_gradient(next(iter(trained_tensors(made).values()))):
            finished = run_loop(made, loop_settings(candidate.config, made), tmp_path / "runs")
        assert (finished.ended.outcome, finished.ended.step, made.step) == (Outcome.ABORTED, 0, 0)
        assert finished.kinds()[-2:] == ["guard", "finished"]
