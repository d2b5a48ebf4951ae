"""Can it learn at all? Before step 0 a trainable overfits its first batch, and is then put back as it was."""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any, Final

from trainwright.budget import LoopSettings
from trainwright.metrics import with_siblings
from trainwright.recorder import Recorder
from trainwright.rundir import RunDirectory
from trainwright.schedules import Schedule
from trainwright.trainable import Trainable

MOST_UPDATES: Final = 200
MOST_SECONDS: Final = 60.0
RAISED_EVERY, RAISED_BY = 50, 4.0  # updates; a rate that is right for a long run may be slow for one batch
SHARE: Final = 0.5  # of the first loss; the contract's gate states it as well


@dataclass(frozen=True, slots=True)
class Overfit:
    """What the loss of one batch came to after `steps` updates on it."""

    first_loss: float
    last_loss: float
    steps: int
    seconds: float

    @property
    def outcome(self) -> str:
        """Give `reached`, `not_reached`, or `out_of_time`: too few updates were taken to tell."""
        if self.last_loss <= SHARE * self.first_loss:
            return "reached"
        cut_short = self.steps < MOST_UPDATES and math.isfinite(self.last_loss)
        return "out_of_time" if cut_short else "not_reached"

    def detail(self) -> dict[str, Any]:
        """Give the event's detail."""
        return with_siblings({**asdict(self), "outcome": self.outcome})


def overfit_once(
    run: RunDirectory,
    trainable: Trainable,
    settings: LoopSettings,
    *,
    recorder: Recorder,
    stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Put on record what `overfit` came to, unless it stands there already; one that was stopped came to nothing."""
    if any(event.kind == "sanity" for event in run.read_events()):
        return
    found = overfit(trainable, settings.schedule, clip_norm=settings.clip_norm, stopped=stopped)
    if not stopped():
        recorder.event("sanity", 0, **found.detail())


def overfit(
    trainable: Trainable,
    schedule: Schedule,
    *,
    clip_norm: float | None = None,
    stopped: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = perf_counter,
) -> Overfit:
    """Update on the next micro-batch until its loss is at most half of where it began.

    The rate is the schedule's peak, and four times as much after each 50 updates: what is asked is whether the model
    can learn, not whether the rate is high. At most 200 updates or 60 seconds, less when `stopped` says so or the loss
    is not finite. Weights, optimizer, random streams, data position and step are afterwards as before, bit for bit;
    until then a copy of them is held.
    Errors: those of the trainable.
    """
    with _preserved(trainable):
        batch, began, losses = trainable.next_batch(), clock(), list[float]()
        while True:
            loss, _ = trainable.compute_loss(trainable.forward(batch), batch)
            losses.append(loss.item())
            found = Overfit(losses[0], losses[-1], len(losses) - 1, clock() - began)
            if _is_over(found) or stopped():
                return found
            trainable.learning_rate = schedule.peak * RAISED_BY ** (found.steps // RAISED_EVERY)
            trainable.backward(loss)
            trainable.clip_gradients(clip_norm)
            trainable.optimizer_step()
            trainable.zero_grad()


def _is_over(found: Overfit) -> bool:
    spent = found.steps >= MOST_UPDATES or found.seconds >= MOST_SECONDS
    return spent or found.outcome == "reached" or not math.isfinite(found.last_loss)


@contextmanager
def _preserved(trainable: Trainable) -> Iterator[None]:
    before = copy.deepcopy(dict(trainable.save_checkpoint()))
    try:
        yield
    finally:
        trainable.load_checkpoint(before)
        trainable.zero_grad()
