"""A step looked at from outside the trainable: its gradients, how its weights moved, and its batches.

Nothing here asks a trainable what it did. Rates are read from the optimizer's state as a checkpoint holds it, and
from the weights; the norm from the gradients themselves. It changes no weight, no random stream and no position.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, final

import torch
from torch import Tensor

from trainwright import rng
from trainwright.budget import LoopSettings
from trainwright.clocks import Clock
from trainwright.digests import digest, fingerprints, on_host, row_digests, sampled, tensors_of
from trainwright.metrics import Audit
from trainwright.optimizers import applied_rate, told_rate
from trainwright.state import State, under_prefix
from trainwright.trainable import Trainable

COPIED_ELEMENTS: Final = 1 << 20  # of the tensor that tells a group's rate
HELD_OUT_ROWS: Final = 4_096
NAMED: Final = 5  # unchanged tensors that a row names


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of a step: the digest of its batches where one is needed, and its audit where one is due."""

    batches: str | None = None
    audit: Audit | None = None


NOTHING: Final = Seen()


def due(settings: LoopSettings, step: int) -> bool:
    """Tell whether a validation or a periodic checkpoint follows the step, or a budget of steps ends with it.

    The first step and each whose count is a power of two are audited as well: nobody knows the last step of a budget in
    seconds, or which steps are skipped, and the shortest run has an audit.
    """
    taken = step + 1
    power_of_two = taken & step == 0
    return power_of_two or settings.validates_after(taken) or settings.saves_after(taken) or settings.ends_at(taken)


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Digests of rows that validation reads, and the share of these rows that repeats another of them."""

    rows: frozenset[bytes]
    repeats: float


@final
class Unwatched:
    """Looks at no step: for what is measured on the way to a run, and is no record."""

    def watch(self, _step: int, _clock: Clock) -> None:
        return None

    def conclude(self, _watch: object, *, taken: bool) -> Seen:  # noqa: ARG002  as the auditor's
        return NOTHING


UNWATCHED: Final = Unwatched()


@final
class Auditor:
    """Watches the steps that are due, and keeps what an audit holds a step against.

    `begin` before the first step. What is kept of a run's steps is plain, for a checkpoint to hold.
    """

    def __init__(self, trainable: Trainable, settings: LoopSettings) -> None:
        self.trainable = trainable
        self.settings = settings
        self.at_first: Mapping[str, str] = {}
        self.groups: Sequence[Mapping[str, Any]] = ()
        self._batches_before: str | None = None
        self._held_out: HeldOut | None = None

    def begin(self, at_first: Mapping[str, str], batches_before: str | None) -> None:
        """Take up the fingerprints of the weights at the run's first step and the digest of the last step's batches."""
        self.at_first, self._batches_before = at_first, batches_before

    def watch(self, step: int, clock: Clock) -> "Watch | None":
        """Watch a step that is due, or whose batches the next is held against; None for any other."""
        audited = due(self.settings, step)
        if not audited and not due(self.settings, step + 1):
            return None
        return Watch(self, step, clock, audited=audited)

    def conclude(self, watch: "Watch | None", *, taken: bool) -> Seen:
        """Give what was seen of a step whose numbers are known. Called for each step, in order; `taken`: it counts."""
        before, self._batches_before = self._batches_before, None
        if watch is None:
            return NOTHING
        batches = self._batches_before = watch.batches()
        return Seen(batches, watch.audit(batches, before) if watch.audited and taken else None)

    def held_out(self) -> HeldOut | None:
        """Digest the first 4,096 rows that validation reads, once; None where it reads none."""
        batches = getattr(getattr(self.trainable, "source", None), "validation_batches", None)
        if self._held_out is None and batches is not None:
            with rng.preserved(self.trainable.device):
                self._held_out = _held_out_of(batches())
        return self._held_out


def _held_out_of(batches: Iterator[Any]) -> HeldOut | None:
    rows: list[bytes] = []
    for batch in batches:
        found = row_digests(list(tensors_of(batch)))
        if found is None:
            return None
        rows += found
        if len(rows) >= HELD_OUT_ROWS:
            break
    distinct = frozenset(rows[:HELD_OUT_ROWS])
    return HeldOut(distinct, 1 - len(distinct) / min(len(rows), HELD_OUT_ROWS)) if rows else None


@final
class Watch:
    """One step, from its batches to the weights after it. What it costs is in `paused_ms`, to be left out of the step.

    Nothing waits for a device: `batches` and `audit` are called once the step's own numbers are known.
    """

    def __init__(self, auditor: Auditor, step: int, clock: Clock, *, audited: bool) -> None:
        self.audited = audited
        self._auditor, self._step, self._clock = auditor, step, clock
        self._pauses: list[tuple[Any, Any]] = []
        self._drawn: list[list[Tensor]] = []
        self._norm: Tensor | None = None
        self._copies: dict[str, Tensor] = {}
        self._moved: list[tuple[float, Tensor | None]] = []
        self._weights: dict[str, Tensor] = {}

    def see(self, batch: Any) -> None:
        """Copy a micro-batch as it was drawn, before the model can change it."""
        with self._paused():
            self._drawn.append([on_host(tensor) for tensor in tensors_of(batch)])

    def before_update(self) -> None:
        """Take the norm of the gradients, and copy the tensor that will tell each group's rate. Before clipping."""
        if self.audited:
            with self._paused():
                trained = self._trained()
                self._norm = global_norm(trained.values())
                groups = self._auditor.groups or groups_in(self._auditor.trainable.save_checkpoint())
                chosen = (telling_tensor(group, trained) for group in groups)
                self._copies = {name: trained[name].detach().clone() for name in chosen if name is not None}

    def after_update(self) -> None:
        """Infer the rates, and copy the sample of each tensor that its fingerprint is made of."""
        if self.audited:
            with self._paused():
                state = self._auditor.trainable.save_checkpoint()
                trained, groups = self._trained(), groups_in(state)
                self._auditor.groups = groups
                self._norm = None if self._norm is None else on_host(self._norm)
                self._moved = [(float(group["lr"]), self._rate(group, trained, state)) for group in groups]
                self._weights = {name: on_host(sampled(tensor)) for name, tensor in trained.items()}
                self._copies = {}

    def paused_ms(self) -> float:
        return sum(self._clock.milliseconds(began, ended) for began, ended in self._pauses)

    def batches(self) -> str | None:
        """Digest the step's batches; None where they hold no tensor."""
        tensors = list(chain.from_iterable(self._drawn))
        return digest(tensors) if tensors else None

    def audit(self, batches: str | None, batches_before: str | None) -> Audit:
        """Give the row of a step that was taken, on batches of this digest after those of the step before."""
        auditor, unchanged, rows = self._auditor, self._unchanged(), self._rows()
        held_out = auditor.held_out() if rows is not None else None
        rates = [lr for lr, _ in self._moved]
        return Audit(
            step=self._step,
            lr_scheduled=auditor.settings.schedule.at(self._step),
            lr_groups=rates if all(map(math.isfinite, rates)) else [],
            lr_applied=[None if moved is None else told_rate(moved, lr) for lr, moved in self._moved],
            grad_norm=None if self._norm is None else self._norm.item(),
            tensors=len(self._weights),
            tensors_changed=None if unchanged is None else len(self._weights) - len(unchanged),
            unchanged=unchanged[:NAMED] if unchanged else [],
            batch_repeated=None if batches is None or batches_before is None else batches == batches_before,
            batch_rows=None if rows is None else len(rows),
            held_out_rows=None if rows is None or held_out is None else sum(row in held_out.rows for row in rows),
            held_out_repeats=None if held_out is None else held_out.repeats,
        )

    @contextmanager
    def _paused(self) -> Iterator[None]:
        began = self._clock.mark()
        yield
        self._pauses.append((began, self._clock.mark()))

    def _trained(self) -> dict[str, Tensor]:
        return {n: p for n, p in self._auditor.trainable.named_parameters() if p.requires_grad and p.numel()}

    def _rate(self, group: Mapping[str, Any], trained: Mapping[str, Tensor], state: State) -> Tensor | None:
        name = next((name for name in group.get("parameters", ()) if name in self._copies), None)
        if name is None or name not in trained:
            return None
        moved = applied_rate(self._copies[name], trained[name], under_prefix(f"optimizer.{name}", state), group)
        return None if moved is None else on_host(moved)

    def _unchanged(self) -> list[str] | None:
        """Name the tensors that are as at the run's first step; None where no fingerprint was taken then."""
        first = self._auditor.at_first
        now = {name: digest([sample]) for name, sample in self._weights.items()}
        return [name for name, found in now.items() if first.get(name) == found] if first else None

    def _rows(self) -> list[bytes] | None:
        found = [row_digests(tensors) for tensors in self._drawn]
        whole = [rows for rows in found if rows is not None]
        return list(chain.from_iterable(whole)) if found and len(whole) == len(found) else None


def parameters_at_first(trainable: Trainable) -> dict[str, str]:
    """Fingerprint every parameter, frozen ones too, for a run may thaw them later."""
    return fingerprints(dict(trainable.named_parameters()))


def groups_in(state: State) -> Sequence[Mapping[str, Any]]:
    """Give the optimizer's groups as a checkpoint states them; none where it does not."""
    groups: Any = state.get("optimizer.groups", [])
    return [group for group in groups if "lr" in group] if isinstance(groups, list) else []


def telling_tensor(group: Mapping[str, Any], trained: Mapping[str, Tensor]) -> str | None:
    """Name the tensor that tells a group's rate: the largest with a gradient and at most 2**20 elements.

    The smallest where all are larger; None where the group names no tensor that has a gradient.
    """
    sizes = {n: trained[n].numel() for n in group.get("parameters", ()) if n in trained and trained[n].grad is not None}
    small = [name for name, size in sizes.items() if size <= COPIED_ELEMENTS]
    return max(small, key=sizes.__getitem__) if small else min(sizes, key=sizes.__getitem__, default=None)


def global_norm(parameters: Iterable[Tensor]) -> Tensor | None:
    """Give the L2 norm over the gradients of all parameters, in float64, 0-d; None where none has a gradient."""
    gradients = [p.grad.detach() for p in parameters if p.grad is not None]
    if not gradients:
        return None
    norms = torch._foreach_norm(gradients, 2.0, torch.float64)  # noqa: SLF001  torch has no other name for it
    return torch.stack(norms).square().sum().sqrt()
