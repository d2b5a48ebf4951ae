"""What the loop remembers between steps, all of it in every checkpoint, and how a validation changes it."""

import math
from dataclasses import dataclass

import msgspec

from trainwright import guards
from trainwright.budget import LoopSettings
from trainwright.config import EarlyStoppingSection
from trainwright.metrics import ValidationRow
from trainwright.outcome import Outcome
from trainwright.trainable import Direction, Validation

UNSAID = EarlyStoppingSection(patience=1)  # its other numbers hold without a section in run.yaml


class Ending(msgspec.Struct, frozen=True):
    """Why the loop stops. `outcome` is a label of `outcome.Outcome`."""

    outcome: str
    why: str


@dataclass(frozen=True, slots=True)
class Noted:
    """A validation as taken in: with what the training steps since the one before it came to."""

    validation: Validation
    is_best: bool
    train_loss_mean: float | None
    grad_norm_max: float | None


def _least_gain(validation: Validation, stopping: EarlyStoppingSection) -> float:
    """Give what a validation must gain to count for patience: more than its noise."""
    return max(stopping.min_delta, stopping.standard_errors * (validation.standard_error or 0.0))


def _margin(stopping: EarlyStoppingSection) -> str:
    return f"{stopping.min_delta:g} and {stopping.standard_errors:g} standard errors"


class LoopState(msgspec.Struct):
    """`loss_*` and `norm_max` run since the last validation; `norms` and `skips` are the explosion guard's.

    `fingerprints` are of the weights before the run's first step, `batches` is the digest of the last step's, both for
    the audits.
    """

    first_step: int = 0
    step: int = 0
    epoch: int = 0
    items_seen: int = 0
    loss_sum: float = 0.0
    loss_items: int = 0
    norm_max: float | None = None
    validations: int = 0
    validated_at: int | None = None
    previous: float | None = None
    best: float | None = None
    best_checkpoint: str | None = None
    patience: int = 0
    patience_reference: float | None = None
    norms: list[float] = []
    skips: int = 0
    fingerprints: dict[str, str] = {}
    batches: str | None = None
    ending: Ending | None = None

    def for_a_child(self) -> "LoopState":
        """Give the state in which a new run goes on from this one: its training, and validations of its own."""
        return LoopState(
            first_step=self.step,
            step=self.step,
            epoch=self.epoch,
            items_seen=self.items_seen,
            norms=list(self.norms),
            skips=self.skips,
        )

    def note_step(self, step: int, items: int, loss: float, norm: float) -> None:
        self.step = step + 1
        self.items_seen += items
        if math.isfinite(loss) and math.isfinite(norm):
            self.loss_sum += loss * items
            self.loss_items += items
            self.norm_max = norm if self.norm_max is None else max(self.norm_max, norm)

    def note_validation(self, validation: Validation, direction: Direction, settings: LoopSettings) -> Noted:
        """Take a validation in: best, patience, and whether it ends the run."""
        value, stopping = validation.value, settings.early_stopping or UNSAID
        self.ending = self._problem(value, direction, settings)
        is_best = guards.improves(value, self.best, direction=direction)
        min_delta = _least_gain(validation, stopping)
        if guards.improves(value, self.patience_reference, direction=direction, min_delta=min_delta):
            self.patience, self.patience_reference = 0, value
        else:
            self.patience += 1
        self.validations += 1
        self.validated_at = self.step
        self.previous = value if math.isfinite(value) else self.previous
        self.best = value if is_best else self.best
        enough = self.patience >= stopping.patience and self.validations >= stopping.min_validations
        if settings.early_stopping and enough and self.ending is None:
            why = f"early stop: no gain beyond {_margin(stopping)} in {self.patience} validations"
            self.ending = Ending(Outcome.DONE.label, why)
        mean = self.loss_sum / self.loss_items if self.loss_items else None
        noted = Noted(validation, is_best, mean, self.norm_max)
        self.loss_sum, self.loss_items, self.norm_max = 0.0, 0, None
        return noted

    def _problem(self, value: float, direction: Direction, settings: LoopSettings) -> Ending | None:
        if not math.isfinite(value):
            why: str | None = f"validation at step {self.step} is {value}"
        elif self.validations == 0 and direction == "min":
            why = guards.above_cap(value, settings.first_validation_cap)
        else:
            ratio = settings.divergence_ratio
            why = guards.diverged(value, previous=self.previous, best=self.best, ratio=ratio, direction=direction)
        return Ending(Outcome.ABORTED.label, why) if why else None

    def row(self, noted: Noted, *, epoch: int, checkpoint: str, optimizer_sha256: str, seconds: float) -> ValidationRow:
        """Give the row of the validation that was noted last."""
        return ValidationRow(
            step=self.step,
            epoch=epoch,
            metric=noted.validation.metric,
            value=noted.validation.value,
            n=noted.validation.n,
            standard_error=noted.validation.standard_error,
            best=self.best,
            is_best=noted.is_best,
            patience=self.patience,
            train_loss_mean=noted.train_loss_mean,
            tokens_seen=self.items_seen,
            grad_norm_max=noted.grad_norm_max,
            optimizer_state_sha256=optimizer_sha256,
            wall_seconds=seconds,
            checkpoint=checkpoint,
            measures={n: None if v is None else float(v) for n, v in noted.validation.measures.items()},
        )
