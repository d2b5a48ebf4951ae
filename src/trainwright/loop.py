"""The one loop: stop? validate? save? one step; record. It knows a trainable, a recorder and checkpoints; no queue.

All that it remembers is in `LoopState`, and all of that is in every checkpoint.
"""

import math
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from time import perf_counter
from typing import final

import msgspec

from trainwright import guards
from trainwright.audits import Auditor, parameters_at_first
from trainwright.budget import LoopSettings
from trainwright.checkpoints.checkpoints import Checkpoints, superseded
from trainwright.checkpoints.writing import Background, Inline, Saving
from trainwright.errors import DataExhaustedError, InputError, StoreError
from trainwright.illustrations import Illustration
from trainwright.loopstate import Ending, LoopState, Noted
from trainwright.manifest import Checkpoint, Stamp
from trainwright.metrics import StepMetrics, ValidationRow
from trainwright.outcome import Outcome
from trainwright.recorder import Recorder
from trainwright.redaction import redacted
from trainwright.signals import StopRequest
from trainwright.state import State, require
from trainwright.steps import Done, Stepper, stepper_for
from trainwright.timestamps import now
from trainwright.trainable import Trainable

PHASES = ("training", "validation", "checkpoint")


@dataclass(frozen=True, slots=True)
class Ended:
    """The loop's result: the ending, the steps taken, the best validation, and where the run's seconds went.

    `seconds`: training, validation, checkpoint and elapsed, earlier attempts included as far as this one goes on from
    them.
    """

    outcome: Outcome
    why: str
    step: int
    best: float | None
    best_checkpoint: str | None
    seconds: Mapping[str, float]


@final
class Loop:
    """One attempt at a run. `restore` first if the trainable was loaded from a checkpoint, then `run` once.

    `judge` is asked after each validation and `halt` before each step, whether the run is where it should be; a reason
    from either aborts it. `saved` hears of each checkpoint once it counts. `utilisation` gives the GPU's, in percent.
    """

    def __init__(
        self,
        trainable: Trainable,
        settings: LoopSettings,
        *,
        recorder: Recorder,
        checkpoints: Checkpoints,
        stamp: Stamp,
        stop: StopRequest | None = None,
        utilisation: Callable[[], float | None] = lambda: None,
        judge: Callable[[], str | None] = lambda: None,
        halt: Callable[[], str | None] = lambda: None,
        saved: Callable[[], None] = lambda: None,
        stepper: Callable[[Trainable, LoopSettings, guards.ExplosionGuard, Auditor], Stepper] = stepper_for,
    ) -> None:
        self._trainable = trainable
        self._settings = settings
        self._recorder = recorder
        self._checkpoints = checkpoints
        self._stamp = stamp
        self._stop = stop or StopRequest()
        self._utilisation = utilisation
        self._judge = judge
        self._halt = halt
        self._saved = saved
        self._explosion = guards.ExplosionGuard(**dict(settings.explosion))
        self._auditor = Auditor(trainable, settings)
        self._stepper = stepper(trainable, settings, self._explosion, self._auditor)
        self._writer: Background | Inline = Background() if settings.background else Inline()
        self._saving: Saving | None = None
        self._saved_at: int | None = None
        self._metric_names = frozenset(metric.name for metric in trainable.metrics)
        self._measure_names = frozenset(metric.name for metric in trainable.validation_measures)
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._elapsed_before = 0.0
        self._phase = "training"
        self._began = self._phase_began = perf_counter()
        self.state = LoopState()

    def restore(self, state: State, *, of_parent: bool = False) -> None:
        """Take up the loop's part of a checkpoint; the trainable has its own already.

        `of_parent`: it is another run's, whose validations, end and time are not this one's.
        """
        state_of_loop = msgspec.convert(require(state, "loop"), LoopState)
        self.state = state_of_loop.for_a_child() if of_parent else state_of_loop
        self._explosion.restore(self.state.norms, self.state.skips)
        if not of_parent:
            self._saved_at = self.state.step
            self._seconds = msgspec.convert(require(state, "loop_seconds"), dict[str, float])
            self._elapsed_before = self._seconds.pop("elapsed")

    def run(self) -> Ended:
        """Train until something ends it. Errors: StoreError; the newest checkpoint may then be older than the step.

        Whatever the error, a save in flight is concluded first.
        """
        try:
            return self._trained()
        except Exception:
            with suppress(StoreError):
                self._conclude_save()
            raise

    def _trained(self) -> Ended:
        self._began = self._phase_began = perf_counter()
        self._begin_audits()
        if self.state.validated_at == self.state.step:  # a restored validation: what it led to may not be on record
            self._conclude_validation(self.state.step, self.state.ending)
        while True:
            if self._saving is not None and self._saving.written():
                self._conclude_save()
            if self._stop.received is not None:
                return self._stopped_by_signal(self._stop.received)
            if (reason := self._halt()) is not None:
                return self._halted(reason)
            reached = self._budget_reached()
            if self._validation_due(at_end=reached is not None):
                self._validate()
            elif self._checkpoint_due():
                self._save()
            ending = self.state.ending or reached
            if ending is not None:
                return self._end(ending)
            try:
                self._take_in(self._stepper.take(self._next_step))
            except DataExhaustedError as error:
                self._save_once()
                return self._end(self.state.ending or Ending(Outcome.DATA_EXHAUSTED.label, str(error)))

    def _begin_audits(self) -> None:
        """Fingerprint the weights that the run's first step begins from: a later attempt holds its own against them."""
        state = self.state
        if state.step == state.first_step:
            state.fingerprints = parameters_at_first(self._trainable)
        self._auditor.begin(state.fingerprints, state.batches)

    # -- what is due -------------------------------------------------------------------------------------------------

    @property
    def _next_step(self) -> int:
        return self.state.step + self._stepper.in_flight

    def _budget_reached(self) -> Ending | None:
        settings = self._settings
        if settings.ends_at(self._next_step):
            return Ending(Outcome.DONE.label, f"budget of {settings.total_steps} steps reached")
        items = self.state.items_seen + self._stepper.items_in_flight
        if settings.total_items is not None and items >= settings.total_items:
            return Ending(Outcome.DONE.label, f"budget of {settings.total_items} {self._trainable.unit} reached")
        wanted = settings.total_env_steps
        if wanted is not None and (self._trainable.env_steps_learnt or 0) >= wanted:
            return Ending(Outcome.DONE.label, f"budget of {wanted} environment steps reached")
        if settings.max_seconds is not None and self._elapsed() >= settings.max_seconds:
            return Ending(Outcome.DONE.label, f"budget of {settings.max_seconds:g} seconds reached")
        return None

    def _validation_due(self, *, at_end: bool) -> bool:
        step = self._next_step
        if self.state.validated_at == step or self.state.ending is not None:
            return False
        if step == self.state.first_step:
            return self._settings.validate_at_start
        return at_end or self._settings.validates_after(step)

    def _checkpoint_due(self) -> bool:
        step = self._next_step
        return self._settings.saves_after(step) and self._saved_at != step

    # -- steps -------------------------------------------------------------------------------------------------------

    def _take_in(self, steps: Sequence[Done]) -> None:
        for done in steps:
            self._record(done)
            if done.problem or done.action:
                self._leave_event(done)
            if done.ends_run:
                self._trainable.step = self.state.step = done.taken.step

    def _record(self, done: Done) -> None:
        taken, state, unit = done.taken, self.state, self._trainable.unit
        if taken.epoch != state.epoch:
            kind = "wrapped_data" if self._trainable.env_steps_per_epoch is None else "epoch_began"
            self._recorder.event(kind, taken.step, epoch=taken.epoch)
            state.epoch = taken.epoch
        if taken.metrics.keys() != self._metric_names:
            raise InputError(
                f"model type {self._trainable.model_type!r}: collect_metrics gave {sorted(taken.metrics)}, "
                f"declared are {sorted(self._metric_names)}; "
                "declare each in `metrics` and give each at every step"
            )
        rate = taken.items / done.wall_ms * 1000 if done.wall_ms > 0 else math.inf
        row = StepMetrics(
            step=taken.step,
            train_loss=done.loss,
            grad_norm=done.norm,
            lr=taken.learning_rate,
            tokens_per_sec=rate if unit == "tokens" else msgspec.UNSET,
            samples_per_sec=rate if unit == "samples" else msgspec.UNSET,
            gpu_util_pct=self._utilisation(),
            wall_ms=done.wall_ms,
            extra={unit: taken.items, **{n: None if v is None else float(v) for n, v in taken.metrics.items()}},
        )
        self._recorder.step(row)
        if done.seen.audit is not None:
            self._recorder.audit(done.seen.audit)
        state.batches = done.seen.batches
        state.note_step(taken.step, taken.items, done.loss, done.norm)

    def _leave_event(self, done: Done) -> None:
        """Put on record what a guard did; end the run where it says so."""
        step, ratio = done.taken.step, self._settings.explosion.ratio
        if done.problem:
            guard, action, reason = "not_finite", "abort", done.problem
        else:
            guard, action = "explosion", done.action or ""
            reason = f"step {step}: grad_norm {done.norm:.6g} is above {ratio:g} × the running median"
        kind = "skipped_step" if action == "skip" else "guard"
        self._recorder.event(kind, step, guard=guard, action=action, reason=reason, skips=self._explosion.skips)
        if done.ends_run:
            self.state.ending = Ending(Outcome.ABORTED.label, reason)

    # -- validation and checkpoints ----------------------------------------------------------------------------------

    def _validate(self) -> None:
        self._take_in(self._stepper.drain())
        self._conclude_save()  # the validation before may end the run
        state, trainable = self.state, self._trainable
        if state.ending is not None:
            return
        began = perf_counter()
        with self._in_phase("validation"):
            validation = trainable.validate()
        if validation.measures.keys() != self._measure_names:
            raise InputError(
                f"model type {trainable.model_type!r}: validate gave the measures {sorted(validation.measures)}, "
                f"declared are {sorted(self._measure_names)}; "
                "declare each in `validation_measures` and give each at every validation"
            )
        noted = state.note_validation(validation, trainable.validation_metric.direction or "min", self._settings)
        if noted.is_best:
            self._illustrate()
        self._save(noted, perf_counter() - began)

    def _illustrate(self) -> None:
        """Put what the trainable shows of itself on record, in the validation's time."""
        with self._in_phase("validation"):
            panels = self._trainable.illustrate()
            if panels:
                self._recorder.illustration(Illustration(self.state.step, panels))

    def _conclude_validation(self, step: int, ending: Ending | None) -> None:
        """Put on record how a validation that is whole ends the run: by its own `ending`, or by what the judge says.

        Where a later step ended the run while the validation was written, that stays the run's ending.
        """
        if ending is None:
            with self._in_phase("validation"):
                reason = self._judge()
            ending = Ending(Outcome.ABORTED.label, reason) if reason else None
        if ending is not None:
            self.state.ending = self.state.ending or ending
            aborted = ending.outcome == Outcome.ABORTED.label
            self._recorder.event("guard" if aborted else "early_stopped", step, reason=ending.why)

    def _save(self, noted: Noted | None = None, validation_seconds: float = 0.0) -> None:
        """Begin a save; written at once, or while training goes on from a copy, it counts once it is concluded."""
        self._take_in(self._stepper.drain())
        self._conclude_save()  # of the save before: at most one is in flight
        began = perf_counter()
        with self._in_phase("checkpoint"):
            state = self.state
            name = Checkpoint(state.step, self._stamp.attempt).name
            state.best_checkpoint = name if noted and noted.is_best else state.best_checkpoint
            state.norms, state.skips = self._explosion.norms, self._explosion.skips
            row = self._row(noted, name, validation_seconds) if noted else None
            whole = self._writer.held(self._whole_state())
            write = self._checkpoints.prepare(whole, step=state.step, stamp=self._stamp, time=now())
            self._saving = Saving(state.step, row, state.ending is not None, began, self._writer.begin(write))
            self._saved_at = state.step
        if not self._settings.background:
            self._conclude_save()

    def _row(self, noted: Noted, checkpoint: str, seconds: float) -> ValidationRow:
        """Give the row of a validation but for the hash of what is still to be written."""
        epoch = self._trainable.epoch
        return self.state.row(noted, epoch=epoch, checkpoint=checkpoint, optimizer_sha256="", seconds=seconds)

    def _conclude_save(self) -> None:
        """Write the rows that the files rest on, then the manifest that makes them count; then tidy.

        Errors: StoreError of the writing; what it wrote is removed again.
        """
        saving, self._saving = self._saving, None
        if saving is None:
            return
        with self._in_phase("checkpoint"):
            pending = saving.wait()
            if saving.row:
                hashed = msgspec.structs.replace(saving.row, optimizer_state_sha256=pending.optimizer_sha256)
                self._recorder.validation(hashed)
            self._recorder.sync()
            pending.commit()
            detail = {"bytes": pending.size_bytes, "seconds": round(perf_counter() - saving.began, 6)}
            self._recorder.event("checkpoint_saved", saving.step, checkpoint=pending.checkpoint.name, **detail)
            self._retire()
            self._saved()
        if saving.row:
            self._conclude_validation(saving.step, self.state.ending if saving.ends_run else None)

    def _save_once(self) -> None:
        self._take_in(self._stepper.drain())
        if self._saved_at != self.state.step and self.state.ending is None:
            self._save()

    def _whole_state(self) -> State:
        return {
            **self._trainable.save_checkpoint(),
            "loop": msgspec.to_builtins(self.state),
            "loop_seconds": {**self._seconds_so_far(), "elapsed": self._elapsed()},
        }

    def _retire(self) -> None:
        settings = self._settings
        removed = superseded(
            self._checkpoints.candidates(),
            best=self.state.best_checkpoint,
            keep_last=settings.keep_last,
            keep_every=settings.keep_every,
        )
        self._checkpoints.retire(removed)
        for checkpoint in removed:
            self._recorder.event("checkpoint_removed", checkpoint.step, checkpoint=checkpoint.name, reason="retention")

    # -- the end -----------------------------------------------------------------------------------------------------

    def _stopped_by_signal(self, number: int) -> Ended:
        self._save_once()
        name = signal.Signals(number).name
        self._recorder.event("signal", self.state.step, signal=name)
        outcome = Outcome.INTERRUPTED if number == signal.SIGINT else Outcome.TERMINATED
        return self._end(self.state.ending or Ending(outcome.label, f"stopped by {name} after step {self.state.step}"))

    def _halted(self, reason: str) -> Ended:
        self._recorder.event("guard", self.state.step, guard="residency", action="abort", reason=reason)
        return self._end(Ending(Outcome.ABORTED.label, reason))

    def _end(self, ending: Ending) -> Ended:
        self._take_in(self._stepper.drain())
        self._conclude_save()
        ending = self.state.ending or ending
        self._recorder.event("finished", self.state.step, outcome=ending.outcome, why=ending.why)
        self._recorder.sync()
        return self._ended(Outcome.of(ending.outcome), ending.why)

    def broken(self, outcome: Outcome, why: str) -> Ended:
        """End after an error that is an outcome: no save is begun, the newest checkpoint stands."""
        with suppress(StoreError):
            self._recorder.event("finished", self.state.step, outcome=outcome.label, why=why)
        return self._ended(outcome, why)

    def _ended(self, outcome: Outcome, why: str) -> Ended:
        self._enter("training")
        state = self.state
        seconds = {**self._seconds, "elapsed": self._elapsed()}
        return Ended(outcome, redacted(why), state.step, state.best, state.best_checkpoint, seconds)

    # -- where the time goes -----------------------------------------------------------------------------------------

    def _enter(self, phase: str) -> None:
        moment = perf_counter()
        self._seconds[self._phase] += moment - self._phase_began
        self._phase, self._phase_began = phase, moment

    @contextmanager
    def _in_phase(self, phase: str) -> Iterator[None]:
        self._enter(phase)
        try:
            yield
        finally:
            self._enter("training")

    def _seconds_so_far(self) -> dict[str, float]:
        running = perf_counter() - self._phase_began
        return {phase: spent + (running if phase == self._phase else 0.0) for phase, spent in self._seconds.items()}

    def _elapsed(self) -> float:
        return self._elapsed_before + perf_counter() - self._began
