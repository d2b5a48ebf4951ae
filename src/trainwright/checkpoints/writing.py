"""Where the files of a checkpoint are written: at once, or in a thread while training goes on."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import final

from trainwright.checkpoints.checkpoints import Pending
from trainwright.checkpoints.staging import Staging
from trainwright.metrics import ValidationRow
from trainwright.state import State


@dataclass(frozen=True, slots=True)
class Saving:
    """A save of `step` in progress, begun at the moment `began` of the clock, with the validation it belongs to.

    `ends_run`: the run had ended when it was begun.
    """

    step: int
    row: ValidationRow | None
    ends_run: bool
    began: float
    _pending: "Future[Pending]"

    def written(self) -> bool:
        """Tell whether `wait` returns at once."""
        return self._pending.done()

    def wait(self) -> Pending:
        """Give what is written once it is whole. Errors: those of the writing."""
        return self._pending.result()


@final
class Inline:
    """Writes from the state itself, before training goes on."""

    def held(self, state: State) -> State:
        """Give the state to write from."""
        return state

    def begin(self, write: Callable[[], Pending]) -> "Future[Pending]":
        done: Future[Pending] = Future()
        done.set_result(write())
        return done


@final
class Background:
    """Writes from a copy, one save at a time."""

    def __init__(self) -> None:
        self._staging = Staging()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")

    def held(self, state: State) -> State:
        """Give a copy of the state, good until the next is asked for."""
        return self._staging.copy(state)

    def begin(self, write: Callable[[], Pending]) -> "Future[Pending]":
        return self._thread.submit(write)
