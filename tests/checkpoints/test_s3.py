"""S3 against a real server: SeaweedFS, or the endpoint that TRAINWRIGHT_TEST_S3_ENDPOINT names, with keys of AWS_*."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import cycle
from pathlib import Path
from uuid import uuid4

import obstore
import pytest

from tests.servers import seaweed
from tests.servers.faultyproxy import Proxy, proxy_to
from tests.servers.seaweed import BUCKET, OWNER, READER, Seaweed, settings_of
from tests.suites.store import StoreTests
from trainwright.checkpoints.base import S3Settings, Store
from trainwright.checkpoints.open import open_url
from trainwright.checkpoints.parts import PART_BYTES, write_verified
from trainwright.checkpoints.s3 import S3Bucket
from trainwright.checkpoints.s3uploads import Bucket, Keys
from trainwright.checkpoints.within import within
from trainwright.errors import InputError, StoreError, StoreRefusedError, StoreUnavailableError
from trainwright.files import sha256_of_bytes
from trainwright.secrets import Secret

ENDPOINT = os.environ.get("TRAINWRIGHT_TEST_S3_ENDPOINT")


@pytest.fixture(scope="session")
def started(request: pytest.FixtureRequest) -> Seaweed | None:
    """Give the server of these tests; None where they are against another."""
    server: Seaweed | None = None if ENDPOINT else request.getfixturevalue("seaweed")
    return server


@pytest.fixture(scope="session")
def s3(started: Seaweed | None) -> S3Settings:
    if started:
        return started.settings
    assert ENDPOINT
    keys = Keys(os.environ["AWS_ACCESS_KEY_ID"], Secret(os.environ["AWS_SECRET_ACCESS_KEY"]), None)
    seaweed.make_bucket(ENDPOINT, keys)
    return settings_of(ENDPOINT, keys)


@pytest.fixture
def server(started: Seaweed | None) -> Iterator[Seaweed]:
    """Give the server to be killed; it runs again afterwards."""
    if started is None:
        pytest.skip("the server of TRAINWRIGHT_TEST_S3_ENDPOINT is not killed")
    yield started
    if not started.running:
        started.start()


class TestS3(StoreTests):
    @pytest.fixture
    def store(self, s3: S3Settings) -> Store:
        return open_url(f"s3://{BUCKET}/{uuid4().hex}", s3)


class TestPartOfS3(StoreTests):
    @pytest.fixture
    def store(self, s3: S3Settings) -> Store:
        return within(open_url(f"s3://{BUCKET}", s3), uuid4().hex)


@pytest.fixture
def proxy(s3: S3Settings) -> Iterator[Proxy]:
    assert s3.endpoint
    with proxy_to(s3.endpoint) as proxy:
        yield proxy


def through(proxy: Proxy, s3: S3Settings, prefix: str, retry_seconds: float = 30.0) -> Store:
    settings = replace(s3, endpoint=proxy.endpoint, allow_http=True, retry_seconds=retry_seconds)
    return open_url(f"s3://{BUCKET}/{prefix}", settings)


def all_verbs(store: Store, folder: Path) -> dict[str, Callable[[], object]]:
    """Give a call of each verb that works on a store that holds `a`."""
    source = folder / "source"
    source.write_bytes(b"one")
    sha256 = sha256_of_bytes(b"one")
    return {
        "put": lambda: store.put("a", b"one"),
        "put_new": lambda: store.put_new(uuid4().hex, b"one"),
        "put_file": lambda: store.put_file("a", source, sha256=sha256),
        "get": lambda: store.get("a"),
        "get_range": lambda: store.get_range("a", 1, 1),
        "get_file": lambda: store.get_file("a", folder / "got", sha256=sha256),
        "copy": lambda: store.copy("a", "b"),
        "size": lambda: store.size("a"),
        "keys": store.keys,
        "delete": lambda: store.delete("b"),
    }


def test_a_store_that_fails_twice_and_then_works_is_asked_again_by_every_verb(s3: S3Settings, tmp_path: Path) -> None:
    endpoint = s3.endpoint
    assert endpoint

    def requests_of(name: str, status: int) -> int:
        (tmp_path / name).mkdir()
        with proxy_to(endpoint) as proxy:
            store = through(proxy, s3, uuid4().hex)
            store.put("a", b"one")
            proxy.status, proxy.fail = status, 2
            all_verbs(store, tmp_path / name)[name]()
            return len(proxy.seen)

    names = [*all_verbs(open_url("memory:"), tmp_path)]
    with ThreadPoolExecutor(len(names)) as pool:
        asked = list(pool.map(requests_of, names, cycle((500, 503, 429))))
    assert all(number >= 4 for number in asked), dict(zip(names, asked, strict=True))


def test_a_store_that_always_fails_is_unavailable_and_named_by_every_verb(
    proxy: Proxy, s3: S3Settings, tmp_path: Path
) -> None:
    store = through(proxy, s3, uuid4().hex, retry_seconds=0.05)
    store.put("a", b"one")
    proxy.fail = 10**6
    for verb in [*all_verbs(store, tmp_path).values(), store.sweep]:
        with pytest.raises(StoreUnavailableError, match=f"{proxy.endpoint} does not answer as it should: 500 Internal"):
            verb()
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_store_that_is_not_there_is_unavailable(s3: S3Settings, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        endpoint = f"http://127.0.0.1:{taken.getsockname()[1]}"
        store = open_url(f"s3://{BUCKET}/x", replace(s3, endpoint=endpoint, allow_http=True, retry_seconds=0.1))
        for verb in [*all_verbs(store, tmp_path).values(), store.sweep]:
            with pytest.raises(StoreUnavailableError, match=f"{endpoint} does not answer as it should"):
                verb()


def test_a_file_whose_upload_fails_on_the_way_leaves_the_earlier_value_and_no_parts(
    proxy: Proxy, s3: S3Settings, tmp_path: Path
) -> None:
    prefix = uuid4().hex
    store = through(proxy, s3, prefix, retry_seconds=0.3)
    store.put("a", b"earlier")
    path, sha256 = big_file(tmp_path)
    for number in (1, 3, 5):
        proxy.fail, proxy.breaks = 0, f"partNumber={number}"
        with pytest.raises(StoreUnavailableError):
            store.put_file("a", path, sha256=sha256)
    proxy.breaks = None
    assert store.get("a") == b"earlier"
    assert uploads_below(s3, prefix) == []


def test_a_new_value_whose_answer_was_lost_counts_as_put_and_another_as_there(proxy: Proxy, s3: S3Settings) -> None:
    store = through(proxy, s3, uuid4().hex)
    proxy.after = True
    for key, data, expected in (("a", b"mine", True), ("a", b"other", False)):
        proxy.fail = 1
        assert store.put_new(key, data) is expected
    proxy.fail = 0
    assert not store.put_new("a", b"mine")
    assert store.get("a") == b"mine"


WRONG = {
    "another secret": (OWNER.access, "wrong", "403 SignatureDoesNotMatch: .*check s3.secret_key"),
    "no such key": ("AKNOBODY", "wrong", "403 InvalidAccessKeyId: .*check s3.access_key"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_key_is_refused_by_every_verb_at_once_and_never_shown(
    case: str, s3: S3Settings, tmp_path: Path
) -> None:
    access, secret, message = WRONG[case]
    secret = f"{secret}-{uuid4().hex}"
    settings = replace(s3, access_key=access if case == "no such key" else s3.access_key, secret_key=Secret(secret))
    store = open_url(f"s3://{BUCKET}/{uuid4().hex}", settings)
    verbs = all_verbs(store, tmp_path)
    told = []
    for verb in [*verbs.values(), store.sweep]:
        with pytest.raises(StoreRefusedError) as caught:
            verb()
        told.append(str(caught.value))
        assert secret not in str(caught.value) + repr(caught.value.__cause__) + repr(store) + repr(settings)
    assert sum(bool(re.search(message, text)) for text in told) >= len(verbs) - 2  # the answer to HEAD has no body
    assert all("403" in text and "check s3." in text for text in told)


@pytest.mark.skipif(bool(ENDPOINT), reason="needs a key that may only read")
def test_a_key_that_may_only_read_reads_and_is_refused_what_writes(s3: S3Settings, tmp_path: Path) -> None:
    prefix = uuid4().hex
    open_url(f"s3://{BUCKET}/{prefix}", s3).put("a", b"one")
    reader = replace(s3, access_key=READER.access, secret_key=READER.secret)
    store = open_url(f"s3://{BUCKET}/{prefix}", reader)
    verbs = all_verbs(store, tmp_path)
    reading = {"get", "get_range", "get_file", "size", "keys"}
    for name in reading:
        verbs[name]()
    for name in verbs.keys() - reading:
        with pytest.raises(StoreRefusedError, match=r"403 AccessDenied: .*give this key the right"):
            verbs[name]()
    assert list(store.keys()) == ["a"]


def test_a_bucket_that_is_not_there_is_refused_by_name(s3: S3Settings, tmp_path: Path) -> None:
    store = open_url(
        "s3://no-such-bucket/x", replace(s3, access_key=READER.access, secret_key=READER.secret) if not ENDPOINT else s3
    )
    for verb in (lambda: store.get("a"), store.keys, lambda: store.get_file("a", tmp_path / "a", sha256="0" * 64)):
        with pytest.raises(StoreRefusedError, match=r"NoSuchBucket: .*make the bucket, or name another"):
            verb()


def test_a_value_replaced_while_it_is_read_is_never_mixed_with_the_other(s3: S3Settings, tmp_path: Path) -> None:
    path, sha256 = big_file(tmp_path)
    store = open_url(f"s3://{BUCKET}/{uuid4().hex}", s3)
    assert isinstance(store, S3Bucket)
    store.put_file("big", path, sha256=sha256)
    parts = store._parts("big", PART_BYTES)
    next(parts)
    store.put("big", b"x" * path.stat().st_size)
    with pytest.raises(StoreError, match="412 Precondition"):
        list(parts)


def test_more_keys_than_a_page_holds_are_all_listed(s3: S3Settings) -> None:
    store = open_url(f"s3://{BUCKET}/{uuid4().hex}", s3)
    keys = [f"a/{number:04}" for number in range(1100)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: store.put(key, b""), keys))
    assert list(store.keys("a/")) == keys


def test_without_any_keys_the_store_is_refused_with_those_that_are_missing(
    s3: S3Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
    store = open_url("s3://bucket/prefix", replace(s3, access_key=None, secret_key=None, retry_seconds=0.1))
    with pytest.raises(StoreRefusedError, match=r"there are no keys; set s3\.access_key and s3\.secret_key, or AWS_"):
        store.put("credentials", b"")


def test_a_session_token_of_the_environment_is_not_mixed_with_keys_of_the_settings(
    s3: S3Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-other-keys")
    store = open_url(f"s3://{BUCKET}/{uuid4().hex}", s3)
    store.put("a", b"one")
    store.sweep()
    assert store.get("a") == b"one"


@pytest.mark.parametrize("endpoint", ["", "minio", "minio:9000", "ftp://minio", "http://"])
def test_an_endpoint_that_is_no_address_is_refused(s3: S3Settings, endpoint: str) -> None:
    with pytest.raises(InputError, match=r"expected https://host or https://host:port"):
        open_url("s3://bucket", replace(s3, endpoint=endpoint))


def test_plain_http_must_be_meant(s3: S3Settings) -> None:
    with pytest.raises(InputError, match=r"http://example\.invalid, without TLS; set s3\.allow_http: true"):
        open_url("s3://bucket", replace(s3, endpoint="http://example.invalid", allow_http=False))


def test_keys_that_are_not_known_here_are_told_by_sweep(s3: S3Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    store = open_url("s3://bucket/prefix", replace(s3, access_key=None, secret_key=None))
    with pytest.warns(UserWarning, match=r"^s3://bucket/prefix/: .*give the bucket a lifecycle rule that aborts them$"):
        store.sweep()


@pytest.mark.parametrize(
    ("path_style", "host", "path"),
    [(True, "s3.example.org:9000", "/bucket"), (False, "bucket.s3.example.org:9000", "")],
)
def test_the_bucket_stands_in_the_path_or_in_the_host(s3: S3Settings, path_style: bool, host: str, path: str) -> None:
    settings = replace(s3, endpoint="http://s3.example.org:9000", region="eu-north-1", path_style=path_style)
    store = open_url("s3://bucket/prefix", replace(settings, allow_http=True))
    assert isinstance(store, S3Bucket)
    signed = obstore.sign(store._store, "GET", "a/b", timedelta(minutes=1))
    assert signed.startswith(f"http://{host}{path}/prefix/a/b?")
    found = Bucket.of(signed.replace("/prefix/a/b?", "/k?"), OWNER)
    assert (found.scheme, found.host, found.path, found.region) == ("http", host, path, "eu-north-1")


UPLOAD = """
import sys
from pathlib import Path
from trainwright.checkpoints.base import S3Settings
from trainwright.checkpoints.open import open_url
url, endpoint, path, sha256 = sys.argv[1:]
settings = S3Settings(endpoint=endpoint, allow_http=True)
open_url(url, settings).put_file("a/big", Path(path), sha256=sha256)
"""


def big_file(folder: Path) -> tuple[Path, str]:
    """Make a file of five parts, no two alike."""
    path = folder / "big"
    data = b"".join(bytes([number]) * PART_BYTES for number in range(4)) + b"the end"
    path.write_bytes(data)
    return path, sha256_of_bytes(data)


def uploads_below(s3: S3Settings, prefix: str) -> list[str]:
    assert s3.endpoint
    assert s3.access_key
    assert s3.secret_key
    return seaweed.interrupted_uploads(s3.endpoint, Keys(s3.access_key, s3.secret_key, None), f"{prefix}/")


def environment_of(s3: S3Settings, child_environment: dict[str, str]) -> dict[str, str]:
    assert s3.access_key
    assert s3.secret_key
    keys = {"AWS_ACCESS_KEY_ID": s3.access_key, "AWS_SECRET_ACCESS_KEY": s3.secret_key.reveal()}
    return {**child_environment, **keys}


def test_a_process_killed_in_mid_upload_leaves_nothing_visible_and_sweep_removes_the_parts_of_its_prefix(
    proxy: Proxy, s3: S3Settings, tmp_path: Path, child_environment: dict[str, str]
) -> None:
    path, sha256 = big_file(tmp_path)
    prefix = uuid4().hex
    proxy.hold = lambda method, target: method == "PUT" and "partNumber=3" in target
    stores = {}
    for run in ("run-1", "run-10"):
        proxy.held.clear()
        url = f"s3://{BUCKET}/{prefix}/{run}"
        stores[run] = open_url(url, s3)
        child = subprocess.Popen(
            [sys.executable, "-c", UPLOAD, url, proxy.endpoint, str(path), sha256],
            env=environment_of(s3, child_environment),
        )
        assert proxy.held.wait(30)
        child.kill()
        child.wait()
        assert stores[run].size("a/big") is None
        assert list(stores[run].keys()) == []
    assert uploads_below(s3, prefix) == [f"{prefix}/run-1/a/big", f"{prefix}/run-10/a/big"]
    stores["run-1"].sweep("b/")
    assert len(uploads_below(s3, prefix)) == 2
    stores["run-1"].sweep()
    assert uploads_below(s3, prefix) == [f"{prefix}/run-10/a/big"]
    stores["run-1"].put_file("a/big", path, sha256=sha256)
    within(open_url(f"s3://{BUCKET}", s3), f"{prefix}/run-10").sweep()
    assert uploads_below(s3, prefix) == []
    stores["run-1"].get_file("a/big", tmp_path / "got", sha256=sha256)


def test_a_server_killed_in_mid_upload_and_back_in_time_has_the_file_whole(
    server: Seaweed, proxy: Proxy, tmp_path: Path
) -> None:
    path, sha256 = big_file(tmp_path)
    store = through(proxy, server.settings, uuid4().hex, retry_seconds=120)
    store.put("before", b"stands")
    with killed_in_mid_upload(server, proxy, lambda: store.put_file("big", path, sha256=sha256)) as upload:
        server.start()
        upload.result()
    store.get_file("big", tmp_path / "got", sha256=sha256)
    assert store.get("before") == b"stands"
    assert list(store.keys()) == ["before", "big"]


def test_a_server_killed_in_mid_upload_for_too_long_has_nothing_of_the_file_and_takes_it_later(
    server: Seaweed, proxy: Proxy, tmp_path: Path
) -> None:
    path, sha256 = big_file(tmp_path)
    prefix = uuid4().hex
    store = through(proxy, server.settings, prefix, retry_seconds=0.5)
    store.put("big", b"earlier")
    with killed_in_mid_upload(server, proxy, lambda: store.put_file("big", path, sha256=sha256)) as upload:
        with pytest.raises(StoreUnavailableError, match=f"{proxy.endpoint} does not answer as it should"):
            upload.result()
        server.start()
    store = server.open(prefix)
    assert store.get("big") == b"earlier"
    assert uploads_below(server.settings, prefix) == [f"{prefix}/big"]
    store.sweep()
    assert uploads_below(server.settings, prefix) == []
    store.put_file("big", path, sha256=sha256)
    store.get_file("big", tmp_path / "got", sha256=sha256)


@pytest.mark.long
def test_a_server_killed_in_mid_download_leaves_no_file(server: Seaweed, tmp_path: Path) -> None:
    path, sha256 = big_file(tmp_path)
    prefix = uuid4().hex
    store = server.open(prefix, replace(server.settings, retry_seconds=0.5))
    store.put_file("big", path, sha256=sha256)
    assert isinstance(store, S3Bucket)
    parts = store._parts("big", PART_BYTES)
    next(parts)
    server.kill()
    with pytest.raises(StoreUnavailableError):
        write_verified(parts, tmp_path / "got", sha256=sha256, name="big")
    assert not (tmp_path / "got").exists()
    server.start()
    server.open(prefix).get_file("big", tmp_path / "got", sha256=sha256)


@contextmanager
def killed_in_mid_upload(server: Seaweed, proxy: Proxy, upload: Callable[[], None]) -> Iterator[Future[None]]:
    """Kill the server when the third part of five is on its way; the block has the upload that this befell."""
    proxy.hold = lambda method, target: method == "PUT" and "partNumber=3" in target
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(upload)
        assert proxy.held.wait(30)
        server.kill()
        proxy.hold = lambda _method, _path: False
        proxy.released.set()
        yield future
