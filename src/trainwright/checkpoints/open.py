"""The one file that names the backends."""

from pathlib import Path

from trainwright.checkpoints.base import Store
from trainwright.checkpoints.filesystem import FileStore


def open_store(folder: Path) -> Store:
    return FileStore(folder)
