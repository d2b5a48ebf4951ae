"""What a run will need, before it is run: memory, disk and data as planned, time from a few measured steps."""

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import count
from statistics import mean, median
from time import perf_counter
from typing import Any, cast

import psutil
import torch

from trainwright import environment, rng
from trainwright.budget import LoopSettings, loop_settings, steps_per_epoch
from trainwright.config import RunConfig
from trainwright.device import resolve
from trainwright.errors import DataExhaustedError, DeviceUnavailableError, InputError, TrainwrightError
from trainwright.footprint import Footprint, trace
from trainwright.guards import ExplosionGuard
from trainwright.models.build import build
from trainwright.steps import Done, stepper_for
from trainwright.torch_trainable import TorchTrainable
from trainwright.trainable import Rounds, Trainable

WARM_UP_STEPS = 2
WARM_UP_ROUNDS = 1  # of an agent
MEASURED_STEPS = 5
MEASURED_ROUNDS = 2  # of an agent, each with its acting; at least `MEASURED_STEPS` steps
MEASURING_SECONDS = 15.0
USABLE_SHARE = 0.8  # of the memory that is free here, for the steps that are measured
UNITS = {"": 1, **{f"{p}B": 1000**e for e, p in enumerate(("", "K", "M", "G", "T"))}}
UNITS |= {f"{p}iB": 1024**e for e, p in enumerate(("K", "M", "G", "T"), 1)}
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Disk:
    """Planned bytes of checkpoints. `kept_at_most` counts the best, those of retention, and the one being written."""

    checkpoint_bytes: int
    kept_at_most: int | None  # None: without a number of steps, `checkpoint.keep_every` has no bound

    @property
    def bytes_at_most(self) -> int | None:
        return None if self.kept_at_most is None else self.kept_at_most * self.checkpoint_bytes


@dataclass(frozen=True, slots=True)
class Items:
    """What the run trains on, in `unit`, against what one pass over the training data holds (None: no end)."""

    unit: str
    planned: int | None
    held: int | None

    @property
    def passes(self) -> float | None:
        return self.planned / self.held if self.planned is not None and self.held else None


@dataclass(frozen=True, slots=True)
class EnvSteps:
    """What an agent acts in all and in a second, as measured; None where a step stands for no fixed number of them."""

    planned: int | None
    per_second: float | None


@dataclass(frozen=True, slots=True)
class StepTime:
    """Steps that were really taken on this machine's `device`; the whole run's seconds are an estimate from them.

    It is made by the median, or, of an agent, whose first step of a round acts, by the mean over whole rounds.
    """

    median_ms: float
    mean_ms: float
    measured_steps: int
    warm_up_steps: int
    device: str
    estimated_seconds: float | None  # training alone, without validations and checkpoints


@dataclass(frozen=True, slots=True)
class Proposal:
    """A micro-batch that fits, with the accumulation that keeps the step's batch."""

    batch_size: int
    accumulate: int
    memory: Footprint


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run needs. `traced_on`: the kernels that memory was planned for; `fits` None: no limit was given."""

    batch_size: int
    accumulate: int
    steps: int | None
    memory: Footprint
    traced_on: str
    disk: Disk
    items: Items
    env_steps: EnvSteps | None  # None: no agent
    time: StepTime | None
    time_absent: str | None  # why nothing was measured
    device_memory_bytes: int | None
    fits: bool | None
    proposal: Proposal | None

    def to_dict(self) -> dict[str, Any]:
        """Give the plan as JSON holds it, with the sums."""
        plan = asdict(self)
        plan["memory"]["peak_bytes"] = self.memory.peak_bytes
        plan["disk"]["bytes_at_most"] = self.disk.bytes_at_most
        plan["items"]["passes"] = self.items.passes
        if self.proposal:
            plan["proposal"]["memory"]["peak_bytes"] = self.proposal.memory.peak_bytes
        return plan


def plan(config: RunConfig, *, device_memory_bytes: int | None = None) -> Plan:
    """Plan a run on this machine: memory is traced without taking it, time is measured over a few real steps.

    A device that is not here is planned for with the CPU's kernels, and no time is measured. Errors: InputError when
    not even a micro-batch of 1 fits `device_memory_bytes`, with both figures; InputError and DataError as a run's.
    """
    config = config.resolved()
    device, absent = _device(config.device)
    with rng.preserved(device):
        traced = _traced(config, device)
        memory, settings = traced.memory, traced.settings
        fits = None if device_memory_bytes is None else memory.peak_bytes <= device_memory_bytes
        proposal = _proposal(config, device, cast("int", device_memory_bytes)) if fits is False else None
        measured = absent or _measured(config, device, traced)
    return Plan(
        batch_size=config.train.batch_size,
        accumulate=config.train.accumulate,
        steps=settings.schedule.total_steps,
        memory=memory,
        traced_on=device.type,
        disk=Disk(memory.checkpoint_bytes, kept_at_most(settings)),
        items=traced.items,
        env_steps=traced.acting.of(settings, measured) if traced.acting else None,
        time=measured if isinstance(measured, StepTime) else None,
        time_absent=measured if isinstance(measured, str) else None,
        device_memory_bytes=device_memory_bytes,
        fits=fits,
        proposal=proposal,
    )


def parse_size(text: str) -> int:
    """Give the bytes of `4GiB`, `500 MB`, `1.5TiB` or `1024`. Errors: InputError naming the units."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([A-Za-z]*)", text.strip())
    if not match or match[2] not in UNITS or not (size := int(float(match[1]) * UNITS[match[2]])):
        known = ", ".join(filter(None, UNITS))
        raise InputError(f"{text!r} is no size; expected a number above 0 and a unit, as in 4GiB (units: {known})")
    return size


def _device(spec: str) -> tuple[torch.device, str | None]:
    """Give the device to plan on, and why it is not the one that was asked for."""
    try:
        device = torch.device(resolve(spec).name)
    except DeviceUnavailableError:
        return CPU, f"device {spec} is not on this machine"
    if device.type == "cuda" and not torch.cuda.is_available():
        return CPU, f"this build of torch, {torch.__version__}, cannot use CUDA"
    return device, None


@dataclass(frozen=True, slots=True)
class _Acting:
    """How much an agent acts: environment steps a step (None: not fixed), and in how many rounds."""

    per_step: float | None
    rounds: Rounds | None

    def of(self, settings: LoopSettings, measured: StepTime | str) -> EnvSteps:
        planned = settings.total_env_steps
        if self.per_step is None:
            return EnvSteps(planned, None)
        rate = self.per_step / measured.mean_ms * 1000 if isinstance(measured, StepTime) else None
        return EnvSteps(self._acted(settings) if planned is None else planned, rate)

    def _acted(self, settings: LoopSettings) -> int | None:
        """Give what is acted for a number of steps, in whole rounds."""
        steps, rounds = settings.schedule.total_steps, self.rounds
        if steps is None or self.per_step is None:
            return None
        if rounds is None:
            return round(steps * self.per_step)
        return (math.ceil(steps / rounds.updates(settings.accumulate)) + rounds.unlearnt) * rounds.env_steps


@dataclass(frozen=True, slots=True)
class _Traced:
    memory: Footprint
    settings: LoopSettings
    items: Items
    acting: _Acting | None


def _traced(config: RunConfig, device: torch.device) -> _Traced:
    """Trace without taking memory, or, a model that looks at its values, by real steps; uncompiled in both cases."""
    eager = _with_train(config, compile=False)
    try:
        return _trace(eager, device, fake=True)
    except TrainwrightError:
        raise
    except Exception:  # noqa: BLE001  any code of the model may fail without data; a real fault fails below once more
        return _trace(eager, device, fake=False)


def _trace(config: RunConfig, device: torch.device, *, fake: bool) -> _Traced:
    with environment.deterministic(config, device):
        trainable, memory = trace(
            lambda: _torch_trainable(build(config, device)),
            accumulate=config.train.accumulate,
            clip_norm=config.train.clip_norm,
            fake=fake,
        )
        settings = loop_settings(config, trainable)
        acting = _acting(trainable, config.train.accumulate)
        return _Traced(memory, settings, _items(settings, trainable, memory), acting)


def _acting(trainable: Trainable, accumulate: int) -> _Acting | None:
    per_epoch, epoch = trainable.env_steps_per_epoch, steps_per_epoch(trainable, accumulate)
    if per_epoch is None:
        return None
    return _Acting(per_epoch / epoch if epoch else None, trainable.rounds)


def _torch_trainable(trainable: Trainable) -> TorchTrainable:
    if not isinstance(trainable, TorchTrainable):
        raise InputError(
            f"model type {trainable.model_type!r} cannot be planned: it does not derive from "
            "trainwright.torch_trainable.TorchTrainable, so its parameters are not known"
        )
    return trainable


def _with_train(config: RunConfig, **changes: Any) -> RunConfig:
    return config.model_copy(update={"train": config.train.model_copy(update=changes)})


def _proposal(config: RunConfig, device: torch.device, limit_bytes: int) -> Proposal:
    """Find the largest micro-batch below the asked one that fits, by bisection. Errors: InputError when none does."""
    items = config.train.batch_size * config.train.accumulate

    def proposed(batch_size: int) -> Proposal:
        smaller = _with_train(config, batch_size=batch_size, accumulate=items // batch_size)
        return Proposal(batch_size, items // batch_size, _traced(smaller, device).memory)

    sizes = [size for size in range(1, config.train.batch_size + 1) if items % size == 0]
    best = proposed(1)
    if best.memory.peak_bytes > limit_bytes:
        raise InputError(
            f"the run does not fit: at a micro-batch of 1 it needs {best.memory.peak_bytes} bytes, {limit_bytes} were "
            f"given; {_advice(best.memory)}"
        )
    low, high = 0, len(sizes) - 1  # sizes[low] fits; the asked one, the last, does not
    while high - low > 1:
        middle = (low + high) // 2
        found = proposed(sizes[middle])
        if found.memory.peak_bytes <= limit_bytes:
            low, best = middle, found
        else:
            high = middle
    return best


def _advice(memory: Footprint) -> str:
    """Say what to ask less of, by what the most is for."""
    parts = memory.at_peak
    if 2 * parts.data > parts.total:
        return f"{parts.data} of them are data that are held; give fewer of them, as by data.replay_size of an agent"
    return "choose a smaller model, a shorter context or train.precision bf16"


def kept_at_most(settings: LoopSettings) -> int | None:
    """Give how many checkpoints stand at once: `keep_last`, the best, each of `keep_every`, one being written."""
    total, every = settings.schedule.total_steps, settings.keep_every
    others = settings.keep_last + 2
    if total is None:
        return None if every else others
    saved = [step for step in range(total + 1) if _is_saved(step, total, settings)]
    return min(len(saved), others + sum(1 for step in saved if every and step % every == 0))


def _is_saved(step: int, total: int, settings: LoopSettings) -> bool:
    if step == 0:
        return settings.validate_at_start
    every = settings.checkpoint_every
    return step == total or step % settings.validate_every == 0 or bool(every and step % every == 0)


def _items(settings: LoopSettings, trainable: Trainable, memory: Footprint) -> Items:
    held, total = trainable.items_per_epoch, settings.schedule.total_steps
    planned = settings.total_items
    if planned is None and total is not None:
        epoch = steps_per_epoch(trainable, settings.accumulate)
        passes, rest = divmod(total, epoch) if epoch and held else (0, total)
        planned = passes * (held or 0) + _micro_batches(trainable, settings, rest) * memory.items_per_micro_batch
    return Items(trainable.unit, planned, held)


def _micro_batches(trainable: Trainable, settings: LoopSettings, steps: int) -> int:
    """Give the micro-batches that so many steps draw from the beginning of a pass, or of a round, on."""
    rounds = trainable.rounds
    if rounds is None:
        return steps * settings.accumulate
    whole, rest = divmod(steps, rounds.updates(settings.accumulate))
    return whole * rounds.micro_batches + rest * settings.accumulate


def _measured(config: RunConfig, device: torch.device, traced: _Traced) -> StepTime | str:
    """Take a few steps as a run takes them; say why where that cannot be."""
    settings, memory, acting = traced.settings, traced.memory, traced.acting
    free = _free_bytes(device)
    if memory.peak_bytes > USABLE_SHARE * free:
        return f"a step needs {memory.peak_bytes} bytes, {free} are free on this machine's {device}"
    walls, begun = _wall_ms(config, device, settings)
    span = _begin_and_end(begun, acts=acting is not None)
    if isinstance(span, str):
        return span
    measured, steps = walls[slice(*span)], settings.schedule.total_steps
    typical = mean(measured) if acting else median(measured)
    return StepTime(
        median_ms=median(measured),
        mean_ms=mean(measured),
        measured_steps=len(measured),
        warm_up_steps=span[0],
        device=environment.device_name(device),
        estimated_seconds=None if steps is None else steps * typical / 1000,
    )


def _begin_and_end(begun: Sequence[int], *, acts: bool) -> tuple[int, int] | str:
    """Give the steps that are measured, in whole rounds; say why where there are none."""
    if acts and len(begun) <= WARM_UP_ROUNDS + 1:
        return (
            f"{MEASURING_SECONDS:g} s of measuring were over before a round of acting and learning was whole, beside "
            "the first, which warms up"
        )
    if len(begun) < 2:
        return "the data are exhausted before the first step ends"
    return begun[min(_warm_up(acts=acts), len(begun) - 2)], begun[-1]


def _warm_up(*, acts: bool) -> int:
    return WARM_UP_ROUNDS if acts else WARM_UP_STEPS


def _is_enough(begun: Sequence[int], *, acts: bool) -> bool:
    warm_up = _warm_up(acts=acts)
    return len(begun) > warm_up + MEASURED_ROUNDS and begun[-1] - begun[warm_up] >= MEASURED_STEPS


def _wall_ms(config: RunConfig, device: torch.device, settings: LoopSettings) -> tuple[Sequence[float], Sequence[int]]:
    """Give the wall time of steps, in milliseconds, and which of them begin a round: each one where nothing is acted.

    The rounds before the last of these are whole. There are fewer where the time for it is over.
    """
    done: list[Done] = []
    begun: list[int] = []
    with environment.deterministic(config, device):
        trainable = build(config, device)
        guard = ExplosionGuard("off", ratio=math.inf, window=2, max_skips=1)
        stepper = stepper_for(trainable, settings, guard)
        acts, whole = trainable.env_steps_per_epoch is not None, trainable.micro_batches_left
        began = perf_counter()
        try:
            for step in count():
                if not acts or trainable.micro_batches_left == whole:
                    begun.append(step)
                if _is_enough(begun, acts=acts) or (step and perf_counter() - began > MEASURING_SECONDS):
                    break
                done += stepper.take(step)
        except DataExhaustedError:
            pass
        done += stepper.drain()
    return [step.wall_ms for step in done], begun


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)
