"""Whether a run that is killed and resumed equals the one that was not cut: both are made by the command, and compared.

Every run is a process of its own, `python -m trainwright train …`, that knows nothing of being watched: its rows are
read from outside, and it is killed by SIGKILL once the row in question is on disk.
"""

import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import sleep
from typing import Any, Final, TypeAlias

import msgspec

from trainwright import origins, yamlfile
from trainwright.checkrecords import Record, contract_with_pairs, record_comparison
from trainwright.children import FINISHED, Child, Process
from trainwright.config import BUDGETS, NO_STORE, RunConfig
from trainwright.equality import bit_differences
from trainwright.errors import InputError, TrainwrightError
from trainwright.jsonfile import read_json
from trainwright.metrics import THROUGHPUT_FIELDS
from trainwright.rowfiles import whole_lines
from trainwright.rundir import RunDirectory
from trainwright.state import State, StateValue

STEPS, CUTS = 20, 4
FEWEST_STEPS: Final = 6
TRIES: Final = 5  # a run may end between its row and the kill; it is then made again
PAUSE_SECONDS: Final = 0.0005
TIME_FIELDS: Final = frozenset({"wall_ms", "wall_ms_measured", "gpu_util_pct", *THROUGHPUT_FIELDS})
RATE: Final = "/s"  # ends the unit of a metric that rests on a clock
TIME_FIELDS_OF_VALIDATIONS: Final = frozenset({"wall_seconds", "checkpoint"})
KINDS: Final = {"model": "tensor", "optimizer": "tensor", "rng": "random stream", "source": "data position"}
Tell: TypeAlias = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Cut:
    """One run that was killed and resumed. `differences`: the first of each kind; none: it equals the uncut one."""

    cut: int  # the row that had to be on disk
    killed_after: int  # the last row that was, at the kill
    resumed_from: str | None  # a checkpoint; None: from the beginning
    attempts: int
    differences: Sequence[str]
    run: RunDirectory

    @property
    def is_equal(self) -> bool:
        return not self.differences


@dataclass(frozen=True, slots=True)
class Resumption:
    """The runs that were compared, and the sealed record that decides the pair gate."""

    uncut: RunDirectory
    cuts: Sequence[Cut]
    record: Record


def verify_resume(
    config: RunConfig,
    *,
    runs_dir: Path,
    steps: int = STEPS,
    cuts: int = CUTS,
    tell: Tell = lambda _: None,
    start: Callable[..., Process] = Child,
) -> Resumption:
    """Make one uncut run of `steps` steps and `cuts` that are killed on the way and resumed; compare and judge.

    `tell` is given a line as each run ends; `start` gives the process of a command. Errors: InputError for too few
    steps, when there is no contract with a gate of kind `pair`, or when a run cannot be made, with what it told.
    """
    contract = contract_with_pairs(config)
    every = max(2, steps // 5)
    rows = rows_to_cut_after(steps, cuts, every)
    with TemporaryDirectory() as folder:
        children = Children(config, Path(folder) / "run.yaml", runs_dir, steps=steps, every=every, start=start)
        uncut = children.uncut()
        tell(f"{uncut.id}: {steps} steps, not cut")
        made = []
        for row in rows:
            made.append(cut_of(uncut, row, *children.cut(row)))
            tell(f"{made[-1].run.id}: killed after row {made[-1].killed_after}, resumed")
    found = [_row(config, steps, every, cut) for cut in made]
    # the command is this one: a child's names a file that is gone
    environment = {**read_json(uncut.environment), "command": sys.argv}
    # not that of the child, which names its own files
    record = record_comparison(config, contract, "resume", found, environment=environment, runs_dir=runs_dir)
    return Resumption(uncut, made, record)


def rows_to_cut_after(steps: int, cuts: int, every: int) -> list[int]:
    """Give rows from the first to the last but one, evenly spread, none of which is the last before a checkpoint.

    Errors: InputError when there are too few steps for that many.
    """
    if steps < FEWEST_STEPS or not 1 <= cuts <= steps // 2:
        raise InputError(
            f"--steps {steps} --cuts {cuts}: expected at least {FEWEST_STEPS} steps, and 1 cut to half as many as steps"
        )
    last = steps - 2
    even = [last * index // max(cuts - 1, 1) for index in range(cuts)] if cuts > 1 else [last // 2]
    return sorted({row - 1 if row and (row + 1) % every == 0 else row for row in even})


def _row(config: RunConfig, steps: int, every: int, cut: Cut) -> dict[str, Any]:
    facts = {key: value for key, value in asdict(cut).items() if key not in {"differences", "run"}}
    settings = {"seed": config.seed, "steps": steps, "checkpoint_every": every}
    return {"name": "resume", **settings, **facts, "is_equal": cut.is_equal, "difference": "; ".join(cut.differences)}


# -- the runs --------------------------------------------------------------------------------------------------------


class Children:
    """Makes the runs, each under a name of its own: short ones, with small intervals between their checkpoints."""

    def __init__(
        self,
        config: RunConfig,
        file: Path,
        runs_dir: Path,
        *,
        steps: int,
        every: int,
        start: Callable[..., Process],
    ) -> None:
        budget = [f"train.{unit}=null" for unit in (*BUDGETS, "seconds", "target") if unit != "steps"]
        other = ["contract=null", "early_stopping=null", "checkpoint.keep_every=null"]
        other += [f"checkpoint.store={NO_STORE}", "register=null"]  # what is compared and then done with goes nowhere
        own = [f"train.steps={steps}", f"checkpoint.every={every}", f"validate.every={max(2, steps // 2)}"]
        self._document = config.document_with([*budget, *other, *own])
        self._name, self._file, self._runs_dir = config.name, file, runs_dir
        self._steps, self._start = steps, start

    def uncut(self) -> RunDirectory:
        with self._training("uncut") as (child, name):
            child.finish()
            return self._finished(self._run(name))

    def cut(self, row: int) -> tuple[RunDirectory, int]:
        """Kill a run once `row` is on disk and resume it; give it, and the last row that was there at the kill."""
        for _ in range(TRIES):
            with self._training(f"cut{row}") as (child, name):
                killed = self._killed_after(child, name, row)
            run = self._run(name)
            if killed and run.read_result() is None:
                reached = rows_on_disk(run) - 1
                with self._start("resume", str(run.path)) as child:
                    child.finish()
                return self._finished(run), reached
        raise InputError(
            f"{run.id}: a run of {self._steps} steps ended before it could be killed after row {row}, {TRIES} times; "
            "give more --steps"
        )

    @contextmanager
    def _training(self, what: str) -> Iterator[tuple[Process, str]]:
        name = f"{self._name[:40]}-{what}-{secrets.token_hex(3)}"
        document = yamlfile.override(self._document, [f"name={name}"])
        self._file.write_text(yamlfile.dump(document.data), encoding="utf-8")
        with self._start("train", str(self._file), "--runs-dir", str(self._runs_dir)) as child:
            yield child, name

    def _killed_after(self, child: Process, name: str, row: int) -> bool:
        """Wait for the row and kill; tell whether it was the kill that ended the process."""
        while child.runs():
            found = self._runs(name)
            if found and rows_on_disk(found[0]) > row:
                return child.kill()
            sleep(PAUSE_SECONDS)
        child.finish()
        return False

    def _runs(self, name: str) -> list[RunDirectory]:
        return [RunDirectory(path.parent) for path in self._runs_dir.glob(f"{name}-*/run.yaml")]

    def _run(self, name: str) -> RunDirectory:
        (run,) = self._runs(name)
        return run

    def _finished(self, run: RunDirectory) -> RunDirectory:
        result = run.read_result()
        if result is None or result.outcome not in {end.label for end in FINISHED} or result.step != self._steps:
            why = result.why if result else "it has no result"
            raise InputError(f"{run.id}: did not get to step {self._steps}: {why}; nothing can be compared")
        return run


def rows_on_disk(run: RunDirectory) -> int:
    """Give the whole rows of the first attempt, as they stand in its file."""
    return len(whole_lines(run.attempt(1).steps).lines)


# -- the comparison --------------------------------------------------------------------------------------------------


def cut_of(uncut: RunDirectory, row: int, run: RunDirectory, killed_after: int) -> Cut:
    """Hold a resumed run against the one that was not cut."""
    attempts = run.attempts()
    return Cut(
        cut=row,
        killed_after=killed_after,
        resumed_from=attempts[-1].start().checkpoint,
        attempts=len(attempts),
        differences=tuple(first_differences(uncut, run)),
        run=run,
    )


def first_differences(uncut: RunDirectory, run: RunDirectory) -> Iterator[str]:
    """Give the first row, validation, tensor, random stream, data position and other entry that differ."""
    rates = {name for name, unit in uncut.attempts()[0].start().metrics.items() if unit.endswith(RATE)}
    yield from _of_rows("row", uncut.read_steps(), run.read_steps(), TIME_FIELDS | rates)
    validations = uncut.read_validations(), run.read_validations()
    yield from _of_rows("validation", *validations, TIME_FIELDS_OF_VALIDATIONS)
    told: set[str] = set()
    for name, text in bit_differences(_last_state(uncut), _last_state(run)):
        kind = KINDS.get(name.partition(".")[0], "entry")
        if kind not in told:
            told.add(kind)
            yield f"{kind} {name} {text}"


def _of_rows(what: str, ours: Sequence[Any], theirs: Sequence[Any], left_out: frozenset[str]) -> Iterator[str]:
    if len(ours) != len(theirs):
        yield f"{len(ours)} and {len(theirs)} {what}s"
        return
    for one, other in zip(ours, theirs, strict=True):
        fields, others = (_flat(row, left_out) for row in (one, other))
        for name in dict.fromkeys((*fields, *others)):
            if msgspec.json.encode(fields.get(name)) != msgspec.json.encode(others.get(name)):
                yield f"{what} {one.step}: {name} is {fields.get(name)!r} and {others.get(name)!r}"
                return


def _flat(row: Any, left_out: frozenset[str]) -> dict[str, Any]:
    whole = msgspec.structs.asdict(row)
    whole |= whole.pop("extra", {})
    return {name: value for name, value in whole.items() if name not in left_out}


def _last_state(run: RunDirectory) -> State:
    """Give the newest checkpoint without times, and without the attempt in the name of the best one."""
    state: dict[str, StateValue] = {**origins.of_parent(run).state}
    state.pop("loop_seconds", None)
    loop = state.pop("loop", None)
    if not isinstance(loop, dict):
        raise TrainwrightError(f"{run.path}: its checkpoint holds no state of the loop")
    best = str(loop.get("best_checkpoint")).partition(".")[0]
    return {**state, **{f"loop.{key}": value for key, value in {**loop, "best_checkpoint": best}.items()}}
