"""What `trainwright doctor` finds: each backend that is configured tried for real, and what to do where it fails."""

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from time import monotonic, time
from typing import Final, Literal, TypeAlias
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen
from uuid import uuid4

from trainwright.checkpoints.base import S3Settings, Store
from trainwright.checkpoints.open import open_url
from trainwright.durations import duration
from trainwright.errors import TrainwrightError
from trainwright.redaction import redacted
from trainwright.registry.engines import engine_of
from trainwright.registry.revisions import known, revision_of
from trainwright.secrets import Reference
from trainwright.settings import Settings
from trainwright.signing import check_signing_key, signing_key

Result: TypeAlias = Literal["ok", "failed", "not configured", "not measured"]

LEAST_FREE_BYTES: Final = 1 << 30
MOST_CLOCK_SECONDS: Final = 300.0  # S3 refuses what was signed 15 minutes off
RETRY_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 10.0
AWS_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
AWS: Final = "https://s3.amazonaws.com"
CLOCK_ADVICE: Final = "set this machine's clock: timedatectl set-ntp true"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was tried. `measured` what was seen, `advice` what to do; neither shows a secret."""

    name: str
    result: Result
    measured: str = ""
    advice: str = ""


def diagnose(settings: Settings, runs_dir: Path) -> Iterator[Check]:
    """Try everything that `settings` name, and the folders of this machine; give each check as it is done."""
    yield _settings(settings)
    for key, reference, read in settings.references():
        yield _tried(f"setting {key}", partial(_read, reference, read))
    yield _vault(settings)
    yield from _store(settings)
    yield _registry(settings)
    yield _tried("free space of the home", lambda: _free_space(settings.home))
    yield _tried("free space of the runs", lambda: _free_space(runs_dir))
    yield _key()


class _FailedError(TrainwrightError):
    """A check saw something else than it should: what was seen; what to do."""


def _tried(name: str, measure: Callable[[], str]) -> Check:
    try:
        return Check(name, "ok", redacted(measure()))
    except TrainwrightError as error:
        return _failed(name, error)


def _failed(name: str, error: TrainwrightError) -> Check:
    seen, _, advice = redacted(str(error)).partition("; ")
    return Check(name, "failed", seen, advice)


def _settings(settings: Settings) -> Check:
    if not settings.file.exists():
        return Check("settings", "not configured", f"{settings.file} is not there", "write it to name a store")
    return Check("settings", "ok", str(settings.file))


def _read(reference: Reference, read: Callable[[], object]) -> str:
    read()
    return f"{reference} is there"


def _key() -> Check:
    key = signing_key()
    if key is None:
        return Check("signing key", "not configured", advice="make one: trainwright evidence keygen")

    def measure() -> str:
        check_signing_key()
        return f"{key}, mode {stat.S_IMODE(key.stat().st_mode):04o}"

    return _tried("signing key", measure)


def _free_space(folder: Path) -> str:
    """Errors: _FailedError when less is free than a checkpoint may take, or nothing can be written there."""
    there = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.is_dir())
    usage = shutil.disk_usage(there)
    told = f"{there}: {_size(usage.free)} of {_size(usage.total)} free"
    if not os.access(there, os.W_OK | os.X_OK):
        raise _FailedError(f"{there} cannot be written; give this user the right, or name another folder")
    if usage.free < LEAST_FREE_BYTES:
        raise _FailedError(f"{told}; make room: a save needs the size of the state, with the one before it still there")
    return told


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:,.1f} GB"


def _vault(settings: Settings) -> Check:
    if settings.vault is None:
        return Check("vault", "not configured")

    def measure() -> str:
        vault = settings.opened_vault()
        assert vault is not None
        seen = vault.standing()
        left = "has no end that is told" if seen.seconds_left is None else f"ends in {duration(seen.seconds_left)}"
        renewed = ", renewed while it is used" if seen.renewable else ""
        clock = _checked_clock(seen.clock_ahead)
        return f"{vault.address}, version {seen.version}; the token {left}{renewed}; {clock}"

    return _tried("vault", measure)


def _registry(settings: Settings) -> Check:
    try:
        url = settings.registry_url()
    except TrainwrightError as error:
        return _failed("registry", error)
    if url.startswith("sqlite:") and not Path(urlsplit(url).path[1:]).exists():
        return Check("registry", "not measured", f"{url} is not there yet: the first registration makes it")
    return _tried("registry", lambda: _revision(url))


def _revision(url: str) -> str:
    """Errors: RegistryError, InputError; _FailedError when the database is of another revision."""
    engine = engine_of(url)
    began = monotonic()
    try:
        revision = revision_of(engine)
    finally:
        engine.dispose()
    place = engine.url.render_as_string(hide_password=True)
    told = f"{place}, answered in {duration(monotonic() - began)}, revision {revision or 'none yet'}"
    if revision not in {None, known()[-1]}:
        raise _FailedError(f"{told}, this version needs {known()[-1]}; save a copy, then: trainwright models migrate")
    return told


# -- the store ---------------------------------------------------------------------------------------------------------


def _store(settings: Settings) -> Iterator[Check]:
    try:
        url = settings.store_url()
        s3 = settings.s3_settings() if url and url.startswith("s3:") else None
        store = open_url(url, s3 and replace(s3, retry_seconds=RETRY_SECONDS)) if url else None
    except TrainwrightError as error:
        yield _failed("store", error)
        return
    if url is None or store is None:
        yield Check("store", "not configured", advice="name one: store: s3://bucket/prefix in settings.yaml")
        return
    yield from _rights(url, store)
    if url.startswith("s3:"):
        yield _clock(s3 or S3Settings())
    free = store.free_bytes()
    if free is not None:
        yield _tried("store free space", lambda: _enough(free))


def _rights(url: str, store: Store) -> Iterator[Check]:
    """Write, read back, write once, copy, list and delete below doctor/; what failed ends it, and nothing stays."""
    key, data = f"doctor/{uuid4()}", uuid4().bytes * 64
    trials: dict[str, Callable[[], str]] = {
        "write": lambda: _wrote(store, key, data, url),
        "read back": lambda: _expected(store.get(key) == data, "the same bytes", "other bytes than were written"),
        "write once": lambda: _once(store, f"{key}-once", data),
        "copy": lambda: _copied(store, key, f"{key}-copy", data),
        "list": lambda: _expected(key in store.keys("doctor/"), "it is listed", "what was written is not listed"),
        "delete": lambda: _deleted(store, key, f"{key}-once", f"{key}-copy"),
    }
    seen = Check("store", "ok")
    for name, trial in trials.items():
        if name == "delete" or seen.result == "ok":
            seen = _tried(f"store {name}", trial)
            yield seen
        else:
            yield Check(f"store {name}", "not measured", "what comes before it failed")


def _wrote(store: Store, key: str, data: bytes, url: str) -> str:
    began = monotonic()
    store.put(key, data)
    return f"{url}: {len(data)} bytes in {duration(monotonic() - began)}"


def _expected(holds: bool, told: str, otherwise: str) -> str:
    if not holds:
        raise _FailedError(f"{otherwise}; use another store, or report it to who runs this one")
    return told


def _once(store: Store, key: str, data: bytes) -> str:
    first, second = store.put_new(key, data), store.put_new(key, b"another")
    otherwise = f"of two conditional writes of one key {int(first) + int(second)} were taken, and not the first alone"
    return _expected((first, second) == (True, False), "the second writer is refused", otherwise)


def _copied(store: Store, source: str, target: str, data: bytes) -> str:
    store.copy(source, target)
    return _expected(store.get(target) == data, "the same bytes", "other bytes than were copied")


def _deleted(store: Store, *keys: str) -> str:
    for key in keys:
        store.delete(key)
    left = [key for key in keys if store.size(key) is not None]
    return _expected(not left, "nothing is left", f"after delete there is still {', '.join(left)}")


def _enough(free_bytes: int) -> str:
    if free_bytes < LEAST_FREE_BYTES:
        raise _FailedError(f"{_size(free_bytes)} free; make room, or name another store")
    return f"{_size(free_bytes)} free"


def _clock(s3: S3Settings) -> Check:
    """Compare this machine's clock with the date of an answer of the endpoint, whose keys are not needed for that."""
    endpoint = s3.endpoint or next(filter(None, map(os.environ.get, AWS_ENDPOINTS)), AWS)
    began = time()
    date = _date_of(endpoint)
    if date is None:
        return Check("store clock", "not measured", f"{endpoint} tells no time")
    ahead = parsedate_to_datetime(date).timestamp() - (began + time()) / 2
    return _tried("store clock", lambda: _checked_clock(ahead))


def _date_of(endpoint: str) -> str | None:
    try:
        with urlopen(endpoint, timeout=ANSWER_SECONDS) as answer:  # noqa: S310  the user's own endpoint
            date: str | None = answer.headers["Date"]
    except HTTPError as refused:  # whoever has no key is refused, with the time
        date = refused.headers["Date"]
    except (OSError, ValueError):
        return None
    return date


def _checked_clock(ahead_seconds: float) -> str:
    told = _ahead(ahead_seconds)
    if abs(ahead_seconds) > MOST_CLOCK_SECONDS:
        raise _FailedError(f"{told}; {CLOCK_ADVICE}")
    return told


def _ahead(seconds: float) -> str:
    """Tell a difference from a clock that was read in whole seconds, cut off."""
    off = timedelta(seconds=abs(round(seconds + 0.5)))
    return f"its clock is {off} {'ahead' if seconds > 0 else 'behind'}" if off else "its clock agrees to the second"
