"""New run directories: made with their first records, or not at all."""

import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trainwright.errors import StoreError
from trainwright.files import make_directory, sync_directory, write_atomically
from trainwright.jsonfile import write_json
from trainwright.rundir import RunDirectory


def create_run(
    name: str,
    runs_dir: Path,
    config: str,
    *,
    contract: str | None = None,
    environment: Mapping[str, Any] | None = None,
) -> RunDirectory:
    """Make a run directory with its first records; run.yaml is written last, and makes it a run.

    Errors: StoreError when it cannot be written; nothing is left of it.
    """
    run = create_record(name, runs_dir, contract=contract, environment=environment)
    try:
        with storing(run.path):
            write_atomically(run.config, config.encode())
    except BaseException:
        shutil.rmtree(run.path, ignore_errors=True)
        raise
    return run


def create_record(
    name: str, runs_dir: Path, *, contract: str | None = None, environment: Mapping[str, Any] | None = None
) -> RunDirectory:
    """Make the directory of a record that is no run yet: contract and environment.

    Errors: StoreError when it cannot be written; nothing is left of it.
    """
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    run = RunDirectory(runs_dir / f"{name}-{stamp}-{secrets.token_hex(2)}")
    with storing(run.path):
        make_directory(runs_dir)
        run.path.mkdir()
        sync_directory(runs_dir)
        try:
            if contract is not None:
                write_atomically(run.contract, contract.encode())
            if environment is not None:
                write_json(run.environment, {**environment, "run": run.id})
        except BaseException:
            shutil.rmtree(run.path, ignore_errors=True)
            raise
    return run


@contextmanager
def storing(path: Path) -> Iterator[None]:
    """Turn an OSError while records are written at `path` into a StoreError that says what is free there."""
    try:
        yield
    except OSError as error:
        there = next(folder for folder in (path, *path.absolute().parents) if folder.is_dir())
        free = shutil.disk_usage(there).free
        raise StoreError(
            f"{error.filename or path}: cannot be written: {error.strerror}; {free} bytes are free there; make room or "
            "choose another --runs-dir"
        ) from error
