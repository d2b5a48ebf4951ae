"""A run and its copy in a bucket of a real S3 server: whatever is killed, nothing is lost and nothing half-visible."""

import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from tests.acceptance import harness, uploading
from tests.acceptance.test_runs_in_stores import assert_whole, files_of, view
from tests.servers.faultyproxy import proxy_to
from tests.servers.seaweed import BUCKET, OWNER, Seaweed, interrupted_uploads
from tests.stores import Watched, content
from trainwright import evidence, runs, uploads
from trainwright.checkpoints.base import S3Settings, Store
from trainwright.checkpoints.open import open_url
from trainwright.config import RunConfig
from trainwright.errors import StoreRefusedError
from trainwright.jsonfile import write_json
from trainwright.metrics import StepMetrics
from trainwright.outcome import Outcome
from trainwright.recorder import Silent
from trainwright.rundir import RunDirectory
from trainwright.secrets import Secret


@pytest.fixture
def server(seaweed: Seaweed) -> Iterator[Seaweed]:
    """Give a server that a test may kill; it runs again afterwards."""
    yield seaweed
    if not seaweed.running:
        seaweed.start()


@pytest.fixture
def prefix() -> str:
    return uuid4().hex


@pytest.fixture(scope="module")
def uncut(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return runs.execute(RunConfig.parse(harness.config()), runs_dir=tmp_path_factory.mktemp("uncut")).run


def opened(endpoint: str, access: str, secret: str, prefix: str) -> Store:
    """Open the store in a child, which is given words alone."""
    settings = S3Settings(
        endpoint=endpoint, region="us-east-1", access_key=access, secret_key=Secret(secret), allow_http=True
    )
    return open_url(f"s3://{BUCKET}/{prefix}", settings)


def words(server: Seaweed, prefix: str) -> Sequence[str]:
    return server.endpoint, OWNER.access, OWNER.secret.reveal(), prefix


@pytest.mark.parametrize("write", [16, pytest.param(3, marks=pytest.mark.long)])
def test_a_run_that_is_killed_in_the_middle_of_an_upload_is_completed_by_its_resume(
    server: Seaweed, prefix: str, tmp_path: Path, uncut: RunDirectory, write: int
) -> None:
    arguments = (opened, *words(server, prefix))
    child = harness.start(uploading.train_killed_at_write, write, harness.config(), tmp_path, *arguments)
    assert harness.finish(child) == -signal.SIGKILL
    store, run = server.open(prefix), harness.only_run(tmp_path)
    assert_whole(store, run)
    assert harness.finish(harness.start(uploading.resume_with, tmp_path, *arguments)) == 0
    assert content(view(store, run)) == files_of(run)
    assert interrupted_uploads(server.endpoint, OWNER, f"{prefix}/") == []
    harness.assert_equal_to(uncut, run)


class StartedAgain(Silent):
    """Starts a server after a row, once it is down."""

    def __init__(self, server: Seaweed) -> None:
        self._server, self.started = server, False

    def on_step(self, row: StepMetrics) -> None:
        if not self._server.running:
            self._server.start()
            self.started = True


def test_a_server_that_is_killed_in_the_middle_of_an_upload_and_comes_back_has_everything(
    server: Seaweed, prefix: str, tmp_path: Path
) -> None:
    settings = replace(server.settings, retry_seconds=1.0)
    store = Watched(server.open(prefix, settings))
    seen: list[str] = []

    def kill(verb: str, key: str) -> None:
        if verb == "put_file" and key.endswith("/optimizer.safetensors") and not seen:
            seen.append(key)
            server.kill()

    store.before = kill
    watcher = StartedAgain(server)
    config = RunConfig.parse(harness.config(train__steps=400))
    result = runs.execute(config, runs_dir=tmp_path, store=store, watcher=watcher)
    assert watcher.started
    assert (result.outcome, result.left) == (Outcome.DONE, None)
    assert_whole(server.open(prefix), result.run)
    assert content(view(server.open(prefix), result.run)) == files_of(result.run)
    assert interrupted_uploads(server.endpoint, OWNER, f"{prefix}/") == []


def test_a_store_that_answers_500_all_the_time_is_told_and_the_copy_is_completed_later(
    server: Seaweed, prefix: str, tmp_path: Path
) -> None:
    with proxy_to(server.endpoint) as proxy:
        proxy.breaks = f"/{BUCKET}"
        store = server.open(prefix, replace(server.settings, endpoint=proxy.endpoint, retry_seconds=0.2))
        result = runs.execute(RunConfig.parse(harness.config()), runs_dir=tmp_path, store=store)
        assert (result.outcome, result.left is None) == (Outcome.DONE, False)
        assert [e.kind for e in result.run.read_events() if e.kind.startswith("store")] == ["store_unavailable"]
        proxy.breaks = None
        uploads.sync(result.run, view(store, result.run))
        assert content(view(store, result.run)) == files_of(result.run)


@pytest.mark.parametrize("wrong", ["key", "bucket"])
def test_a_wrong_key_or_bucket_is_refused_before_step_0(
    server: Seaweed, prefix: str, tmp_path: Path, wrong: str
) -> None:
    settings = server.settings
    if wrong == "key":
        settings = replace(settings, secret_key=Secret("another-secret"))
    store = open_url(f"s3://{BUCKET if wrong == 'key' else 'no-such-bucket'}/{prefix}", settings)
    with pytest.raises(StoreRefusedError) as told:
        runs.execute(RunConfig.parse(harness.config()), runs_dir=tmp_path / "runs", store=store)
    assert told.value.exit_code == 7
    assert "another-secret" not in str(told.value)
    assert not (tmp_path / "runs").exists()


def test_a_run_goes_on_from_its_url_on_a_machine_that_has_the_settings_and_nothing_else(
    server: Seaweed, prefix: str, tmp_path: Path, uncut: RunDirectory
) -> None:
    arguments = (opened, *words(server, prefix))
    child = harness.start(uploading.train_killed_at_write, 30, harness.config(), tmp_path / "here", *arguments)
    assert harness.finish(child) == -signal.SIGKILL
    run_id = harness.only_run(tmp_path / "here").id
    home = tmp_path / "there" / ".trainwright"
    home.mkdir(parents=True)
    (home / "secret").write_text(OWNER.secret.reveal())
    (home / "secret").chmod(0o600)
    keys = {"endpoint": server.endpoint, "region": "us-east-1", "access_key": OWNER.access, "allow_http": True}
    write_json(home / "settings.yaml", {"s3": {**keys, "secret_key": "file:secret"}})
    url = f"s3://{BUCKET}/{prefix}/runs/{run_id}"
    completed = harness.command(tmp_path / "there", "resume", url)
    assert completed.code == 0, completed.err
    run = harness.only_run(tmp_path / "there" / "runs")
    harness.assert_equal_to(uncut, run)
    assert evidence.verify(run.path) == []
    assert content(view(server.open(prefix), run)) == files_of(run)
    assert harness.command(tmp_path / "there", "checkpoints", "verify", url).code == 0
    said = [path.read_bytes() for path in (tmp_path / "there").rglob("*") if path.is_file() and path.name != "secret"]
    assert not any(OWNER.secret.reveal().encode() in text for text in said)
