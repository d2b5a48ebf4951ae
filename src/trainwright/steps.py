"""One optimizer update, and what is known of it: on the host at once, on a device that runs ahead some steps later."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, final

import torch
from torch import Tensor

from trainwright import guards
from trainwright.audits import NOTHING, UNWATCHED, Auditor, Seen, Unwatched, Watch
from trainwright.budget import LoopSettings
from trainwright.clocks import Clock, CudaClock, HostClock
from trainwright.guards import ExplosionGuard
from trainwright.trainable import Trainable

STEPS_IN_FLIGHT = 8  # how many steps may be launched before a row is read
TAKEN_ALL_THE_SAME: tuple[guards.Action | None, ...] = (None, "warn")


@dataclass(frozen=True, slots=True)
class Taken:
    """What is known of a step without asking the device. `epoch` is the pass that it drew from."""

    step: int
    epoch: int
    items: int
    learning_rate: float
    metrics: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Done:
    """A step with its numbers. `problem` tells what is not finite, `action` what the explosion guard did."""

    taken: Taken
    loss: float
    norm: float
    wall_ms: float
    problem: str | None
    action: guards.Action | None
    seen: Seen = NOTHING

    @property
    def ends_run(self) -> bool:
        return self.problem is not None or self.action == "abort"


def _took(problem: str | None, action: guards.Action | None) -> bool:
    """Tell whether the optimizer takes a step of which this is known."""
    return problem is None and action in TAKEN_ALL_THE_SAME


class Stepper(Protocol):
    """Takes steps; each is given back once, in order, when its numbers are known."""

    items_in_flight: int

    @property
    def in_flight(self) -> int:
        """Give the number of steps taken and not given back."""

    def take(self, step: int) -> Sequence[Done]:
        """Take step `step`; give the steps whose numbers are known by now. Errors: DataExhaustedError."""

    def drain(self) -> Sequence[Done]:
        """Wait for the steps in flight and give them; the first that ends the run is the last given."""


def stepper_for(
    trainable: Trainable, settings: LoopSettings, explosion: ExplosionGuard, auditor: Auditor | Unwatched = UNWATCHED
) -> Stepper:
    """Give the stepper for the trainable's device."""
    kind = DeviceStepper if trainable.device.type == "cuda" and trainable.masks_steps else HostStepper
    return kind(trainable, settings, explosion, auditor)


def micro_batches(trainable: Trainable, accumulate: int) -> int:
    """Give how many micro-batches the next step accumulates: no window spans the end of a pass."""
    left = None if accumulate == 1 else trainable.micro_batches_left
    return accumulate if left is None else min(accumulate, left)


def gradients(trainable: Trainable, count: int, watch: Watch | None = None) -> tuple[Tensor, int]:
    """Make the gradient of the mean loss over every item of the step; give that mean, 0-d, and the items."""
    if count == 1:
        batch = _drawn(trainable, watch)
        loss, items = trainable.compute_loss(trainable.forward(batch), batch)
        trainable.backward(loss)
        return loss.detach(), items
    return _accumulated(trainable, count, watch)


def _drawn(trainable: Trainable, watch: Watch | None) -> Any:
    batch = trainable.next_batch()
    if watch is not None:
        watch.see(batch)
    return batch


def _accumulated(trainable: Trainable, count: int, watch: Watch | None) -> tuple[Tensor, int]:
    """Weight each micro-batch by its items, so that unequal ones give the gradient of the one big batch."""
    total, items, first = torch.zeros((), device=trainable.device), 0, 1
    for index in range(count):
        batch = _drawn(trainable, watch)
        loss, weight = trainable.compute_loss(trainable.forward(batch), batch)
        first = weight if index == 0 else first
        trainable.backward(loss * (weight / first))
        total += loss.detach() * weight
        items += weight
    trainable.scale_gradients(first / items)
    return total / items, items


class _Begun(NamedTuple):
    """A step up to its clipped gradients, before the optimizer takes it."""

    watch: Watch | None
    epoch: int
    began: Any
    loss: Tensor
    items: int
    norm: Tensor


class _Steps:
    """What every stepper is made with, and how each begins a step."""

    def __init__(
        self,
        trainable: Trainable,
        settings: LoopSettings,
        explosion: ExplosionGuard,
        auditor: Auditor | Unwatched = UNWATCHED,
    ) -> None:
        self._trainable = trainable
        self._settings = settings
        self._explosion = explosion
        self._auditor = auditor
        self._clock: Clock = HostClock()

    def _begin(self, step: int) -> _Begun:
        trainable, settings = self._trainable, self._settings
        watch = self._auditor.watch(step, self._clock)
        epoch = trainable.epoch
        began = self._clock.mark()
        trainable.learning_rate = settings.schedule.at(step)
        loss, items = gradients(trainable, micro_batches(trainable, settings.accumulate), watch)
        if watch is not None:
            watch.before_update()
        return _Begun(watch, epoch, began, loss, items, trainable.clip_gradients(settings.clip_norm))


@final
class HostStepper(_Steps):
    """For a device whose numbers are at hand: a bad step is seen before the optimizer takes it."""

    in_flight = items_in_flight = 0

    def take(self, step: int) -> Sequence[Done]:
        trainable, explosion = self._trainable, self._explosion
        begun = self._begin(step)
        watch, loss, norm = begun.watch, begun.loss.item(), begun.norm.item()
        problem = guards.not_finite(step, loss, norm)
        action = None if problem else explosion.act(norm, explosion.threshold)
        took = _took(problem, action)
        if took:
            trainable.optimizer_step()
        elif action == "skip":
            trainable.step += 1
        learning_rate = trainable.learning_rate
        trainable.zero_grad()
        wall_ms = self._clock.milliseconds(begun.began, self._clock.mark())
        if watch is not None:
            wall_ms -= watch.paused_ms()
            watch.after_update()
        taken = Taken(step, begun.epoch, begun.items, learning_rate, trainable.collect_metrics())
        seen = self._auditor.conclude(watch, taken=took)
        return (Done(taken, loss, norm, wall_ms, problem, action, seen),)

    def drain(self) -> Sequence[Done]:
        return ()


@dataclass(frozen=True, slots=True)
class _Launched:
    """A step whose loss and gradient norm are on their way from the device."""

    taken: Taken
    watch: Watch | None
    numbers: Tensor
    threshold: float | None
    began: Any
    ended: Any


@final
class DeviceStepper(_Steps):
    """For a device that runs ahead of the host: nothing waits for it.

    A step that is not finite is masked on the device, and so is every later one, until the host has read its row; the
    weights are then those before it. An explosion is skipped by the threshold that the host knew at its launch.
    """

    def __init__(
        self,
        trainable: Trainable,
        settings: LoopSettings,
        explosion: ExplosionGuard,
        auditor: Auditor | Unwatched = UNWATCHED,
    ) -> None:
        super().__init__(trainable, settings, explosion, auditor)
        if trainable.device.type == "cuda":
            self._clock = CudaClock()
        self._masked = torch.zeros((), device=trainable.device)
        self._launched: deque[_Launched] = deque()
        self.items_in_flight = 0

    @property
    def in_flight(self) -> int:
        return len(self._launched)

    def take(self, step: int) -> Sequence[Done]:
        self._launch(step)
        done: list[Done] = []
        while self._launched and (self.in_flight > STEPS_IN_FLIGHT or self._clock.is_past(self._launched[0].ended)):
            done.append(self._settle())
        return done

    def drain(self) -> Sequence[Done]:
        done: list[Done] = []
        while self._launched:
            done.append(self._settle())
        return done

    def _launch(self, step: int) -> None:
        trainable, begun = self._trainable, self._begin(step)
        watch, loss, norm, threshold = begun.watch, begun.loss, begun.norm, self._explosion.threshold
        trainable.optimizer_step(self._mask(loss, norm, threshold))
        learning_rate = trainable.learning_rate
        trainable.zero_grad()
        if watch is not None:
            watch.after_update()
        numbers = self._clock.fetch(torch.stack((loss.double(), norm.double())))
        ended = self._clock.mark()
        taken = Taken(step, begun.epoch, begun.items, learning_rate, trainable.collect_metrics())
        self._launched.append(_Launched(taken, watch, numbers, threshold, begun.began, ended))
        self.items_in_flight += begun.items

    def _mask(self, loss: Tensor, norm: Tensor, threshold: float | None) -> Tensor:
        """Give 1.0 for a step that must change nothing. What is not finite masks every later step as well."""
        bad = ~(torch.isfinite(loss) & torch.isfinite(norm))
        self._masked = torch.maximum(self._masked, bad.to(self._masked.dtype))
        if self._settings.explosion.policy != "skip" or threshold is None:
            return self._masked
        return torch.maximum(self._masked, (norm > threshold).to(self._masked.dtype))

    def _settle(self) -> Done:
        """Read the oldest launched step; when it ends the run, those after it are dropped."""
        launched = self._launched.popleft()
        self.items_in_flight -= launched.taken.items
        wall_ms = self._clock.milliseconds(launched.began, launched.ended)
        if launched.watch is not None:
            wall_ms -= launched.watch.paused_ms()
        loss, norm = launched.numbers.tolist()
        problem = guards.not_finite(launched.taken.step, loss, norm)
        action = None if problem else self._explosion.act(norm, launched.threshold)
        seen = self._auditor.conclude(launched.watch, taken=_took(problem, action))
        done = Done(launched.taken, loss, norm, wall_ms, problem, action, seen)
        if done.ends_run:
            self._launched.clear()
            self.items_in_flight = 0
        return done
