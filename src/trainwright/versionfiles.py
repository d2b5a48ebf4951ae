"""The files of model versions in a store: models/<name>/<version>/, with version.json last as the mark of a whole one.

What a version's files are and hash to, the registry says; nothing that lies in the store is believed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from trainwright.checkpoints.base import Store, check_key
from trainwright.checkpoints.parts import sha256_in
from trainwright.errors import DamagedCheckpointError, InputError, StoreError
from trainwright.files import make_directory, sha256_of_file, write_atomically
from trainwright.manifest import FileRecord
from trainwright.registry.base import Listed, ModelVersion, check_file, check_name

MODELS: Final = "models"
VERSION_FILE: Final = "version.json"


@dataclass(frozen=True, slots=True)
class Shelf:
    """A store of versions, and the URL that it is known by."""

    store: Store
    url: str

    def url_of(self, version: Listed) -> str:
        return f"{self.url.rstrip('/')}/{folder_of(version)}"


@dataclass(frozen=True, slots=True)
class Source:
    """Where a file of a version is taken from: a file here, or its copy in the same store where there is one."""

    path: Path
    copy: str | None = None


def folder_of(version: Listed) -> str:
    return check_key(f"{MODELS}/{check_name(version.name)}/{version.number}")


def store_url_of(version: Listed) -> str:
    """Give the URL of the store that a version's files lie in. Errors: InputError for one that has none there."""
    url, tail = version.artifact_url, f"/{folder_of(version)}"
    if url is None:
        raise InputError(f"{version.reference}: is {version.status}; its files are in no store yet")
    if not url.endswith(tail):
        raise InputError(f"{version.reference}: lies at {url}, which does not end in {tail}; nothing is read there")
    return url.removesuffix(tail)


def version_json(version: ModelVersion) -> bytes:
    """Give what version.json says: the version's facts, which never change."""
    facts = msgspec.to_builtins(version.facts)
    document = {"name": version.name, "version": str(version.number), "created": version.created}
    return msgspec.json.format(msgspec.json.encode({**document, "sha256": version.facts.sha256, **facts})) + b"\n"


def put(store: Store, version: ModelVersion, sources: Mapping[str, Source]) -> None:
    """Bring the files of a version to the store, each verified there, then version.json. What is there, stays.

    Errors: InputError for a version that was deleted; DamagedCheckpointError for a source that is not what the
    registry says; StoreError.
    """
    if version.status == "deleted":
        raise InputError(f"{version.reference}: was deleted, and its files do not come back")
    keys = _keys(version)
    for name, record in version.facts.files.items():
        _put_one(store, keys[name], sources[name], record)
    store.put(_key(version, VERSION_FILE), version_json(version))


def problems_of(store: Store, version: ModelVersion) -> list[str]:
    """Hash every file of a version in the store; give a line a problem, which begins with the file's name.

    Errors: StoreError other than damage.
    """
    names = {*version.facts.files, VERSION_FILE}
    there = {key.removeprefix(f"{folder_of(version)}/") for key in store.keys(f"{folder_of(version)}/")}
    problems = [f"{name}: is no file of this version" for name in sorted(there - names)]
    for name, key in _keys(version).items():
        record = version.facts.files[name]
        problems += [f"{name}: {reason}" for reason in _problems_of_file(store, key, record)]
    if VERSION_FILE not in there:
        return [*problems, f"{VERSION_FILE}: is missing"]
    if store.get(_key(version, VERSION_FILE)) != version_json(version):
        problems.append(f"{VERSION_FILE}: is not what the registry says of this version")
    return problems


def pull(store: Store, version: ModelVersion, out: Path) -> Path:
    """Write the files of a version to a folder; each gets its name once its hash is verified, version.json last.

    Errors: InputError for a folder that holds anything else, or a version that was deleted; DamagedCheckpointError;
    StoreError.
    """
    if version.status != "ready":
        raise InputError(f"{version.reference}: is {version.status}; only a version that is ready can be pulled")
    _refuse_foreign(version, out)
    keys = _keys(version)
    try:
        make_directory(out)
        _unmark(out / VERSION_FILE, version)
        for name, record in version.facts.files.items():
            if not _is_there(out / name, record):
                store.get_file(keys[name], out / name, sha256=record.sha256)
        write_atomically(out / VERSION_FILE, version_json(version))
    except OSError as error:
        raise StoreError(f"{error.filename or out}: cannot be written: {error.strerror or error}") from error
    return out


def remove(store: Store, version: ModelVersion) -> None:
    """Remove the files of a deleted version from the store, version.json first. Errors: InputError, StoreError."""
    if version.status != "deleted":
        raise InputError(f"{version.reference}: is {version.status}, and its files stay")
    store.delete(_key(version, VERSION_FILE))
    for key in store.keys(f"{folder_of(version)}/"):
        store.delete(key)


def _key(version: Listed, name: str) -> str:
    return check_key(f"{folder_of(version)}/{check_file(name)}")


def _keys(version: ModelVersion) -> dict[str, str]:
    """Give name → key of every file, all of them checked before any is touched. Errors: InputError."""
    return {name: _key(version, name) for name in version.facts.files}


def _put_one(store: Store, key: str, source: Source, record: FileRecord) -> None:
    if not _problems(store, key, record):
        return
    if source.copy and store.size(source.copy) == record.size:
        store.copy(source.copy, key)
        if not _problems(store, key, record):
            return
    store.put_file(key, source.path, sha256=record.sha256)


def _problems(store: Store, key: str, record: FileRecord) -> list[str]:
    return list(_problems_of_file(store, key, record))


def _problems_of_file(store: Store, key: str, record: FileRecord) -> Iterator[str]:
    size = store.size(key)
    if size is None:
        yield "is missing"
    elif size != record.size:
        yield f"has {size} bytes, the registry says {record.size}"
    else:
        try:
            sha256 = sha256_in(store, key, size)
        except DamagedCheckpointError as error:
            yield f"cannot be read: {error}"
            return
        if sha256 != record.sha256:
            yield f"its SHA-256 is {sha256}, the registry says {record.sha256}"


def _is_there(path: Path, record: FileRecord) -> bool:
    is_file = path.is_file() and not path.is_symlink()
    return is_file and path.stat().st_size == record.size and sha256_of_file(path) == record.sha256


def _unmark(file: Path, version: ModelVersion) -> None:
    """Remove the mark of another version, whose files are about to be replaced one by one."""
    if file.is_symlink() or (file.is_file() and file.read_bytes() != version_json(version)):
        file.unlink()


def _refuse_foreign(version: ModelVersion, out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: is a file; --out names a folder")
    names = {*version.facts.files, VERSION_FILE}
    foreign = sorted(path.name for path in out.iterdir() if path.name not in names) if out.is_dir() else []
    if foreign:
        raise InputError(f"{out}: holds {foreign[0]}, which is no file of {version.reference}; --out another folder")
