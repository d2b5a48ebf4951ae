"""A run that takes its secrets from the environment, a file and a vault: none of them is written, told or listed."""

import base64
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, quote_plus

import psutil
import pytest

from tests.acceptance import harness
from tests.servers.openbao import OpenBao
from tests.servers.seaweed import BUCKET, OWNER, Seaweed
from trainwright import yamlfile
from trainwright.redaction import REDACTED

COMMAND = Path(sys.executable).with_name("trainwright")
LOOK_SECONDS = 0.1
TELLING = """
import os
from tests.toys import Toy


class Telling(Toy):
    def compute_loss(self, predictions, batch):
        if self.step == 7:
            raise ValueError(f"refused {os.environ['S3_SECRET']}")
        return super().compute_loss(predictions, batch)
"""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a command gave, and the command lines of its processes."""

    code: int
    out: str
    err: str
    listed: str


class Planted:
    """A folder with settings whose secrets lie in the environment, in a file and in a vault, and their values."""

    def __init__(self, folder: Path, s3: Seaweed, vault: OpenBao) -> None:
        self.folder, self.home = folder, folder / "home"
        token, password = vault.token(), "p/wd of:the+registry"
        self.values = {"s3": OWNER.secret.reveal(), "token": token, "password": password}
        vault.write("planted", access=OWNER.access, registry=f"sqlite:///{self.home}/registry.db")
        self.home.mkdir()
        private = folder / "token"
        private.touch(mode=0o600)
        private.write_text(token)
        self.variables = {
            "TRAINWRIGHT_HOME": str(self.home),
            "S3_SECRET": OWNER.secret.reveal(),
            "DATABASE": f"postgresql://me:{quote(password, safe='')}@127.0.0.1:1/none",
        }
        self.settings(
            store=f"s3://{BUCKET}/{folder.name}",
            registry="vault:secret/planted#registry",
            s3={
                "endpoint": s3.endpoint,
                "region": "us-east-1",
                "allow_http": True,
                "access_key": "vault:secret/planted#access",
                "secret_key": "env:S3_SECRET",
            },
            vault={"address": vault.address, "token": f"file:{private}"},
        )

    def settings(self, **values: object) -> None:
        (self.home / "settings.yaml").write_text(yamlfile.dump(values))

    def forms(self) -> Iterator[str]:
        for value in self.values.values():
            yield from {value, quote(value), quote(value, safe=""), quote_plus(value), json.dumps(value)[1:-1]}
            yield base64.b64encode(value.encode()).decode().rstrip("=")[:-1]

    def command(self, *arguments: str) -> Seen:
        """Run a command in a process of the fork server."""
        done = harness.command(self.folder, *arguments, variables=self.variables)
        return Seen(done.code, done.out, done.err, "")

    def run(self, environment: Mapping[str, str], *arguments: str) -> Seen:
        """Run the installed command, and look at the process list all the while."""
        with (self.folder / "out").open("w+") as out, (self.folder / "err").open("w+") as err:
            child = subprocess.Popen(
                [COMMAND, *arguments],
                cwd=self.folder,
                env={**environment, **self.variables},
                stdout=out,
                stderr=err,
                text=True,
            )
            listed = set[str]()
            while _runs(child):
                listed |= set(_command_lines(child.pid))
        told = {name: (self.folder / name).read_text() for name in ("out", "err")}
        return Seen(child.returncode, told["out"], told["err"], "\n".join(listed))


def _runs(child: subprocess.Popen[str]) -> bool:
    try:
        child.wait(LOOK_SECONDS)
    except subprocess.TimeoutExpired:
        return True
    return False


def _command_lines(pid: int) -> Iterator[str]:
    try:
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            yield " ".join(one.cmdline())
    except psutil.Error:  # it has just ended
        return


@pytest.fixture
def planted(tmp_path: Path, seaweed: Seaweed, openbao: OpenBao) -> Planted:
    return Planted(tmp_path, seaweed, openbao)


def places_of(planted: Planted, seen: Seen) -> list[str]:
    """Give where a secret stands, in any form, that no one has put there himself."""
    texts = {"stdout": seen.out, "stderr": seen.err, "the process list": seen.listed}
    files = [path for path in planted.folder.rglob("*") if path.is_file() and path.name != "token"]
    texts |= {str(path.relative_to(planted.folder)): path.read_bytes().decode("latin-1") for path in files}
    return [f"{place}: {form}" for place, text in texts.items() for form in planted.forms() if form in text]


def test_a_run_whose_store_needs_secrets_leaves_none_of_them_anywhere(
    planted: Planted, seaweed: Seaweed, child_environment: dict[str, str]
) -> None:
    values = harness.config(train__steps=20, checkpoint__every=10, checkpoint__store="env:STORE_OF_RUN")
    planted.variables["STORE_OF_RUN"] = f"s3://{BUCKET}/{planted.folder.name}"
    (planted.folder / "run.yaml").write_text(yamlfile.dump(values))
    seen = planted.run(child_environment, "train", "run.yaml")
    assert seen.code == 0, seen.err
    run = harness.only_run(planted.folder / "runs")
    assert "store: env:STORE_OF_RUN" in run.config.read_text()
    keys = seaweed.open(planted.folder.name).keys(f"runs/{run.id}/")
    assert any(key.endswith("/model.safetensors") for key in keys), "it was in the store, by these secrets"
    assert "train run.yaml" in seen.listed
    assert places_of(planted, seen) == []
    stored = seaweed.open(planted.folder.name)
    texts = {key: stored.get(key).decode("latin-1") for key in keys}
    assert [key for key, text in texts.items() if any(form in text for form in planted.forms())] == []


def test_an_error_that_holds_a_secret_is_told_and_recorded_without_it(planted: Planted) -> None:
    (planted.folder / "telling.py").write_text(TELLING)
    values = harness.config(model__type="telling:Telling", checkpoint__every=5)
    (planted.folder / "run.yaml").write_text(yamlfile.dump(values))
    seen = planted.command("train", "run.yaml")
    assert seen.code == 1
    assert f"ValueError: refused {REDACTED}" in seen.err
    run = harness.only_run(planted.folder / "runs")
    assert f"refused {REDACTED}" in run.attempts()[-1].events.read_text()
    assert places_of(planted, seen) == []


def test_the_doctor_reads_every_secret_and_shows_none(planted: Planted) -> None:
    seen = planted.command("doctor", "--json")
    told = {check["name"]: check["result"] for check in json.loads(seen.out)["checks"]}
    secrets = [f"setting {key}" for key in ("registry", "s3.access_key", "s3.secret_key", "vault.token")]
    assert {name: told[name] for name in [*secrets, "vault", "store delete", "store clock"]} == dict.fromkeys(
        [*secrets, "vault", "store delete", "store clock"], "ok"
    )
    assert places_of(planted, seen) == []


def test_a_database_that_does_not_answer_is_told_without_its_password(planted: Planted) -> None:
    planted.settings(registry="env:DATABASE")
    seen = planted.command("doctor")
    assert seen.code == 7
    assert "127.0.0.1" in seen.out
    assert places_of(planted, seen) == []


def test_a_secret_that_is_wrong_or_missing_ends_the_command_before_a_run_is_made(planted: Planted) -> None:
    (planted.folder / "run.yaml").write_text(yamlfile.dump(harness.config()))
    planted.variables["S3_SECRET"] = planted.values["s3"] = "Zq7-wrong+secret/of s3"
    seen = planted.command("train", "run.yaml")
    assert (seen.code, (planted.folder / "runs").exists()) == (7, False)
    assert "check s3.secret_key" in seen.err
    assert places_of(planted, seen) == []
    (planted.folder / "token").write_text("s.no-such-token")
    seen = planted.command("train", "run.yaml")
    assert (seen.code, (planted.folder / "runs").exists()) == (7, False)
    assert "settings.yaml:7: s3.access_key: vault:secret/planted#access: the vault does not know this token" in seen.err
    assert len(seen.err.splitlines()) == 1
