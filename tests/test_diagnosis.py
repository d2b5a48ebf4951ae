"""What the doctor finds, on real servers in real states: what works, what does not, and what to do."""

import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from time import time

import pytest

from tests.acceptance import harness
from tests.servers.openbao import OpenBao, free_port
from tests.servers.seaweed import BUCKET, OWNER, READER, Seaweed
from trainwright import diagnosis
from trainwright.checkpoints.base import S3Settings
from trainwright.checkpoints.memory import MemoryStore
from trainwright.diagnosis import Check, diagnose
from trainwright.registry.open import open_registry
from trainwright.registry.revisions import migrate
from trainwright.settings import Settings
from trainwright.signing import make_key

STORE = ("store write", "store read back", "store write once", "store copy", "store list", "store delete")


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("TRAINWRIGHT_STORE", "TRAINWRIGHT_REGISTRY", "TRAINWRIGHT_EVIDENCE_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TRAINWRIGHT_HOME", str(tmp_path))


def found(home: Path, text: str = "") -> Mapping[str, Check]:
    if text:
        (home / "settings.yaml").write_text(text)
    checks = list(diagnose(Settings.load(home), home / "runs"))
    assert len({check.name for check in checks}) == len(checks)
    return {check.name: check for check in checks}


def failures(checks: Mapping[str, Check]) -> list[str]:
    return [check.name for check in checks.values() if check.result == "failed"]


def s3(endpoint: str, **changes: str) -> str:
    keys = {"endpoint": endpoint, "access_key": OWNER.access, "secret_key": "env:S3_SECRET", **changes}
    return f"store: s3://{BUCKET}/doctor\ns3: {json.dumps({'region': 'us-east-1', 'allow_http': True, **keys})}\n"


# -- nothing, and the machine itself -----------------------------------------------------------------------------------


def test_without_settings_nothing_fails_and_nothing_is_made(tmp_path: Path) -> None:
    checks = found(tmp_path)
    results = {name: check.result for name, check in checks.items()}
    assert results == {
        **dict.fromkeys(("settings", "vault", "store", "signing key"), "not configured"),
        "registry": "not measured",
        **dict.fromkeys(("free space of the home", "free space of the runs"), "ok"),
    }
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_nearly_full_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "LEAST_FREE_BYTES", 1 << 60)
    checks = found(tmp_path, f"store: file://{tmp_path}/store\n")
    assert failures(checks) == ["store free space", "free space of the home", "free space of the runs"]
    assert checks["free space of the home"].measured.startswith(f"{tmp_path}: ")
    assert checks["free space of the home"].advice.startswith("make room: ")


def test_a_signing_key_that_others_can_use_is_told_with_the_command_to_type(tmp_path: Path) -> None:
    private = make_key(tmp_path / "keys" / "evidence.pem").private
    assert found(tmp_path)["signing key"] == Check("signing key", "ok", f"{private}, mode 0600")
    private.chmod(0o644)
    check = found(tmp_path)["signing key"]
    assert (check.result, check.advice.endswith(f"chmod 600 {private}")) == ("failed", True)


# -- settings ----------------------------------------------------------------------------------------------------------


def test_each_reference_is_read_and_told_without_its_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S3_SECRET", "Zq7-of-the-doctor")
    text = "s3: {access_key: 'env:NO_SUCH_KEY', secret_key: 'env:S3_SECRET', session_token: 'file:absent'}\n"
    checks = found(tmp_path, text)
    assert checks["setting s3.secret_key"] == Check("setting s3.secret_key", "ok", "env:S3_SECRET is there")
    assert failures(checks) == ["setting s3.access_key", "setting s3.session_token"]
    assert checks["setting s3.access_key"].advice == "export it before you start"
    assert "Zq7-of-the-doctor" not in str(checks)


def test_an_endpoint_that_is_a_reference_is_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setenv("S3_SECRET", OWNER.secret.reveal())
    monkeypatch.setenv("S3_ENDPOINT", endpoint)
    monkeypatch.setattr(diagnosis, "RETRY_SECONDS", 0.1)
    checks = found(tmp_path, s3("env:S3_ENDPOINT"))
    assert checks["setting s3.endpoint"].result == "ok"
    assert f"{endpoint} does not answer" in checks["store write"].measured


# -- the store ---------------------------------------------------------------------------------------------------------


def test_a_folder_is_written_read_copied_listed_and_left_as_it_was(tmp_path: Path) -> None:
    checks = found(tmp_path, f"store: file://{tmp_path}/store\n")
    assert [name for name in checks if name.startswith("store")] == [*STORE, "store free space"]
    assert failures(checks) == []
    assert list((tmp_path / "store").iterdir()) == []


def test_a_bucket_is_tried_in_full_and_its_clock_is_read(
    tmp_path: Path, seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("S3_SECRET", OWNER.secret.reveal())
    checks = found(tmp_path, s3(seaweed.endpoint))
    assert [name for name in checks if name.startswith("store")] == [*STORE, "store clock"]
    assert failures(checks) == []
    assert re.fullmatch("its clock (agrees to the second|is 0:00:0[12] (ahead|behind))", checks["store clock"].measured)
    assert seaweed.open("doctor").keys() == []


def test_a_key_that_may_only_read_is_told(tmp_path: Path, seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S3_SECRET", READER.secret.reveal())
    checks = found(tmp_path, s3(seaweed.endpoint, access_key=READER.access))
    assert failures(checks)[0] == "store write"
    assert "403 AccessDenied" in checks["store write"].measured
    assert {checks[name].result for name in STORE[1:-1]} == {"not measured"}


def test_a_wrong_secret_is_told_and_not_shown(
    tmp_path: Path, seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("S3_SECRET", "Zq7-wrong-secret")
    checks = found(tmp_path, s3(seaweed.endpoint))
    assert "SignatureDoesNotMatch" in checks["store write"].measured
    assert "check s3.secret_key" in checks["store write"].advice
    assert "Zq7-wrong-secret" not in str(checks)


def test_a_server_that_is_not_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S3_SECRET", OWNER.secret.reveal())
    monkeypatch.setattr(diagnosis, "RETRY_SECONDS", 0.1)
    checks = found(tmp_path, s3(f"http://127.0.0.1:{free_port()}"))
    assert failures(checks)[0] == "store write"
    assert checks["store clock"].result == "not measured"


class Overwriting(MemoryStore):
    """A store that takes every write, as S3 servers do which do not know `If-None-Match`."""

    def put_new(self, key: str, data: bytes) -> bool:
        self.put(key, data)
        return True


def test_a_store_that_overwrites_what_another_has_written_is_told() -> None:
    store = Overwriting()
    checks = {check.name: check for check in diagnosis._rights("memory:", store)}
    assert failures(checks) == ["store write once"]
    assert checks["store write once"].measured.startswith("of two conditional writes of one key 2 were taken")
    assert store.keys() == []


class OffByAnHour(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response_only(403)
        self.send_header("Date", self.date_time_string(time() + 3600))
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_server_whose_clock_is_an_hour_ahead_is_told() -> None:
    with serving(OffByAnHour) as endpoint:
        check = diagnosis._clock(S3Settings(endpoint=endpoint))
    assert check.result == "failed"
    assert re.fullmatch("its clock is (1:00:0[0-2]|0:59:5[89]) ahead", check.measured)
    assert check.advice == diagnosis.CLOCK_ADVICE


# -- the registry ------------------------------------------------------------------------------------------------------


def test_the_registrys_revision_is_told(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/registry.db"
    open_registry(url).close()
    check = found(tmp_path)["registry"]
    assert check.result == "ok"
    assert check.measured.startswith(f"{url}, answered in ")
    migrate(url, "base")
    assert found(tmp_path)["registry"].measured.endswith("revision none yet")


def test_a_registry_that_is_no_database_or_does_not_answer_is_told(tmp_path: Path) -> None:
    (tmp_path / "registry.db").write_text("no database at all, but some text that is longer than a header" * 20)
    assert failures(found(tmp_path)) == ["registry"]
    checks = found(tmp_path, f"registry: postgresql://nobody@127.0.0.1:{free_port()}/none\n")
    assert failures(checks) == ["registry"]
    assert "does not answer as it should" in checks["registry"].measured


# -- the vault ---------------------------------------------------------------------------------------------------------


def test_a_vault_tells_what_is_left_of_its_token_and_is_told_when_it_is_sealed(
    tmp_path: Path, openbao: OpenBao, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", openbao.token(ttl="1h"))
    text = f"vault: {{address: '{openbao.address}', token: 'env:TOKEN'}}\n"
    check = found(tmp_path, text)["vault"]
    assert check.result == "ok"
    assert check.measured.startswith(f"{openbao.address}, version ")
    assert "the token ends in " in check.measured
    assert "renewed while it is used" in check.measured
    with openbao.sealed():
        check = found(tmp_path, text)["vault"]
    assert check.result == "failed"
    assert check.measured.endswith("is sealed")
    assert check.advice.startswith("unseal it: ")
    monkeypatch.setenv("OTHER_TOKEN", "Zq7-wrong-token")
    checks = found(tmp_path, text.replace("env:TOKEN", "env:OTHER_TOKEN"))
    assert "does not know this token" in checks["vault"].measured
    assert checks["vault"].advice.startswith("make a new one")
    assert "Zq7-wrong-token" not in str(checks)


# -- the command -------------------------------------------------------------------------------------------------------


def doctor(folder: Path, *arguments: str, **variables: str) -> harness.Completed:
    given = {"TRAINWRIGHT_HOME": str(folder), "TRAINWRIGHT_REGISTRY": "", **variables}
    return harness.command(folder, "doctor", *arguments, variables=given)


def test_the_command_prints_a_table_or_json_and_ends_with_zero(tmp_path: Path) -> None:
    store = f"file://{tmp_path}/store"
    completed = doctor(tmp_path, TRAINWRIGHT_STORE=store)
    assert (completed.code, completed.err) == (0, "")
    assert completed.out.splitlines()[0].split() == ["check", "result", "measured", "what", "to", "do"]
    assert completed.out.endswith("nothing failed\n")
    told = json.loads(doctor(tmp_path, "--json", TRAINWRIGHT_STORE=store).out)
    assert told["failed"] == 0
    assert {"name": "store list", "result": "ok", "measured": "it is listed", "advice": ""} in told["checks"]


def test_the_command_ends_with_seven_when_something_failed_and_with_two_for_broken_settings(tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text("s3: {secret_key: 'env:NO_SUCH_VARIABLE'}\n")
    completed = doctor(tmp_path)
    assert completed.code == 7
    assert completed.out.endswith("1 of 8 checks failed\n")
    (tmp_path / "settings.yaml").write_text("s3: {secret_key: Zq7-plain}\n")
    completed = doctor(tmp_path)
    assert (completed.code, completed.out) == (2, "")
    assert completed.err.startswith(f"error: {tmp_path}/settings.yaml:1: s3.secret_key: ")
    assert "Zq7-plain" not in completed.err
