"""That a resume is exact, for every trainable: a model's tests inherit `ResumeTests` beside `TrainableTests`."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.acceptance import harness
from tests.suites.trainable import Described, stepper_of
from trainwright.candidates import Candidate, stored
from trainwright.equality import bit_differences, entries_of
from trainwright.state import State
from trainwright.trainable import Trainable

STEPS: Final = 12  # of a run that is cut; an epoch ends within them
KILLED_RUN: Final = 3 * STEPS


class ResumeTests(Described):
    """A run that is cut and resumed equals the uncut one bit for bit."""

    def test_resume_is_exact_at_the_first_step_within_an_epoch_and_at_its_end(self, candidate: Candidate) -> None:
        """What is told of each step after the cut, the state at the end, and the batches after it are equal."""
        uncut = candidate.built()
        rows, states = steps_of(candidate, uncut, 0)
        batches = entries_of([uncut.next_batch() for _ in range(3)])
        epochs = [row["epoch"] for row in rows]
        assert epochs[-1] > epochs[0], f"no epoch ends within {STEPS} steps; describe a smaller one"
        end = next(step for step in range(STEPS) if epochs[step] > epochs[0])
        for cut in sorted({1, 2, end // 2, end, min(end + 1, STEPS - 1)} - {0}):
            resumed = candidate.built()
            resumed.load_checkpoint(states[cut - 1])
            again, ends = steps_of(candidate, resumed, cut)
            assert again == rows[cut:], f"cut after step {cut}"
            assert not list(bit_differences(states[-1], ends[-1])), f"cut after step {cut}"
            after = entries_of([resumed.next_batch() for _ in range(3)])
            assert not list(bit_differences(batches, after)), f"cut after step {cut}"

    def test_resume_after_kills_at_random_moments_equals_the_uncut_run(self, tmp_path: Path) -> None:
        values = self.configuration(tmp_path)
        values = {**values, "checkpoint": {"every": 5}, "validate": {**values["validate"], "every": 8}}
        values["train"] = {**values["train"], "steps": KILLED_RUN}
        chance = random.Random(values["model"]["type"])
        row, validation = chance.randrange(KILLED_RUN // 2), chance.randrange(1, 3)
        harness.assert_exact_when_killed(values, tmp_path, ("step", row), ("validation", validation))


def steps_of(candidate: Candidate, made: Trainable, first: int) -> tuple[Sequence[dict[str, Any]], Sequence[State]]:
    """Take steps `first` … STEPS - 1; give what is told of each, less the clock's, and the state after it."""
    stepper, rows, states = stepper_of(candidate, made), [], []
    for step in range(first, STEPS):
        [done] = stepper.take(step)
        told = {"loss": done.loss, "norm": done.norm, "rate": done.taken.learning_rate, "epoch": done.taken.epoch}
        metrics = {name: value for name, value in done.taken.metrics.items() if name not in harness.CLOCK_FIELDS}
        rows.append({**told, **metrics})
        states.append(stored(made))
    return rows, states
