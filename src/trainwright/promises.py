"""What a trainable promises, each promise tried on a fresh one: it holds, is broken by what was seen, or is not tried.

The promises are those of `trainable.Trainable`. Each is tried so that a trainable which breaks another one keeps it:
gradients are cleared here, batches are handed over, weights are loaded.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final, Literal, TypeAlias

import msgspec
import torch
from torch import Tensor, nn

from trainwright import environment, failures, rng
from trainwright.accumulation import Accumulation, measured
from trainwright.audits import global_norm
from trainwright.candidates import (
    Candidate,
    after_updates,
    backward,
    stored,
    trained_tensors,
    update,
)
from trainwright.equality import bit_differences, entries_of
from trainwright.errors import MemoryExhaustedError, TrainwrightError
from trainwright.illustrations import Illustration
from trainwright.state import State, weights_in
from trainwright.trainable import Trainable

Result: TypeAlias = Literal["holds", "broken", "not_tried"]
Try: TypeAlias = Callable[[Candidate], None]
STEPS: Final = 3  # updates, losses or batches that are compared
NORM_TOLERANCE: Final = 1e-4  # relative; a sum of squares in fp32 over many millions of numbers is no nearer
ACCUMULATION_TOLERANCE: Final = 1e-5  # relative, in fp32


@dataclass(frozen=True, slots=True)
class Promise:
    """One promise as tried. `seen`: of one that is broken what was seen, where, and what was expected."""

    name: str
    claim: str
    result: Result
    seen: str = ""


@dataclass(frozen=True, slots=True)
class Checked:
    """Every promise as tried, and what was measured of accumulation: None where the trainable raised."""

    promises: Sequence[Promise]
    accumulation: Accumulation | None


class Broken(Exception):  # noqa: N818  no error of this program: what was seen of the trainable
    """A promise is not kept."""


class NotTried(Exception):  # noqa: N818  likewise
    """A promise cannot be tried here."""


def check(candidate: Candidate) -> Checked:
    """Try every promise; one in which the trainable raises is broken, and the others go on.

    Errors: TrainwrightError when it cannot be built at all, MemoryExhaustedError.
    """
    with environment.deterministic(candidate.config, candidate.device):
        try:
            candidate.built()
        except TrainwrightError:
            raise
        except Exception as error:  # a user's class may raise anything
            kind = candidate.config.model.type
            raise TrainwrightError(f"model type {kind!r} cannot be built: {failures.told(error)}") from error
        tried = [_tried(name, claim, promise, candidate) for name, (claim, promise) in TRIES.items()]
        found: list[Accumulation] = []
        last = _tried(*ACCUMULATION, partial(_accumulation_equals_the_big_batch, keep=found.append), candidate)
        return Checked([*tried, last], found[0] if found else None)


def _tried(name: str, claim: str, promise: Try, candidate: Candidate) -> Promise:
    try:
        promise(candidate)
    except NotTried as reason:
        return Promise(name, claim, "not_tried", str(reason))
    except Broken as seen:
        return Promise(name, claim, "broken", str(seen))
    except Exception as error:
        if failures.is_out_of_memory(error):
            raise MemoryExhaustedError(f"promise {name}: {failures.out_of_memory(error)}") from error
        return Promise(name, claim, "broken", f"it raised {failures.told(error)}")
    return Promise(name, claim, "holds")


def _expect(kept: bool, seen: str) -> None:
    if not kept:
        raise Broken(seen)


def _expect_equal(one: State, other: State, where: str) -> None:
    for name, text in bit_differences(one, other):
        raise Broken(f"{where}: {name} {text}; expected equal bits")


def _norm(parameters: Mapping[str, Tensor]) -> float:
    norm = global_norm(parameters.values())
    return 0.0 if norm is None else norm.item()


# -- one update ------------------------------------------------------------------------------------------------------


def _step_rises(candidate: Candidate) -> None:
    trainable = candidate.built()
    for expected in range(STEPS):
        _expect(trainable.step == expected, f"step is {trainable.step} after {expected} updates, expected {expected}")
        update(trainable)


def _zero_grad_zeroes(candidate: Candidate) -> None:
    trainable = candidate.built()
    backward(trainable, trainable.next_batch())
    trainable.zero_grad()
    for name, parameter in trained_tensors(trainable).items():
        left = 0.0 if parameter.grad is None else parameter.grad.abs().max().item()
        _expect(left == 0, f"the gradient of {name} is up to {left:.6g} after zero_grad, expected None or zeros")


def _learning_rate_reaches_every_group(candidate: Candidate) -> None:
    trainable = candidate.built()
    value = trainable.learning_rate / 2 or 1e-3
    trainable.learning_rate = value
    read = trainable.learning_rate
    _expect(read == value, f"learning_rate reads {read!r} after it was set to {value!r}, expected the same")
    for index, group in enumerate(getattr(getattr(trainable, "optimizer", None), "param_groups", ())):
        rate = float(group["lr"])
        _expect(rate == value, f"group {index} of the optimizer has {rate!r} after it was set, expected {value!r}")


def _gradients_reach_every_parameter(candidate: Candidate) -> None:
    trainable = candidate.built()
    reached: set[str] = set()
    for _ in range(STEPS):
        backward(trainable, trainable.next_batch())
        for name, parameter in trained_tensors(trainable).items():
            if parameter.grad is not None:
                finite = bool(torch.isfinite(parameter.grad).all())
                _expect(finite, f"the gradient of {name} at update {trainable.step} is not finite, expected numbers")
                reached |= {name} if parameter.grad.any() else set()
        trainable.optimizer_step()
    missed = [name for name in trained_tensors(trainable) if name not in reached]
    _expect(not missed, f"no gradient reached {', '.join(missed[:5])} in {STEPS} updates, expected one in each")


def _clip_gives_the_norm_before(candidate: Candidate) -> None:
    trainable = candidate.built()
    backward(trainable, trainable.next_batch())
    parameters = trained_tensors(trainable)
    before = _norm(parameters)
    for limit in (None, before / 2):
        told = trainable.clip_gradients(limit).item()
        equal = math.isclose(told, before, rel_tol=NORM_TOLERANCE)
        text = f"clip_gradients({limit}) gave {told:.6g}, the norm over all parameters before it is {before:.6g}"
        _expect(equal, f"{text}; expected that")
        after, bound = _norm(parameters), before if limit is None else limit
        _expect(after <= bound * (1 + NORM_TOLERANCE), f"the norm after it is {after:.6g}, expected {bound:.6g}")


def _optimizer_step_moves_weights(candidate: Candidate) -> None:
    trainable = candidate.built()
    backward(trainable, trainable.next_batch())
    parameters = trained_tensors(trainable)
    before = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    trainable.optimizer_step()
    for name, parameter in parameters.items():
        moved = parameter.grad is None or not parameter.grad.any() or not torch.equal(parameter, before[name])
        _expect(moved, f"{name} has a gradient and is as it was before optimizer_step, expected it to move")


def _masked_step_changes_nothing(candidate: Candidate) -> None:
    trainable = after_updates(candidate, 1)
    if not trainable.masks_steps:
        raise NotTried("masks_steps is False")
    first = trainable.step
    update(trainable)
    expected = 2 * trainable.step - first
    backward(trainable, trainable.next_batch())
    before = stored(trainable)
    trainable.optimizer_step(skip=torch.ones((), device=candidate.device))
    after = {**stored(trainable), **{key: before[key] for key in ("step",) if key in before}}
    _expect_equal(before, after, "before and after optimizer_step(skip=1.0)")
    _expect(trainable.step == expected, f"step is {trainable.step} after a masked step, expected {expected}")


# -- what survives ---------------------------------------------------------------------------------------------------


def _save_load_save_is_equal(candidate: Candidate) -> None:
    trainable = after_updates(candidate)
    saved = stored(trainable)
    update(trainable)
    other = after_updates(candidate, 1, seed=candidate.other_seed)
    for where, loaded in (("the same trainable", trainable), ("one built with another seed", other)):
        loaded.load_checkpoint(saved)
        _expect_equal(saved, stored(loaded), f"saved, and saved again after a load into {where}")


def _training_goes_on_equal(candidate: Candidate) -> None:
    """Both are given the same batches, so that a lost data position is not told twice."""
    trainable = after_updates(candidate)
    saved = stored(trainable)
    batches, losses = [], []
    for _ in range(STEPS):
        batches.append(trainable.next_batch())
        losses.append(update(trainable, batches[-1]))
    other = candidate.built(seed=candidate.other_seed)
    other.load_checkpoint(saved)
    for index, (batch, loss) in enumerate(zip(batches, losses, strict=True)):
        other.next_batch()  # it may draw from the random streams
        again = update(other, batch)
        _expect(again == loss, f"loss {index + 1} after a load is {again!r}, without it {loss!r}; expected equal bits")


def _batches_go_on_equal(candidate: Candidate) -> None:
    trainable = after_updates(candidate)
    saved = stored(trainable)
    batches = [entries_of(trainable.next_batch()) for _ in range(STEPS)]
    other = candidate.built()  # of the same seed: it may decide the order
    other.load_checkpoint(saved)
    for index, batch in enumerate(batches):
        _expect_equal(batch, entries_of(other.next_batch()), f"batch {index + 1} without and after a load")


# -- validation and metrics ------------------------------------------------------------------------------------------


def _validate_leaves_all_alone(candidate: Candidate) -> None:
    trainable = after_updates(candidate)
    before = _observed(trainable, candidate)
    trainable.validate()
    _expect_equal(before, _observed(trainable, candidate), "before and after validate")


def _observed(trainable: Trainable, candidate: Candidate) -> dict[str, Any]:
    """Give all that a validation could change: the whole state, the random streams, the mode of each module."""
    modules = trainable.named_modules() if isinstance(trainable, nn.Module) else ()
    modes = {f"mode of {name or 'the module'}": module.training for name, module in modules}
    streams = {f"random stream {name}": value for name, value in rng.capture(candidate.device).items()}
    return {**stored(trainable), **streams, **modes}


def _validate_repeats(candidate: Candidate) -> None:
    trainable = after_updates(candidate)
    first, second = trainable.validate(), trainable.validate()
    _expect(first == second, f"validate gave {first.value!r}, then {second.value!r}; expected the same twice")


def _validate_gives_what_is_declared(candidate: Candidate) -> None:
    trainable = candidate.built()
    declared, given = trainable.validation_metric, trainable.validate()
    _expect(given.metric == declared.name, f"validate gave {given.metric!r}, declared is {declared.name!r}")
    _expect(declared.direction is not None, f"{declared.name} has no direction; expected min or max")
    _expect(given.n > 0, f"validate gave n = {given.n}, expected a count above 0")
    measures = {measure.name for measure in trainable.validation_measures}
    _expect(
        given.measures.keys() == measures,
        f"validate gave the measures {sorted(given.measures)}, declared are {sorted(measures)}",
    )


def _illustrate_leaves_all_alone(candidate: Candidate) -> None:
    trainable = after_updates(candidate)
    before = _observed(trainable, candidate)
    shown = Illustration(0, trainable.illustrate())
    _expect_equal(before, _observed(trainable, candidate), "before and after illustrate")
    try:
        msgspec.json.decode(msgspec.json.encode(shown), type=Illustration)
    except (TypeError, msgspec.MsgspecError) as error:
        raise Broken(f"illustrate gave what is not read as it is written: {error}; expected panels") from error


def _interface_is_json(candidate: Candidate) -> None:
    given = candidate.built().interface
    try:
        read = json.loads(json.dumps(given))
    except (TypeError, ValueError) as error:
        raise Broken(f"interface gave what JSON cannot hold: {error}; expected lists and mappings") from error
    _expect(read == given, f"interface gave {given!r} and is read as {read!r}, expected the same")


def _metrics_are_those_declared(candidate: Candidate) -> None:
    trainable = after_updates(candidate)
    declared, given = {metric.name for metric in trainable.metrics}, dict(trainable.collect_metrics())
    _expect(given.keys() == declared, f"collect_metrics gave {sorted(given)}, declared are {sorted(declared)}")
    for name, value in given.items():
        kept = value is None or math.isfinite(value)
        _expect(kept, f"collect_metrics gave {name} = {value!r}, expected a finite number, or None for none yet")


# -- seeds and devices -----------------------------------------------------------------------------------------------


def _of_seed(candidate: Candidate, seed: int) -> dict[str, Any]:
    trainable = candidate.built(seed=seed)
    weights = weights_in(stored(trainable))
    return {**weights, **entries_of([trainable.next_batch() for _ in range(STEPS)], "batches")}


def _equal_seeds_give_equal(candidate: Candidate) -> None:
    seed = candidate.config.seed
    _expect_equal(_of_seed(candidate, seed), _of_seed(candidate, seed), f"two of seed {seed}")


def _other_seeds_give_others(candidate: Candidate) -> None:
    seeds = candidate.config.seed, candidate.other_seed
    changed = any(bit_differences(*(_of_seed(candidate, seed) for seed in seeds)))
    _expect(changed, "weights and batches of seeds {} and {} are equal, expected others".format(*seeds))


def _is_on_its_device(candidate: Candidate) -> None:
    _expect_on(candidate.built(), candidate.device)


def _moves_to_cuda(candidate: Candidate) -> None:
    if not torch.cuda.is_available():
        raise NotTried("no CUDA device")
    device = torch.device("cuda:0")
    trainable = candidate.built(device=device)
    _expect_on(trainable, device)
    loss = update(trainable)
    _expect(math.isfinite(loss), f"the loss of an update on {device} is {loss!r}, expected a finite number")


def _expect_on(trainable: Trainable, device: torch.device) -> None:
    buffers = trainable.named_buffers() if isinstance(trainable, nn.Module) else ()
    tensors = {**dict(trainable.named_parameters()), **dict(buffers), **entries_of(trainable.next_batch())}
    places = {"device": trainable.device} | {n: t.device for n, t in tensors.items() if isinstance(t, Tensor)}
    for name, place in places.items():
        same = place.type == device.type and place.index in {None, device.index or 0}
        _expect(same, f"{name} is on {place}, expected {device}")


# -- accumulation ----------------------------------------------------------------------------------------------------


def _accumulation_equals_the_big_batch(candidate: Candidate, keep: Callable[[Accumulation], None]) -> None:
    found = measured(candidate)
    keep(found)
    figures = asdict(found)
    for name in ("items", "loss", "norm", "gradient"):
        difference = figures[f"{name}_difference"]
        if not difference <= ACCUMULATION_TOLERANCE:
            how = "after {updates} updates of {micro_batches} × {batch_size} and of one batch".format(**figures)
            expected = f"expected at most {ACCUMULATION_TOLERANCE:g} relative"
            raise Broken(f"{name} differs by {difference:.3g} {how}, {expected}")


TRIES: Final[Mapping[str, tuple[str, Try]]] = {
    "step": ("step begins at 0 and rises by one at each optimizer_step", _step_rises),
    "zero_grad": ("zero_grad leaves no gradient in any trained tensor", _zero_grad_zeroes),
    "learning_rate": ("a learning rate that is set reaches every group", _learning_rate_reaches_every_group),
    "gradients": ("gradients are finite and reach every trained tensor", _gradients_reach_every_parameter),
    "clip_gradients": ("clip_gradients gives the norm before it and keeps the bound", _clip_gives_the_norm_before),
    "optimizer_step": ("optimizer_step moves every tensor that has a gradient", _optimizer_step_moves_weights),
    "masked_step": ("a step masked by skip changes nothing but step", _masked_step_changes_nothing),
    "save_load_save": ("what is saved after a load equals what was loaded", _save_load_save_is_equal),
    "load_checkpoint": ("after a load training goes on with equal losses", _training_goes_on_equal),
    "data_position": ("after a load next_batch gives the same batches", _batches_go_on_equal),
    "validate_leaves": ("validate leaves weights, mode, random streams and data position", _validate_leaves_all_alone),
    "validate_repeats": ("validate gives the same value twice", _validate_repeats),
    "validation_metric": ("validate gives the metric that is declared", _validate_gives_what_is_declared),
    "illustrate": ("illustrate leaves as much as validate, and its panels can be read", _illustrate_leaves_all_alone),
    "interface": ("interface is read from JSON as it is", _interface_is_json),
    "collect_metrics": ("collect_metrics gives what metrics declares", _metrics_are_those_declared),
    "equal_seeds": ("equal seeds give equal weights and batches", _equal_seeds_give_equal),
    "other_seeds": ("another seed gives other weights or batches", _other_seeds_give_others),
    "device": ("weights, buffers and batches are on the device", _is_on_its_device),
    "cuda": ("it is built and takes a step on a CUDA device", _moves_to_cuda),
}
ACCUMULATION: Final = ("accumulation", "accumulated micro-batches equal the one big batch")
PROMISES: Final = (*TRIES, ACCUMULATION[0])
