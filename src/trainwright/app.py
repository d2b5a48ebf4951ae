"""What the command line, a script and a notebook call: train or go on with a run, and write its report."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from trainwright import holdings, origins, restoration, runs, uploads
from trainwright.checkpoints.base import Store
from trainwright.checkpoints.open import open_store
from trainwright.checkpoints.within import within
from trainwright.config import NO_STORE, RunConfig
from trainwright.errors import InputError, StoreError
from trainwright.library import register_after_training
from trainwright.mirror import CHECKPOINTS, RUNS, Synced, copy_in
from trainwright.recorder import Watcher
from trainwright.redaction import redacted
from trainwright.report import write_report
from trainwright.rundir import RunDirectory
from trainwright.runs import RunResult
from trainwright.settings import Settings
from trainwright.telemetry import Telemetry


def train(
    run: str | Path | Mapping[str, Any] | RunConfig,
    overrides: Sequence[str] = (),
    *,
    runs_dir: str | Path = "runs",
    watcher: Watcher | None = None,
    telemetry: Telemetry | None = None,
) -> RunResult:
    """Train a new run of a run.yaml's path, a mapping of its keys, or a RunConfig; judge it from its files.

    `overrides` are `key=value` texts that win over the file's. A copy goes to the run's store, where it or the settings
    name one (`checkpoint.store`); `telemetry` counts what was uploaded. Outcomes that are expected (a gate that does
    not hold, an abort by a guard, a signal) are in the result.
    Errors: TrainwrightError, before a run directory is made.
    """
    if isinstance(run, RunConfig):
        config = RunConfig.from_document(run.document_with(overrides))
    elif isinstance(run, Mapping):
        config = RunConfig.parse(run, overrides)
    else:
        config = RunConfig.load(Path(run), overrides)
    store = store_of(config, Path(runs_dir))
    return _reported(runs.execute(config, runs_dir=Path(runs_dir), watcher=watcher, store=store, telemetry=telemetry))


def resume(
    run: str | Path,
    overrides: Sequence[str] = (),
    *,
    device: str | None = None,
    runs_dir: str | Path = "runs",
    watcher: Watcher | None = None,
    store: Store | None = None,
    telemetry: Telemetry | None = None,
) -> RunResult:
    """Go on with a run, by id, path or URL in a store, from its newest valid checkpoint.

    With `overrides` (a larger budget, say) it goes on in a new run, whose parent the old one is. Of a URL, its run
    directory is restored below `runs_dir` first. Copies go to `store`, else that of the URL, of the run's
    configuration or of the settings.
    Errors: TrainwrightError; InputError for a run that has ended when nothing is changed.
    """
    found, of_url = located(str(run), Path(runs_dir))
    store = store or of_url
    if not overrides:
        store = store or store_of(RunConfig.load(found.config), Path(runs_dir))
        return _reported(runs.resume(found, device=device, watcher=watcher, store=store, telemetry=telemetry))
    if any(text.startswith("train.init=") for text in overrides):
        raise InputError("train.init: a run that goes on from another has its weights; start a new run to take others")
    changes = [*overrides, *([f"device={device}"] if device else [])]
    config = origins.child_config(found, changes)
    return _reported(
        runs.execute(
            config,
            runs_dir=Path(runs_dir),
            watcher=watcher,
            parent=found,
            store=store or store_of(config, Path(runs_dir)),
            telemetry=telemetry,
        )
    )


def located(run: str, runs_dir: Path) -> tuple[RunDirectory, Store | None]:
    """Find a run, and the store that its URL names; one in a store is restored below `runs_dir`.

    Errors: InputError, StoreError.
    """
    if not restoration.is_url(run):
        return RunDirectory.find(run, runs_dir), None
    store, run_id = restoration.split_url(run)
    opened = open_store_url(store, runs_dir)
    return restoration.restore(copy_in(opened, run_id), runs_dir), opened


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run is: its directory, its part of a store, or both; never neither."""

    run_id: str
    here: RunDirectory | None
    there: Store | None

    @property
    def checkpoints(self) -> Store:
        """Give the store of its checkpoints: of the directory, where there is one."""
        return open_store(self.here.checkpoints) if self.here else self.checkpoints_there

    @property
    def checkpoints_there(self) -> Store:
        """Errors: InputError for a run that has no store."""
        if self.there is None:
            raise InputError(
                f"{self.run_id}: no store is named; give --store URL, checkpoint.store in run.yaml, or store in "
                "settings.yaml"
            )
        return within(self.there, CHECKPOINTS)

    @property
    def has_ended(self) -> bool:
        """Tell whether the run has its end, as its copy tells it."""
        return self.there is not None and holdings.has_ended(self.there)

    def sync(self) -> Synced:
        """Complete the copy of a run's directory. Errors: InputError for a run without either; StoreError."""
        if self.here is None:
            raise InputError(f"{self.run_id}: is a URL; what is to be completed is named by its directory or id")
        self.checkpoints_there  # noqa: B018  it says what is missing
        return uploads.sync(self.here, cast("Store", self.there))


def place_of(run: str, runs_dir: Path, store_url: str | None = None) -> Place:
    """Find a run by id or path with the store of its copy, or by its URL in a store. Nothing is restored.

    Errors: InputError when it is neither here nor there.
    """
    if restoration.is_url(run):
        url, run_id = restoration.split_url(run)
        there = copy_in(open_store_url(url, runs_dir), run_id)
        if there.size("run.yaml") is None:
            raise InputError(f"{run}: there is no run at this place of the store")
        return Place(run_id, None, there)
    here = RunDirectory.find(run, runs_dir)
    store = open_store_url(store_url, runs_dir) if store_url else store_of(RunConfig.load(here.config), runs_dir)
    return Place(here.id, here, copy_in(store, here.id) if store else None)


def whole_store(store_url: str | None, runs_dir: Path, *, unfinished: bool = False) -> list[Place]:
    """Give the runs of a store that have ended, with `unfinished` the others too. Errors: InputError for no store."""
    store = open_store_url(store_url, runs_dir) if store_url else store_of(None, runs_dir)
    if store is None:
        raise InputError("no store is named; give --store URL, or store in settings.yaml")
    places = [Place(run_id, None, copy_in(store, run_id)) for run_id in holdings.runs_in(store)]
    return [place for place in places if unfinished or place.has_ended]


def store_of(config: RunConfig | None, runs_dir: Path) -> Store | None:
    """Open the store for copies of a run: that of its configuration, else of the settings; None where none is named.

    Errors: InputError, with the place of the key where it stands in the configuration.
    """
    named = config.checkpoint.store if config else None
    if named == NO_STORE:
        return None
    if config and named:
        with config.at("checkpoint.store"):
            return open_store_url(named, runs_dir)
    settings = Settings.load()
    url = settings.store_url()
    return _opened(url, settings, runs_dir) if url else None


def open_store_url(url: str, runs_dir: Path) -> Store:
    """Open the store of a URL, or of a reference to one, with the settings' keys.

    Errors: InputError, also for one whose runs would be `runs_dir` itself.
    """
    settings = Settings.load()
    return _opened(settings.read_url(url), settings, runs_dir)


def _opened(url: str, settings: Settings, runs_dir: Path) -> Store:
    parts = urlsplit(url)
    folder = Path(unquote(parts.path)) / RUNS
    if parts.scheme == "file" and folder.resolve() == runs_dir.resolve():
        raise InputError(f"{url}: its runs are {runs_dir} itself, where the runs are made; name another folder")
    return settings.opened_store(url)


def _reported(result: RunResult) -> RunResult:
    """Write the report, register the run; what cannot be done, or a store lacks, is told: the run's end stays."""
    try:
        write_report(result.run)
    except StoreError as error:
        print(redacted(str(error)), file=sys.stderr)  # noqa: T201  there is no other place to tell it
    if result.left is not None:
        names = f": {', '.join(result.left.checkpoints)}" if result.left.checkpoints else ""
        print(  # noqa: T201  likewise
            f"{result.run.id}: not all of it is in the store{names} ({redacted(result.left.why)}); it is kept here, "
            f"and goes there with: trainwright checkpoints sync {result.run.id}",
            file=sys.stderr,
        )
    if (told := register_after_training(result.run)) is not None:
        print(redacted(told), file=sys.stderr)  # noqa: T201  likewise
    return result
