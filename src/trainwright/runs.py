"""One run from its configuration to its result: the only path by which anything is trained."""

import os
import resource
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec
import torch

from trainwright import environment, origins
from trainwright.budget import LoopSettings, first_validation_cap, loop_settings, steps_per_epoch, target_value
from trainwright.checkpoints.checkpoints import Checkpoint, Checkpoints, Stamp
from trainwright.checkpoints.open import open_store
from trainwright.config import RunConfig
from trainwright.contract import facts
from trainwright.contract.judge import Verdict, decides_exit, judge
from trainwright.contract.load import load_contract
from trainwright.contract.rules import Contract
from trainwright.contract.run import contract_of, judge_run
from trainwright.device import resolve
from trainwright.errors import (
    DataError,
    DeviceUnavailableError,
    InputError,
    MemoryExhaustedError,
    StoreError,
    TrainwrightError,
)
from trainwright.files import write_atomically
from trainwright.loop import Ended, Loop
from trainwright.models.build import build
from trainwright.origins import Origin
from trainwright.outcome import Outcome
from trainwright.recorder import Recorder, Silent, Watcher
from trainwright.rundir import Attempt, RunDirectory, Start, create_run, now, read_json, write_json
from trainwright.sensors import Utilisation
from trainwright.signals import stop_on_signals
from trainwright.trainable import Trainable

ADVICE_MEMORY = "lower train.batch_size and raise train.accumulate by the same factor, or choose train.precision bf16"


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run came to. `verdicts` were judged from the run's files after it ended."""

    outcome: Outcome
    why: str
    run: RunDirectory
    verdicts: Sequence[Verdict]
    step: int
    best: float | None

    @property
    def exit_code(self) -> int:
        return self.outcome.exit_code

    def steps(self) -> Any:
        """Give the rows of every step as a pyarrow.Table, for pandas or polars."""
        return facts.steps_table(self.run)


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is ready before a run directory is touched."""

    config: RunConfig
    trainable: Trainable
    settings: LoopSettings
    target: float | None


def execute(
    config: RunConfig,
    *,
    runs_dir: Path = Path("runs"),
    watcher: Watcher | None = None,
    parent: RunDirectory | None = None,
) -> RunResult:
    """Train a new run, or with `parent` a new run that goes on from another's newest checkpoint.

    Errors, all before a directory is made: InputError, DeviceUnavailableError, DataError, StoreError,
    MemoryExhaustedError.
    """
    contract = load_contract(config.contract) if config.contract else None
    resolved = config.resolved() if parent else _init_found(config.resolved(), runs_dir)
    with _prepared(resolved, config.device) as prepared:
        origin = origins.of_parent(parent) if parent else None
        if origin:
            prepared.trainable.load_checkpoint(origin.state)  # what does not fit is told before a directory is made
        else:
            origins.initialise(prepared.trainable, prepared.config.train.init)
        _check_space(runs_dir, prepared.trainable)
        run = create_run(config.name, runs_dir, prepared.config.to_yaml())
        with run.locked():
            if contract:
                write_atomically(run.contract, contract.text.encode())
            write_json(run.environment, _environment(run, prepared, config.explicit()))
            return _attempt(run, prepared, origin, [], watcher or Silent())


def resume(run: RunDirectory, *, device: str | None = None, watcher: Watcher | None = None) -> RunResult:
    """Go on with an unfinished run from its newest valid checkpoint.

    Errors: as `execute`; InputError for a run that has ended for good or is being trained.
    """
    check_unfinished(run)
    config = RunConfig.load(run.config)
    with run.locked(), _prepared(config, device or config.device) as prepared:
        found = origins.newest(run)
        origin = origins.origin_in(run, found) or origins.first_origin(run)
        if origin is None:
            origins.initialise(prepared.trainable, config.train.init)
        _check_space(run.path, prepared.trainable)
        return _attempt(run, prepared, origin, found.rejected, watcher or Silent())


def check_unfinished(run: RunDirectory) -> None:
    """Errors: InputError for a run that has ended for good."""
    if not run.result.exists():
        return
    result = read_json(run.result)
    if not Outcome.of(result["outcome"]).resumable:
        raise InputError(
            f"{run.id}: has ended ({result['outcome']}: {result['why']}) and stays as it is; to go on from its last "
            f"checkpoint in a new run, change something, as in: trainwright resume {run.id} train.steps=…"
        )


@contextmanager
def _prepared(config: RunConfig, device_name: str) -> Iterator[Prepared]:
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
            if _is_out_of_memory(error):
                raise MemoryExhaustedError(f"the model does not fit {device}: {_out_of_memory(error)}") from error
            raise TrainwrightError(f"model type {config.model.type!r} cannot be built: {_told(error)}") from error
        yield Prepared(config, trainable, loop_settings(config, trainable), target_value(config, trainable))


def _init_found(config: RunConfig, runs_dir: Path) -> RunConfig:
    """Put the path of the run that weights are taken from in place of an id or `latest`, which change their meaning."""
    if config.train.init is None:
        return config
    path = RunDirectory.find(config.train.init, runs_dir).path.resolve()
    return config.model_copy(update={"train": config.train.model_copy(update={"init": str(path)})})


def _attempt(
    run: RunDirectory,
    prepared: Prepared,
    origin: Origin | None,
    rejected: Sequence[tuple[Checkpoint, str]],
    watcher: Watcher,
) -> RunResult:
    config, trainable = prepared.config, prepared.trainable
    conditions = environment.conditions(config, trainable.device)
    if origin and origin.run.path == run.path and origin.hashes != dict(trainable.data_hashes):
        raise DataError(
            f"{run.id}: the data are not those that the run was trained on; put them back, or start a new run"
        )
    contract = contract_of(run)
    watcher.on_plan(prepared.settings.schedule.total_steps)
    checkpoints = Checkpoints(open_store(run.checkpoints))
    for checkpoint, reason in rejected:
        checkpoints.set_aside(checkpoint, reason)
    checkpoints.sweep()
    attempt = run.new_attempt()
    write_json(attempt.start_file, _start(run, attempt, trainable, origin))
    stamp = Stamp(
        run=run.id,
        attempt=attempt.number,
        model_type=trainable.model_type,
        architecture=dict(trainable.architecture),
        config_sha256=config.sha256(),
        hashes=dict(trainable.data_hashes),
        conditions=conditions,
    )
    with closing(Recorder(attempt, watcher)) as recorder, stop_on_signals() as stop:
        loop = Loop(
            trainable,
            prepared.settings,
            recorder=recorder,
            checkpoints=checkpoints,
            stamp=stamp,
            stop=stop,
            utilisation=Utilisation(trainable.device),
            judge=lambda: _judge_so_far(run, contract, watcher),
        )
        for checkpoint, reason in rejected:
            recorder.event("checkpoint_rejected", checkpoint.step, checkpoint=checkpoint.name, reason=reason)
        _begin(loop, recorder, run, origin, {**stamp.hashes, **conditions})
        began = perf_counter()
        ended = _run(loop, recorder)
    return _finish(run, attempt, ended, perf_counter() - began, origin)


def _start(run: RunDirectory, attempt: Attempt, trainable: Trainable, origin: Origin | None) -> Start:
    return Start(
        attempt=attempt.number,
        time=now(),
        step=origin.checkpoint.step if origin else 0,
        checkpoint=origin.checkpoint.name if origin else None,
        parent=origin.run.id if origin and origin.run.path != run.path else None,
        unit=trainable.unit,
        metrics={metric.name: metric.unit for metric in trainable.metrics},
        device=str(trainable.device),
        pid=os.getpid(),
        command=sys.argv,
    )


def _begin(loop: Loop, recorder: Recorder, run: RunDirectory, origin: Origin | None, now: Mapping[str, Any]) -> None:
    """Take up the origin, if there is one, and put on record from where and with what difference."""
    if origin is None:
        recorder.event("started", 0)
        return
    loop.restore(origin.state)
    step = origin.checkpoint.step
    recorder.event("resumed", step, checkpoint=origin.checkpoint.name, run=origin.run.id)
    changed = environment.differences({**origin.hashes, **origin.conditions}, now)
    if origin.run.path != run.path:
        loop.state.ending = None  # the parent's end is not this run's
        theirs, ours = RunConfig.load(origin.run.config), RunConfig.load(run.config)
        changed |= {key: list(values) for key, values in theirs.differences(ours).items()}
    if changed:
        recorder.event("not_exact", step, changed=changed)


def _run(loop: Loop, recorder: Recorder) -> Ended:
    """Run the loop; put on record what it did not foresee, a user's own code that fails, and tell it in one line."""
    try:
        return loop.run()
    except StoreError as error:
        return loop.broken(Outcome.STORE_FAILED, str(error))
    except TrainwrightError:
        raise
    except Exception as error:
        if _is_out_of_memory(error):
            return loop.broken(Outcome.OUT_OF_MEMORY, _out_of_memory(error))
        why = _told(error)
        trace = traceback.format_exception(error)
        recorder.event("finished", loop.state.step, outcome="internal_error", why=why, traceback=trace)
        raise TrainwrightError(f"step {loop.state.step}: {why}; the records and checkpoints so far stay") from error


def _told(error: Exception) -> str:
    """Tell an error and where it is from: the innermost line that is neither this package's nor an installed one's."""
    frames = traceback.extract_tb(error.__traceback__)
    here = str(Path(__file__).parent)
    own = [f for f in frames if "site-packages" not in f.filename and not f.filename.startswith(here)]
    frame = (own or frames)[-1]
    return f"{type(error).__name__}: {error} (at {frame.filename}:{frame.lineno}, in {frame.name})"


def _is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "DefaultCPUAllocator" in str(error)


def _out_of_memory(error: BaseException) -> str:
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return f"out of memory: {str(error).splitlines()[0]}; peak of this process {peak_mib} MiB; {ADVICE_MEMORY}"


def _check_space(folder: Path, trainable: Trainable) -> None:
    """Errors: StoreError before step 0 when weights and two moments of each will not fit."""
    weights = sum(
        v.nbytes
        for k, v in trainable.save_checkpoint().items()
        if k.startswith("model.") and isinstance(v, torch.Tensor)
    )
    needed, free = 3 * weights, open_store(folder).free_bytes()
    if free is not None and free < needed:
        raise StoreError(
            f"a checkpoint needs about {needed} bytes and {free} are free; make room or choose another --runs-dir"
        )


def _environment(run: RunDirectory, prepared: Prepared, explicit: Mapping[str, bool]) -> dict[str, Any]:
    config, trainable, settings = prepared.config, prepared.trainable, prepared.settings
    return {
        **environment.describe(trainable.device),
        "run": run.id,
        "seed": config.seed,
        "model_type": trainable.model_type,
        "architecture": dict(trainable.architecture),
        "parameters": trainable.parameter_count,
        "hashes": dict(trainable.data_hashes),
        "config_sha256": config.sha256(),
        "baselines": dict(trainable.baselines),
        "target": prepared.target,
        "first_validation_cap": first_validation_cap(config, trainable),
        "explicit": dict(explicit),
        "planned_steps": settings.schedule.total_steps,
        "steps_per_epoch": steps_per_epoch(trainable, settings.accumulate),
        "items_per_epoch": trainable.items_per_epoch,
        "absent": {"gpu_util_pct": Utilisation(trainable.device).absent},
    }


def _judge_so_far(run: RunDirectory, contract: Contract | None, watcher: Watcher) -> str | None:
    """Judge the files so far; say which gate that is judged at validations and aborts does not hold."""
    if contract is None:
        return None
    verdicts = judge(contract, facts.load_facts(run), when="validation")
    watcher.on_verdicts(verdicts)
    return next((f"{v.gate}: {v.reason}" for v in verdicts if v.on_fail == "abort" and v.result == "fail"), None)


def _finish(run: RunDirectory, attempt: Attempt, ended: Ended, elapsed: float, origin: Origin | None) -> RunResult:
    """Join the attempts, judge everything again from the files alone, and write result.json."""
    verdicts: Sequence[Verdict] = []
    outcome, why = ended.outcome, ended.why
    try:
        run.join()
        verdicts = judge_run(run)
        failing = [verdict.gate for verdict in verdicts if decides_exit(verdict)]
        if outcome is Outcome.DONE and failing:
            outcome, why = Outcome.GATE_FAILED, f"{why}; does not hold: {', '.join(failing)}"
        result = RunResult(outcome, why, run, verdicts, ended.step, ended.best)
        write_json(run.result, _result(result, attempt, ended, elapsed, origin))
    except OSError as error:
        broken = f"{why}; the run's records cannot be written: {error.strerror}" if outcome.resumable else str(error)
        return RunResult(Outcome.STORE_FAILED, broken, run, verdicts, ended.step, ended.best)
    return result


def _result(result: RunResult, attempt: Attempt, ended: Ended, elapsed: float, origin: Origin | None) -> dict[str, Any]:
    return {
        "run": result.run.id,
        "outcome": result.outcome.label,
        "exit_code": result.exit_code,
        "why": result.why,
        "step": result.step,
        "best_validation": result.best,
        "best_checkpoint": ended.best_checkpoint,
        "seconds": {**ended.seconds, "elapsed": elapsed},
        "attempts": attempt.number,
        "parent": origin.run.id if origin and origin.run.path != result.run.path else None,
        "verdicts": [msgspec.to_builtins(verdict) for verdict in result.verdicts],
    }
