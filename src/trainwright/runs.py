"""One run from its configuration to its result: the only path by which anything is trained."""

import math
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from trainwright import environment, failures, origins
from trainwright.budget import (
    FIELDS_OF_A_ROW,
    FIELDS_OF_A_VALIDATION,
    LoopSettings,
    loop_settings,
    target_value,
)
from trainwright.checkpoints.base import Store
from trainwright.checkpoints.checkpoints import Checkpoints
from trainwright.checkpoints.open import open_store
from trainwright.config import RunConfig
from trainwright.contract import facts
from trainwright.contract.judge import Verdict, judge
from trainwright.contract.load import contract_named_by
from trainwright.contract.rules import Contract
from trainwright.contract.run import contract_of, judge_run
from trainwright.contract.run import failing as failing_gates
from trainwright.device import resolve
from trainwright.errors import (
    DataError,
    DeviceUnavailableError,
    InputError,
    MemoryExhaustedError,
    StoreError,
    StoreUnavailableError,
    TrainwrightError,
)
from trainwright.evidence import seal
from trainwright.files import remove_temporaries
from trainwright.jsonfile import read_json, write_json
from trainwright.loop import Ended, Loop
from trainwright.manifest import Stamp
from trainwright.mirror import Mirror, copy_in
from trainwright.models.build import build
from trainwright.newruns import create_run, storing
from trainwright.origins import Origin, Rejected, Weights
from trainwright.outcome import Outcome
from trainwright.recorder import Recorder, Silent, Watcher
from trainwright.records import environment_record, result_record, start_record
from trainwright.residency import watched
from trainwright.rundir import Attempt, RunDirectory
from trainwright.sanity import overfit_once
from trainwright.seals import seals_in
from trainwright.sensors import NoSensor, Sensor, Utilisation, open_sensor
from trainwright.signals import StopRequest, stop_on_signals
from trainwright.signing import check_signing_key
from trainwright.state import weights_in
from trainwright.telemetry import Telemetry
from trainwright.trainable import Trainable
from trainwright.uploads import LAST_SYNC_SECONDS, Left, Uploads, probe, uploading

LAST_SYNC_OF_A_STOPPED_RUN_SECONDS = 10.0  # who stops a run waits, and a resume uploads what is left


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run came to. `verdicts` were judged from the run's files after it ended; `left` is not in the store."""

    outcome: Outcome
    why: str
    run: RunDirectory
    verdicts: Sequence[Verdict]
    step: int
    best: float | None
    left: Left | None = None

    @property
    def exit_code(self) -> int:
        return self.outcome.exit_code

    def steps(self) -> Any:
        """Give the rows of every step as a pyarrow.Table, for pandas or polars."""
        return facts.steps_table(self.run)


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is ready before a run directory is touched: the trainable holds the state that it begins from."""

    config: RunConfig
    trainable: Trainable
    settings: LoopSettings
    target: float | None
    sensor: Sensor | NoSensor


@dataclass(frozen=True, slots=True)
class Beginning:
    """What an attempt begins from: a checkpoint, weights of another run, or neither. `rejected` is to be set aside."""

    origin: Origin | None
    weights: Weights | None
    rejected: Rejected = ()


@dataclass(frozen=True, slots=True)
class Started:
    """An attempt with what it writes to. `torn` are the row files that an earlier one left with a cut last line."""

    attempt: Attempt
    recorder: Recorder
    checkpoints: Checkpoints
    stamp: Stamp
    torn: Sequence[Path]


@dataclass(frozen=True, slots=True)
class Away:
    """Where a copy of the run goes, if anywhere: its part of a store. `down`: why that did not answer before step 0."""

    store: Store | None = None
    telemetry: Telemetry | None = None
    down: str | None = None


def execute(
    config: RunConfig,
    *,
    runs_dir: Path = Path("runs"),
    watcher: Watcher | None = None,
    parent: RunDirectory | None = None,
    store: Store | None = None,
    telemetry: Telemetry | None = None,
) -> RunResult:
    """Train a new run, or with `parent` a new run that goes on from another's newest checkpoint.

    A copy of it goes to `store`, as runs/<id>, beside the training; a store that is down does not stop it.
    Errors, all before a directory is made: InputError, DeviceUnavailableError, DataError, StoreError,
    MemoryExhaustedError.
    """
    contract = contract_named_by(config)
    down = probe(store) if store else None
    with _prepared(config.resolved(), config.device) as prepared:
        trainable = prepared.trainable
        if contract:
            _check_recorded(contract, trainable)
        origin = origins.of_parent(parent) if parent else None
        if origin:
            _check_budget(prepared, origin)
            trainable.load_checkpoint(origin.state)
        taken = _weights_of(config, trainable, runs_dir) if origin is None else None
        _check_space(runs_dir, trainable)
        record = environment_record(
            prepared.config,
            trainable,
            prepared.settings,
            prepared.sensor,
            explicit=config.explicit(),
            target=prepared.target,
        )
        text = contract.text if contract else None
        run = create_run(config.name, runs_dir, prepared.config.to_yaml(), contract=text, environment=record)
        away = Away(copy_in(store, run.id) if store else None, telemetry, down)
        with run.locked():
            return _attempt(run, prepared, Beginning(origin, taken), watcher or Silent(), away)


def resume(
    run: RunDirectory,
    *,
    device: str | None = None,
    watcher: Watcher | None = None,
    store: Store | None = None,
    telemetry: Telemetry | None = None,
) -> RunResult:
    """Go on with an unfinished run from its newest valid checkpoint; a copy goes to `store` as in `execute`.

    Errors: as `execute`; InputError for a run that has ended for good, is being trained, or whose run.yaml was edited;
    RunTakenUpError when the store holds an attempt at it that was made elsewhere.
    """
    with run.locked():
        check_unfinished(run)
        config = RunConfig.load(run.config)
        if config.sha256() != read_json(run.environment)["config_sha256"]:
            raise InputError(
                f"{run.config}: was changed since the run began, and is its record; put it back, and give changes as "
                f"arguments, for a new run: trainwright resume {run.id} key=value"
            )
        away = _own_copy(run, store, telemetry)
        with _prepared(config, device or config.device) as prepared:
            return _attempt(run, prepared, _own_beginning(run, prepared.trainable), watcher or Silent(), away)


def _own_copy(run: RunDirectory, store: Store | None, telemetry: Telemetry | None) -> Away:
    if store is None:
        return Away()
    view, down = copy_in(store, run.id), probe(store)
    try:
        if down is None:
            Mirror(run, view).check_claim()
    except StoreUnavailableError as error:
        down = str(error)
    return Away(view, telemetry, down)


def _check_recorded(contract: Contract, trainable: Trainable) -> None:
    """Errors: InputError for fields that the contract requires and no row of this trainable will hold."""
    recorded = {
        "steps": {*FIELDS_OF_A_ROW, *(metric.name for metric in trainable.metrics)},
        "validations": {*FIELDS_OF_A_VALIDATION, *(metric.name for metric in trainable.validation_measures)},
    }
    required = [metric for metric in contract.entry.metrics if metric.required]
    missing = [f"{m.name} (of {m.table})" for m in required if m.name not in recorded[m.table]]
    if missing:
        raise InputError(
            f"{contract.id} {contract.version} requires what model type {trainable.model_type!r} does not record: "
            f"{', '.join(missing)}; name another contract, or declare them in `metrics` and `validation_measures`"
        )


def _check_budget(prepared: Prepared, origin: Origin) -> None:
    """Errors: InputError when the parent has taken all the steps that the new run may take."""
    steps, taken = prepared.settings.total_steps, origin.checkpoint.step
    if steps is not None and steps <= taken:
        key = "train.steps" if prepared.config.train.steps else "train.epochs"
        text = f"a budget of {steps} steps leaves none: {origin.run.id} has taken {taken}; give more"
        raise InputError(prepared.config.told(key, text))


def _own_beginning(run: RunDirectory, trainable: Trainable) -> Beginning:
    """Load what the next attempt at `run` begins from; nothing is written."""
    found = origins.newest(run)
    origin = origins.origin_in(run, found) or origins.first_origin(run)
    if origin and origin.run.path == run.path and origin.manifest.stamp.hashes != dict(trainable.data_hashes):
        raise DataError(
            f"{run.id}: the data are not those that the run was trained on; put them back, or start a new run"
        )
    if origin:
        trainable.load_checkpoint(origin.state)
    taken = origins.weights_again(trainable, run) if origin is None else None
    _check_space(run.path, trainable)
    return Beginning(origin, taken, found.rejected)


def check_unfinished(run: RunDirectory) -> None:
    """Errors: InputError for a run that has ended for good; it is sealed first where its seal is missing."""
    result = run.read_result()
    if result and not Outcome.of(result.outcome).resumable:
        if not seals_in(run.path):  # killed between its last record and its seal
            seal(run)
        raise InputError(
            f"{run.id}: has ended ({result.outcome}: {result.why}) and stays as it is; to go on from its last "
            f"checkpoint in a new run, change something, as in: trainwright resume {run.id} train.steps=…"
        )


@contextmanager
def _prepared(config: RunConfig, device_name: str) -> Iterator[Prepared]:
    check_signing_key()
    device = torch.device(resolve(device_name).name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise DeviceUnavailableError(
            f"device {device_name!r}: this build of torch, {torch.__version__}, cannot use CUDA"
        )
    with environment.deterministic(config, device):
        try:
            trainable = build(config, device)
        except TrainwrightError:
            raise
        except Exception as error:  # a user's class may raise anything
            if failures.is_out_of_memory(error):
                raise MemoryExhaustedError(
                    f"the model does not fit {device}: {failures.out_of_memory(error)}"
                ) from error
            raise TrainwrightError(
                f"model type {config.model.type!r} cannot be built: {failures.told(error)}"
            ) from error
        settings, target = loop_settings(config, trainable), target_value(config, trainable)
        yield Prepared(config, trainable, settings, target, open_sensor(device))


def _weights_of(config: RunConfig, trainable: Trainable, runs_dir: Path) -> Weights | None:
    """Take the weights that `train.init` names, where it names any."""
    if config.train.init is None:
        return None
    with config.at("train.init"):
        return origins.initialise(trainable, RunDirectory.find(config.train.init, runs_dir))


def _check_space(folder: Path, trainable: Trainable) -> None:
    """Errors: StoreError before step 0 when weights and two moments of each will not fit."""
    weights = sum(tensor.nbytes for tensor in weights_in(trainable.save_checkpoint()).values())
    needed, free = 3 * weights, open_store(folder).free_bytes()
    if free is not None and free < needed:
        raise StoreError(
            f"a checkpoint needs about {needed} bytes and {free} are free; make room or choose another --runs-dir"
        )


def _attempt(run: RunDirectory, prepared: Prepared, beginning: Beginning, watcher: Watcher, away: Away) -> RunResult:
    """Train until the loop ends, then judge. The run is locked, and the trainable holds what it begins from."""
    contract, started = contract_of(run), _started(run, prepared, beginning, watcher)
    recorder = started.recorder
    watcher.on_plan(prepared.settings.schedule.total_steps)
    with stop_on_signals() as stop, uploading(run, away.store, away.telemetry) as uploads:
        with closing(recorder), _watched(prepared, started) as halt:
            loop = Loop(
                prepared.trainable,
                prepared.settings,
                recorder=recorder,
                checkpoints=started.checkpoints,
                stamp=started.stamp,
                stop=stop,
                utilisation=_utilisation(prepared.sensor, recorder),
                judge=lambda: _judge_so_far(run, contract, watcher),
                halt=halt,
                saved=uploads.saved,
            )
            _begin(loop, recorder, run, beginning, started.stamp)
            if prepared.trainable.inexact is not None:
                recorder.event("not_exact", loop.state.step, reason=prepared.trainable.inexact)
            if away.down:
                recorder.event("store_unavailable", reason=away.down)
            for path in started.torn:
                recorder.event("torn_row", file=path.relative_to(run.path).as_posix())
            ended = _run(loop, recorder, lambda: _sanity(run, prepared, loop, recorder, stop))
        result = _finish(run, prepared, ended)
        return replace(result, left=_last_uploads(uploads, ended.outcome, stop))


def _last_uploads(uploads: Uploads, outcome: Outcome, stop: StopRequest) -> Left | None:
    """Wait until the run's end is in the store, too; another signal ends the wait."""
    before, stopped = stop.received, outcome in {Outcome.INTERRUPTED, Outcome.TERMINATED}
    seconds = LAST_SYNC_OF_A_STOPPED_RUN_SECONDS if stopped else LAST_SYNC_SECONDS
    return uploads.close(seconds, give_up=lambda: stop.received != before)


def _started(run: RunDirectory, prepared: Prepared, beginning: Beginning, watcher: Watcher) -> Started:
    """Begin the attempt's records, and clear away what earlier ones left that does not count."""
    with storing(run.path):
        torn = run.torn_files()
        remove_temporaries(run.path)
        attempt = run.new_attempt()
        origin, weights = beginning.origin, beginning.weights
        start = start_record(run, attempt.number, prepared.trainable, prepared.sensor, origin, weights)
        write_json(attempt.start_file, start)
        recorder = Recorder(attempt, watcher)
    checkpoints = Checkpoints(open_store(run.checkpoints), limits=run.limits())
    for checkpoint, reason in beginning.rejected:
        checkpoints.set_aside(checkpoint, reason)
    checkpoints.sweep()
    return Started(attempt, recorder, checkpoints, _stamp(run, attempt.number, prepared), torn)


def _watched(prepared: Prepared, started: Started) -> AbstractContextManager[Callable[[], str | None]]:
    guarded = prepared.config.guards.residency == "abort"
    device, sensor = prepared.trainable.device, prepared.sensor
    return watched(device, sensor, started.attempt, started.recorder, guarded=guarded)


def _utilisation(sensor: Sensor | NoSensor, recorder: Recorder) -> Utilisation:
    def lost(reason: str) -> None:
        recorder.event("sensor_lost", sensor="gpu_util_pct", reason=reason)

    return Utilisation(sensor, on_lost=lost)


def _stamp(run: RunDirectory, attempt: int, prepared: Prepared) -> Stamp:
    config, trainable = prepared.config, prepared.trainable
    return Stamp(
        run=run.id,
        attempt=attempt,
        model_type=trainable.model_type,
        architecture=dict(trainable.architecture),
        config_sha256=config.sha256(),
        hashes=dict(trainable.data_hashes),
        conditions=environment.conditions(config, trainable.device),
    )


def _begin(loop: Loop, recorder: Recorder, run: RunDirectory, beginning: Beginning, stamp: Stamp) -> None:
    """Take up the loop's part of the origin, and put on record from where and with what difference."""
    origin, weights = beginning.origin, beginning.weights
    passed_over = [*beginning.rejected, *(origin.rejected if origin else ()), *(weights.rejected if weights else ())]
    for checkpoint, reason in dict.fromkeys(passed_over):
        recorder.event("checkpoint_rejected", checkpoint.step, checkpoint=checkpoint.name, reason=reason)
    if origin is None:
        recorder.event("started", 0, **({"init": weights.record()} if weights else {}))
        return
    of_parent = origin.run.path != run.path
    loop.restore(origin.state, of_parent=of_parent)
    step = origin.checkpoint.step
    recorder.event("resumed", step, checkpoint=origin.checkpoint.name, run=origin.run.id)
    changed = environment.differences(origin.facts, {**stamp.hashes, **stamp.conditions})
    if of_parent:
        theirs, ours = RunConfig.load(origin.run.config), RunConfig.load(run.config)
        changed |= {key: list(values) for key, values in theirs.differences(ours).items()}
    if changed:
        recorder.event("not_exact", step, changed=changed)


def _sanity(run: RunDirectory, prepared: Prepared, loop: Loop, recorder: Recorder, stop: StopRequest) -> None:
    """Before step 0, where `train.sanity` asks for it, see whether the trainable can overfit one batch."""
    if prepared.config.train.sanity and loop.state.step == 0:
        trainable, settings = prepared.trainable, prepared.settings
        overfit_once(run, trainable, settings, recorder=recorder, stopped=lambda: stop.received is not None)


def _run(loop: Loop, recorder: Recorder, before: Callable[[], None]) -> Ended:
    """Run the loop; errors that are outcomes end it, any other is put on record and told in one line."""
    try:
        before()
        return loop.run()
    except StoreError as error:
        return loop.broken(Outcome.STORE_FAILED, str(error))
    except DataError as error:
        return loop.broken(Outcome.DATA_FAILED, str(error))
    except TrainwrightError as error:
        recorder.event("finished", loop.state.step, outcome="error", why=str(error))
        raise
    except Exception as error:
        if failures.is_out_of_memory(error):
            return loop.broken(Outcome.OUT_OF_MEMORY, failures.out_of_memory(error))
        why, step = failures.told(error), loop.state.step
        trace = traceback.format_exception(error)
        recorder.event("finished", step, outcome="internal_error", why=why, traceback=trace)
        raise TrainwrightError(f"step {step}: {why}; the records and checkpoints so far stay") from error


def _judge_so_far(run: RunDirectory, contract: Contract | None, watcher: Watcher) -> str | None:
    """Judge the files so far; say which gate that is judged at validations and aborts does not hold."""
    if contract is None:
        return None
    verdicts = judge(contract, facts.load_facts(run), when="validation")
    watcher.on_verdicts(verdicts)
    return next((f"{v.gate}: {v.reason}" for v in verdicts if v.on_fail == "abort" and v.result == "fail"), None)


def _finish(run: RunDirectory, prepared: Prepared, ended: Ended) -> RunResult:
    """Join the attempts, judge everything again from the files alone, write result.json and seal."""
    verdicts: Sequence[Verdict] = []
    outcome, why = ended.outcome, ended.why
    try:
        run.join()
        verdicts = judge_run(run)
        failing = failing_gates(run, verdicts) or _missed_target(prepared, ended)
        if outcome is Outcome.DONE and failing:
            outcome, why = Outcome.GATE_FAILED, f"{why}; does not hold: {', '.join(failing)}"
        for name in seals_in(run.path):  # of an earlier end, which this one replaces
            (run.path / name).unlink()
        write_json(run.result, result_record(run, ended, outcome, why, verdicts))
        seal(run, verdicts)
    except OSError as error:
        with suppress(OSError):
            run.result.unlink(missing_ok=True)  # unsealed it is no end: a resume makes both again
        outcome = Outcome.STORE_FAILED
        why = f"{why}; the run's records cannot be written: {error.strerror}"
    return RunResult(outcome, why, run, verdicts, ended.step, ended.best)


def _missed_target(prepared: Prepared, ended: Ended) -> Sequence[str]:
    """Tell a target that was not reached: a claim of the run, with or without a contract that has a gate for it."""
    if prepared.target is None:
        return []
    maximised = prepared.trainable.validation_metric.direction == "max"
    best = -math.inf if ended.best is None else ended.best if maximised else -ended.best
    target = prepared.target if maximised else -prepared.target
    return [] if best >= target else [f"target {prepared.target:g}, best {ended.best}"]
