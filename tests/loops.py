"""A loop over a toy, with rows in a folder and checkpoints in memory."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from tests.toys import Toy
from trainwright.budget import LoopSettings
from trainwright.checkpoints.base import Store
from trainwright.checkpoints.checkpoints import Checkpoints
from trainwright.checkpoints.memory import MemoryStore
from trainwright.loop import Ended, Loop
from trainwright.manifest import Stamp
from trainwright.newruns import create_run
from trainwright.recorder import Recorder, Silent, Watcher
from trainwright.rundir import Attempt, RunDirectory
from trainwright.schedules import Schedule
from trainwright.steps import Stepper, stepper_for
from trainwright.trainable import Trainable, Validation


class Scripted(Toy):
    """A toy whose validations are told beforehand."""

    script: Sequence[float] = ()

    def validate(self) -> Validation:
        self.script, value = self.script[1:], self.script[0]
        return Validation("val_loss", value, 1, None)


@dataclass(frozen=True, slots=True)
class Finished:
    ended: Ended
    run: RunDirectory
    attempt: Attempt
    checkpoints: Checkpoints
    elapsed: float

    def kinds(self) -> list[str]:
        return [event.kind for event in self.run.read_events()]


def settings(**changes: Any) -> LoopSettings:
    return LoopSettings(**{"schedule": Schedule(1e-2, "constant"), "total_steps": 30, "validate_every": 10, **changes})


def run_loop(
    trainable: Trainable,
    told: LoopSettings,
    folder: Path,
    *,
    stepper: Callable[..., Stepper] = stepper_for,
    prepare: Callable[[Loop], object] = lambda _loop: None,
    store: Store | None = None,
    watcher: Watcher | None = None,
    **extra: Any,
) -> Finished:
    run = create_run("loop", folder, "")
    attempt = run.new_attempt()
    attempt.start_file.write_text('{"attempt":1,"time":"","step":0,"checkpoint":null}')
    checkpoints = Checkpoints(store or MemoryStore())
    stamp = Stamp(run=run.id, attempt=1, model_type=trainable.model_type, config_sha256="")
    with closing(Recorder(attempt, watcher or Silent())) as recorder:
        loop = Loop(trainable, told, recorder=recorder, checkpoints=checkpoints, stamp=stamp, stepper=stepper, **extra)
        prepare(loop)
        began = perf_counter()
        ended = loop.run()
        elapsed = perf_counter() - began
    return Finished(ended, run, attempt, checkpoints, elapsed)
