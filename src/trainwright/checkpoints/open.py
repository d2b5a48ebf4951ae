"""The one file that names the backends."""

import re
from pathlib import Path
from urllib.parse import unquote

from trainwright.checkpoints.base import S3Settings, Store, check_key
from trainwright.checkpoints.filesystem import FileStore
from trainwright.checkpoints.memory import MemoryStore
from trainwright.errors import InputError

FILE = re.compile(r"file://(localhost)?(?P<path>/+[^/?#][^?#]*)")
BUCKET = re.compile(r"s3://(?P<name>[A-Za-z0-9._-]+)(/+(?P<prefix>[^?#]*?)/*)?")
USER = re.compile(r"//[^/]*@")
KNOWN = "file:///folder, s3://bucket/prefix and memory:"


def open_store(folder: Path) -> Store:
    return FileStore(folder)


def open_url(url: str, s3: S3Settings | None = None) -> Store:
    """Open a store by its URL; nothing is asked of it yet. `memory:` is a new, empty one each time.

    Errors: InputError for an URL of another kind, or one whose extra is not installed.
    """
    if url == "memory:":
        return MemoryStore()
    if file := FILE.fullmatch(url):
        return FileStore(Path(unquote(file["path"])))
    if bucket := BUCKET.fullmatch(url):
        return _s3(bucket["name"], bucket["prefix"] or "", s3 or S3Settings())
    shown = USER.sub("//…@", url)  # a key may stand there
    raise InputError(f"{shown!r} is no URL of a store; known are {KNOWN}")


def _s3(bucket: str, prefix: str, settings: S3Settings) -> Store:
    try:
        from trainwright.checkpoints.s3 import S3Bucket
    except ModuleNotFoundError as error:
        if error.name != "obstore":
            raise
        raise InputError("s3:// needs the extra s3: pip install 'trainwright[s3]'") from error
    return S3Bucket(bucket, check_key(prefix) if prefix else "", settings)
