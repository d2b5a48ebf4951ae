"""A real SeaweedFS, started for tests: S3 on disk, with keys that it checks."""

import json
import os
import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from time import monotonic, sleep

from trainwright.checkpoints.base import S3Settings, Store
from trainwright.checkpoints.open import open_url
from trainwright.checkpoints.s3uploads import Bucket, Keys
from trainwright.errors import StoreError, StoreRefusedError
from trainwright.secrets import Secret

WEED = Path(sys.executable).with_name("weed")
DEADLINE_SECONDS = 60.0
BUCKET = os.environ.get("TRAINWRIGHT_TEST_S3_BUCKET", "trainwright-tests")
REGION = os.environ.get("AWS_REGION", "us-east-1")
OWNER = Keys("AKOWNER", Secret("the-owners-secret-key"), None)
READER = Keys("AKREADER", Secret("the-readers-secret-key"), None)
RIGHTS = {OWNER: ["Admin", "Read", "Write", "List", "Tagging"], READER: ["Read", "List"]}
QUIET = ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3", "-s3.port.iceberg=0", "-s3.port.lance=0"]
SMALL = ["-master.volumeSizeLimitMB=64", "-master.electionTimeout=1s"]


@dataclass
class Seaweed:
    """A server over `folder`; killed and started again it has the same ports and what it had stored."""

    folder: Path
    volumes: int = 100  # of 64 MB
    ports: list[int] = field(default_factory=list)
    _child: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.ports[-1]}"

    @property
    def settings(self) -> S3Settings:
        return settings_of(self.endpoint, OWNER)

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def open(self, prefix: str, settings: S3Settings | None = None) -> Store:
        return open_url(f"s3://{BUCKET}/{prefix}", settings or self.settings)

    def start(self) -> None:
        """Start on free ports, on the same ones the second time. Another process may take one before: then others."""
        for _ in range(5):
            ports = self.ports or _free_ports(4)
            self._spawn(ports)
            if self._ready(ports[-1]):
                self.ports = ports
                make_bucket(self.endpoint, OWNER)
                return
            self.kill()
        raise RuntimeError((self.folder / "weed.log").read_text()[-2000:])

    def kill(self) -> None:
        """End it with SIGKILL, as a machine that is switched off."""
        if self._child:
            self._child.kill()
            self._child.wait()

    def _spawn(self, ports: list[int]) -> None:
        data, rights = self.folder / "data", self.folder / "s3.json"
        data.mkdir(parents=True, exist_ok=True)
        rights.write_text(json.dumps({"identities": [_identity(keys, RIGHTS[keys]) for keys in RIGHTS]}))
        names = ("master", "volume", "filer", "s3")
        options = [
            f"-dir={data}",
            f"-s3.config={rights}",
            *(f"-{n}.port={p}" for n, p in zip(names, ports, strict=True)),
        ]
        options.append(f"-volume.max={self.volumes}")
        with (self.folder / "weed.log").open("ab") as log:
            command = [str(WEED), "-logtostderr=true", "server", *options, *QUIET, *SMALL]
            self._child = subprocess.Popen(command, stdout=log, stderr=log)

    def _ready(self, port: int) -> bool:
        end = monotonic() + DEADLINE_SECONDS
        settings = replace(settings_of(f"http://127.0.0.1:{port}", OWNER), retry_seconds=0.1)
        while monotonic() < end and self.running:
            if _answers(port):
                try:
                    open_url("s3://ready", settings).put("ready", b"")
                except StoreError:
                    pass
                else:
                    return True
            sleep(0.05)  # between two looks at another process
        return False


@contextmanager
def running(folder: Path, volumes: int = 100) -> Iterator[Seaweed]:
    server = Seaweed(folder, volumes)
    server.start()
    try:
        yield server
    finally:
        server.kill()


def settings_of(endpoint: str, keys: Keys) -> S3Settings:
    return S3Settings(
        endpoint=endpoint,
        region=REGION,
        access_key=keys.access,
        secret_key=keys.secret,
        session_token=keys.token,
        allow_http=endpoint.startswith("http:"),
    )


def make_bucket(endpoint: str, keys: Keys, name: str = BUCKET) -> None:
    try:
        bucket_of(endpoint, keys, name)._ask("PUT", "", {})
    except StoreRefusedError as error:
        if "BucketAlready" not in str(error):
            raise


def interrupted_uploads(endpoint: str, keys: Keys, prefix: str) -> list[str]:
    return sorted(key for key, _ in bucket_of(endpoint, keys)._uploads(prefix))


def bucket_of(endpoint: str, keys: Keys, name: str = BUCKET) -> Bucket:
    scheme, _, host = endpoint.partition("://")
    return Bucket(scheme, host, f"/{name}", REGION, keys)


def _identity(keys: Keys, actions: list[str]) -> dict[str, object]:
    credentials = [{"accessKey": keys.access, "secretKey": keys.secret.reveal()}]
    return {"name": keys.access, "credentials": credentials, "actions": actions}


def _answers(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status < 500
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def _free_ports(count: int) -> list[int]:
    """Give ports P such that P and P + 10000, which it takes too, are free; below those that the system hands out."""
    found: set[int] = set()
    while len(found) < count:
        port = random.randrange(11_000, 21_000)
        if _free(port) and _free(port + 10_000):
            found.add(port)
    return list(found)


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
