"""Checkpoints in a bucket, by obstore: Amazon's S3 and what speaks like it.

Each request carries the SHA-256 of its body, signed and as S3's checksum, so that a server keeps no part that was
damaged on the way. Faults of the server and of the way to it are tried again with growing, random pauses.
"""

import os
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store

from trainwright.checkpoints.base import S3Settings, check_key, check_range, is_key
from trainwright.checkpoints.parts import PART_BYTES, verified_parts, write_verified
from trainwright.checkpoints.s3errors import error_of
from trainwright.checkpoints.s3uploads import Bucket, Keys
from trainwright.errors import InputError, StoreError
from trainwright.secrets import Secret

MAX_PARTS: Final = 9_000  # S3 takes 10,000
PARTS_AT_ONCE: Final = 4
COPY_BYTES: Final = 5 * 1024**3  # what S3 copies in one request
QUIET_SECONDS: Final = 60.0  # no byte for so long: the connection counts as lost
COPY_SECONDS: Final = 900.0  # a copy on the server's side is silent until it is done
TRIED_AGAIN: Final = "max_retries"  # stands in what obstore tells once it did


class S3Bucket:
    """The store `s3://bucket/prefix`, of a bucket that is there. A value over 5 GB is copied through here, in parts."""

    def __init__(self, bucket: str, prefix: str, settings: S3Settings) -> None:
        self._bucket, self._prefix, self._settings = bucket, f"{prefix}/" if prefix else "", settings
        self._store = _client(bucket, prefix, settings, QUIET_SECONDS)
        self._patient = _client(bucket, prefix, settings, COPY_SECONDS)

    def put(self, key: str, *parts: bytes | memoryview) -> None:
        data = b"".join(parts)
        with self._border("written", check_key(key)):
            obstore.put(self._store, key, data, chunk_size=_part_bytes(len(data)), max_concurrency=PARTS_AT_ONCE)

    def put_new(self, key: str, data: bytes) -> bool:
        with self._border("written", check_key(key)):
            try:
                obstore.put(self._store, key, data, mode="create")
            except AlreadyExistsError as error:  # perhaps by a first try of ours, whose answer was lost
                return TRIED_AGAIN in str(error).partition("\n")[0] and self.get(key) == data
        return True

    def put_file(self, key: str, path: Path, *, sha256: str) -> None:
        check_key(key)
        size = path.stat().st_size if path.is_file() else 0
        with self._border("written", key):
            self._put_parts(key, verified_parts(path, sha256=sha256, part_bytes=_part_bytes(size)), size)
        if (arrived := self.size(key)) != size:
            raise StoreError(f"{self._name(key)}: has {arrived} bytes after the upload of {path}, which has {size}")

    def get(self, key: str) -> bytes:
        with self._border("read", check_key(key)):
            return bytes(obstore.get(self._store, key).bytes())

    def get_range(self, key: str, start: int, length: int) -> bytes:
        check_range(start, length)
        with self._border("read", check_key(key)):
            end = min(start + length, obstore.head(self._store, key)["size"])
            return bytes(obstore.get_range(self._store, key, start=start, end=end)) if start < end else b""

    def get_file(self, key: str, path: Path, *, sha256: str) -> None:
        write_verified(self._parts(check_key(key), PART_BYTES), path, sha256=sha256, name=self._name(key))

    def copy(self, source: str, target: str) -> None:
        check_key(target)
        size = self.size(source) or 0
        if size and source == target:
            return  # S3 refuses that
        with self._border("copied", source):
            if size <= COPY_BYTES:
                obstore.copy(self._patient, source, target)
            else:
                self._put_parts(target, self._parts(source, _part_bytes(size)), size)

    def size(self, key: str) -> int | None:
        with self._border("looked up", check_key(key)):
            try:
                return obstore.head(self._store, key)["size"]
            except FileNotFoundError:
                return None

    def keys(self, prefix: str = "") -> Sequence[str]:
        folder = prefix.rpartition("/")[0]
        if folder and not is_key(folder):
            return []
        with self._border("listed", prefix):
            listed = obstore.list(self._store, folder or None, chunk_size=1000)
            paths = [entry["path"] for page in listed for entry in page]
        return sorted(path for path in paths if path.startswith(prefix) and is_key(path))

    def delete(self, key: str) -> None:
        with self._border("deleted", check_key(key)):
            obstore.delete(self._store, key)

    def sweep(self, prefix: str = "") -> None:
        """Abort interrupted uploads in parts. Where the keys are a role's, a warning: that is the bucket's lifecycle's.

        MinIO lists none below a prefix, and removes them itself after a day.
        """
        if (keys := _keys(self._settings)) is None:
            warnings.warn(
                f"{self._name('')}: without s3.access_key or AWS_ACCESS_KEY_ID interrupted uploads are not looked for; "
                "give the bucket a lifecycle rule that aborts them",
                stacklevel=2,
            )
            return
        with self._border("swept", prefix):
            whole = _client(self._bucket, "", self._settings, QUIET_SECONDS)
            signed = obstore.sign(whole, "GET", "k", timedelta(minutes=1))
            Bucket.of(signed, keys).abort_uploads(self._prefix + prefix)

    def free_bytes(self) -> int | None:
        return None

    def _put_parts(self, key: str, parts: Iterator[bytes | memoryview], size: int) -> None:
        obstore.put(self._store, key, parts, chunk_size=_part_bytes(size), max_concurrency=PARTS_AT_ONCE)

    def _parts(self, key: str, part_bytes: int) -> Iterator[memoryview]:
        """Give the value in its order, a few parts of it being on their way at once."""
        with self._border("read", key), ThreadPoolExecutor(PARTS_AT_ONCE) as pool:
            answer = obstore.get(self._store, key)  # and no HEAD: its refusals have no text
            found = answer.meta
            if found["size"] <= part_bytes:
                yield memoryview(answer.bytes())
                return
            del answer  # of a large value only this much is wanted
            coming: deque[Future[memoryview]] = deque()
            for start in range(0, found["size"], part_bytes):
                coming.append(pool.submit(self._part, key, (start, start + part_bytes), found["e_tag"]))
                if len(coming) == PARTS_AT_ONCE:
                    yield coming.popleft().result()
            while coming:
                yield coming.popleft().result()

    def _part(self, key: str, place: tuple[int, int], e_tag: str | None) -> memoryview:
        """Give the bytes at `place` of the value that has this tag: never of one that was put in between."""
        options: Any = {"range": place, "if_match": e_tag}
        return memoryview(obstore.get(self._store, key, options=options).bytes())

    def _name(self, key: str) -> str:
        return f"s3://{self._bucket}/{self._prefix}{key}"

    @contextmanager
    def _border(self, done: str, key: str) -> Iterator[None]:
        """Turn what obstore raises into errors of ours."""
        try:
            yield
        except (BaseError, FileNotFoundError) as error:
            missing = isinstance(error, FileNotFoundError)
            what, endpoint = f"{self._name(key)} cannot be {done}", self._settings.endpoint or "the store"
            raise error_of(str(error), what=what, endpoint=endpoint, missing=missing) from error


def _client(bucket: str, prefix: str, settings: S3Settings, quiet_seconds: float) -> S3Store:
    """Give obstore's client. What `settings` leaves open it takes from `AWS_*`, in the environment.

    Of both keys in `settings` the token is there too, or there is none: one of `AWS_*` belongs to other keys.
    """
    secret, token = settings.secret_key, settings.session_token
    whole: Any = {
        "access_key_id": settings.access_key,
        "secret_access_key": secret.reveal() if secret else None,
        "token": token.reveal() if token else None,
        "expires_at": None,
    }
    given = {
        "endpoint": _endpoint(bucket, settings),
        "region": settings.region,
        "access_key_id": settings.access_key,
        "secret_access_key": secret.reveal() if secret else None,
        "session_token": token.reveal() if token else None,
    }
    config: Any = {name: value for name, value in given.items() if value is not None}
    config["virtual_hosted_style_request"] = not settings.path_style
    config["checksum_algorithm"] = "SHA256"
    config["disable_bulk_delete"] = True  # not every server knows it
    return S3Store(
        bucket,
        prefix=prefix or None,
        config=config,
        credential_provider=(lambda: whole) if settings.access_key and secret else None,
        client_options={
            **({"allow_http": True} if settings.allow_http else {}),
            "connect_timeout": timedelta(seconds=5),
            "read_timeout": timedelta(seconds=quiet_seconds),
            "timeout": timedelta(days=1),  # a large value takes its time; `read_timeout` tells a dead connection
        },
        retry_config={
            "max_retries": 20,
            "retry_timeout": timedelta(seconds=settings.retry_seconds),
            "backoff": {
                "init_backoff": timedelta(milliseconds=100),
                "max_backoff": timedelta(seconds=5),
                "base": 2,
            },
        },
    )


def _endpoint(bucket: str, settings: S3Settings) -> str | None:
    if settings.endpoint is None:
        return None
    parts = urlsplit(settings.endpoint)
    if parts.scheme not in {"http", "https"} or not parts.netloc:
        raise InputError(f"s3.endpoint is {settings.endpoint!r}; expected https://host or https://host:port")
    if parts.scheme == "http" and not settings.allow_http:
        raise InputError(f"s3.endpoint is {settings.endpoint}, without TLS; set s3.allow_http: true if that is meant")
    return settings.endpoint if settings.path_style else parts._replace(netloc=f"{bucket}.{parts.netloc}").geturl()


def _keys(settings: S3Settings) -> Keys | None:
    """Give the keys by which `_client` signs, where they are known here."""
    if settings.access_key and settings.secret_key:
        return Keys(settings.access_key, settings.secret_key, settings.session_token)
    access = settings.access_key or os.environ.get("AWS_ACCESS_KEY_ID")
    secret = settings.secret_key.reveal() if settings.secret_key else os.environ.get("AWS_SECRET_ACCESS_KEY")
    token = os.environ.get("AWS_SESSION_TOKEN") or os.environ.get("AWS_TOKEN")
    return Keys(access, Secret(secret), Secret(token) if token else None) if access and secret else None


def _part_bytes(size: int) -> int:
    """Give how large the parts of a value of `size` bytes are: S3 takes only so many."""
    return max(PART_BYTES, -(-size // MAX_PARTS))
