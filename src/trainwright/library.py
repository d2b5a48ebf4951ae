"""The user's models: the registry and the store of their files, opened by the settings."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trainwright import registration, versionfiles
from trainwright.config import NO_STORE, RunConfig
from trainwright.errors import RegistryError, TrainwrightError
from trainwright.outcome import Outcome
from trainwright.redaction import redacted
from trainwright.registration import Registration
from trainwright.registry.base import Listed, ModelVersion, Registry
from trainwright.registry.open import open_registry
from trainwright.registry.versions import Bump
from trainwright.rundir import RunDirectory
from trainwright.settings import Settings
from trainwright.versionfiles import Shelf


@dataclass(frozen=True, slots=True)
class Library:
    """The registry, and where the files of new versions go."""

    registry: Registry
    shelf: Shelf


@contextmanager
def opened(store: str | None = None) -> Iterator[Library]:
    """Give the user's registry and store: that of `store`, a URL or a reference to one, or else of the settings.

    Without a store in the settings the files lie in the folder `store` of the home. Errors: InputError, RegistryError.
    """
    settings = Settings.load()
    url = settings.read_url(store) if store else settings.store_url()
    shelf = _shelf(url or (settings.home.absolute() / "store").as_uri(), settings)
    registry = open_registry(settings.registry_url())
    try:
        yield Library(registry, shelf)
    finally:
        registry.close()


def shelf_of(version: Listed) -> Shelf:
    """Open the store that a version's files lie in. Errors: InputError for a version that has none."""
    return _shelf(versionfiles.store_url_of(version), Settings.load())


def register_after_training(run: RunDirectory) -> str | None:
    """Register a run that says so in its run.yaml and whose gates hold; give a line that says what came of it.

    None for a run that says nothing of it, or did not finish. A failure is told, and changes nothing of the run's end.
    """
    try:
        section, result = RunConfig.load(run.config).register_, run.read_result()
        if section is None or result is None or result.outcome not in {Outcome.DONE.label, Outcome.GATE_FAILED.label}:
            return None
        return registration.told([_registered(run, section.name, section.bump)])[0]
    except TrainwrightError as error:
        return f"{run.id}: is not registered: {error}"


def _registered(run: RunDirectory, name: str, bump: Bump) -> Registration:
    with opened(RunConfig.load(run.config).checkpoint.named_store) as library:
        who = registration.person()
        return registration.register(run, library.registry, library.shelf, name, bump, who=who)


def complete_pending(runs_dir: Path) -> list[Registration]:
    """Bring to the store what registrations could not, as `registration.complete`, for every pending version.

    A version goes to the store of its run's configuration where that names one. Errors: InputError, RegistryError.
    """
    done: list[Registration] = []
    if not _is_there(Settings.load().registry_url()):
        return done
    with opened() as library:
        for listed in (one for one in library.registry.ls() if one.status == "pending"):
            version = library.registry.get(listed.name, listed.number)
            done.append(_completed(library, version, RunDirectory(runs_dir / version.run)))
    return done


def _completed(library: Library, version: ModelVersion, run: RunDirectory) -> Registration:
    """Complete one version; what is wrong with it alone keeps it pending, and keeps none of the others."""
    try:
        shelf = shelf_of_run(version) or library.shelf
        return registration.complete(library.registry, shelf, version, run, who=registration.person())
    except RegistryError:
        raise
    except TrainwrightError as error:
        return Registration(version, is_new=False, why=redacted(str(error)))


def shelf_of_run(version: ModelVersion) -> Shelf | None:
    """Open the store that the configuration of a version's run names, if it names one."""
    settings, store = Settings.load(), version.facts.hyperparameters.get("checkpoint", {}).get("store")
    return _shelf(settings.read_url(store), settings) if store and store != NO_STORE else None


def _is_there(registry_url: str) -> bool:
    """Tell whether a registry may hold anything: one in a file that is not there yet does not, and is not made."""
    scheme, _, path = registry_url.partition(":///")
    return not scheme.startswith("sqlite") or Path(path).exists()


def _shelf(url: str, settings: Settings) -> Shelf:
    return Shelf(settings.opened_store(url), url)
