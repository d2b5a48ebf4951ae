"""Secrets of a real OpenBao: read, renewed, and each way in which that fails, told with what to do."""

import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import pytest

from tests.servers import openbao as servers
from tests.servers.openbao import ROOT, OpenBao, until
from trainwright.errors import InputError, StoreError, StoreRefusedError, StoreUnavailableError
from trainwright.redaction import redacted
from trainwright.secrets import Reference, Secret
from trainwright.vault import KeyValueVault

NO_RIGHTS = 'path "secret/data/other" { capabilities = ["read"] }'


class Clock:
    """A clock that is put forward by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def of_token(server: OpenBao, token: str, clock: Callable[[], float] = monotonic) -> KeyValueVault:
    held = Secret(token)
    return KeyValueVault(server.address, token=lambda: held, clock=clock)


def of_role(server: OpenBao, role_id: str, secret_id: str, clock: Callable[[], float] = monotonic) -> KeyValueVault:
    role = (lambda: Secret(role_id), lambda: Secret(secret_id))
    return KeyValueVault(server.address, role=role, clock=clock)


def held_token(vault: KeyValueVault) -> str:
    """Give the token that the vault is asked with now."""
    assert vault._lease is not None
    return vault._lease.token.reveal()


def refusal(vault: KeyValueVault, kind: type[Exception], path: str = "secret/s3", key: str = "key") -> str:
    with pytest.raises(kind) as caught:
        vault.read(path, key)
    assert type(caught.value) is kind
    return str(caught.value)


@pytest.fixture(autouse=True)
def written(openbao: OpenBao) -> None:
    openbao.write("s3", key="of-the-store", number=5, empty="")


# -- reading ---------------------------------------------------------------------------------------------------------


def test_a_value_is_the_newest_that_was_written(openbao: OpenBao) -> None:
    vault = of_token(openbao, openbao.token())
    assert vault.read("secret/s3", "key") == "of-the-store"
    openbao.write("s3", key="changed")
    assert vault.read("secret/s3", "key") == "changed"


def test_a_path_may_have_many_words(openbao: OpenBao) -> None:
    openbao.write("a/b/c", key="deep")
    assert of_token(openbao, openbao.token()).read("secret/a/b/c", "key") == "deep"


def test_a_reference_gives_a_secret(openbao: OpenBao) -> None:
    reference = Reference.parse("vault:secret/s3#key")
    assert reference is not None
    assert reference.resolve(vault=of_token(openbao, openbao.token())).reveal() == "of-the-store"
    assert "of-the-store" not in redacted("refused of-the-store")


def test_an_approle_logs_in_when_something_is_asked(openbao: OpenBao) -> None:
    vault = of_role(openbao, *openbao.role("reads"))
    assert vault.read("secret/s3", "key") == "of-the-store"


def test_the_standing_tells_version_and_time_left(openbao: OpenBao) -> None:
    token = of_token(openbao, openbao.token(ttl="1h")).standing()
    assert token.version.count(".") == 2
    assert token.renewable
    assert token.seconds_left is not None
    assert 3500 < token.seconds_left <= 3600
    assert of_token(openbao, ROOT).standing().seconds_left is None


# -- what is not there -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "key", "told"),
    [
        ("secret/absent", "key", "nothing is there, or it was deleted; write it: bao kv put"),
        ("nomount/s3", "key", "no secrets engine is mounted there; expected vault:MOUNT/PATH#KEY"),
        ("secret/s3", "kye", "there is no key 'kye' there; keys: empty, key, number"),
        ("secret/s3", "empty", "the value of 'empty' is empty"),
        ("secret/s3", "number", "the value of 'number' is no text"),
    ],
)
def test_what_is_not_there_is_told(openbao: OpenBao, path: str, key: str, told: str) -> None:
    text = refusal(of_token(openbao, ROOT), InputError, path, key)
    assert text.startswith(f"vault:{path}#{key}: ")
    assert told in text


def test_a_deleted_value_is_not_there(openbao: OpenBao) -> None:
    openbao.write("deleted", key="x")
    openbao.owner.secrets.kv.v2.delete_latest_version_of_secret("deleted", mount_point="secret")
    assert "it was deleted" in refusal(of_token(openbao, ROOT), InputError, "secret/deleted")


def test_a_namespace_that_is_not_there_is_told(openbao: OpenBao) -> None:
    vault = KeyValueVault(openbao.address, token=lambda: Secret(ROOT), namespace="absent")
    assert "the namespace is not there; see vault.namespace" in refusal(vault, InputError)


# -- who may not -----------------------------------------------------------------------------------------------------


def test_a_wrong_token_is_told_and_not_shown(openbao: OpenBao) -> None:
    told = refusal(of_token(openbao, "s.wrong-token"), StoreRefusedError)
    assert "the vault does not know this token: wrong, expired or revoked; make a new one (bao token create" in told
    assert "wrong-token" not in told


def test_a_token_that_has_expired_before_it_is_used_is_told(openbao: OpenBao) -> None:
    token = openbao.token(ttl="1s")
    until(lambda: not openbao.knows(token))
    assert "wrong, expired or revoked; make a new one" in refusal(of_token(openbao, token), StoreRefusedError)


def test_a_token_that_expires_in_use_is_told_as_expired(openbao: OpenBao) -> None:
    token = openbao.token(ttl="1s", explicit_max_ttl="1s")
    vault = of_token(openbao, token)
    vault.read("secret/s3", "key")
    until(lambda: not openbao.knows(token))
    assert "the token has expired while it was in use; make a new one" in refusal(vault, StoreRefusedError)


def test_a_token_that_is_revoked_in_use_is_told_as_revoked(openbao: OpenBao) -> None:
    token = openbao.token()
    vault = of_token(openbao, token)
    vault.read("secret/s3", "key")
    openbao.revoke(token)
    assert "the token was revoked while it was in use; make a new one" in refusal(vault, StoreRefusedError)


@pytest.mark.parametrize("hidden", [False, True])
def test_a_token_without_the_right_is_told_with_the_line_of_the_policy(openbao: OpenBao, hidden: bool) -> None:
    vault = of_token(openbao, openbao.token(NO_RIGHTS, no_default_policy=hidden))
    told = refusal(vault, StoreRefusedError)
    assert 'the token may not read it; give one of its policies: path "secret/data/s3"' in told
    assert '{ capabilities = ["read"] }' in told


def test_a_token_that_may_not_look_at_itself_reads(openbao: OpenBao) -> None:
    vault = of_token(openbao, openbao.token(no_default_policy=True))
    assert vault.read("secret/s3", "key") == "of-the-store"
    assert vault.standing().seconds_left is None


@pytest.mark.parametrize("wrong", ["role_id", "secret_id"])
def test_a_wrong_half_of_an_approle_is_told_and_not_shown(openbao: OpenBao, wrong: str) -> None:
    role_id, secret_id = openbao.role("wrong")
    vault = of_role(openbao, *(("nobody", secret_id) if wrong == "role_id" else (role_id, "nothing")))
    told = refusal(vault, StoreRefusedError)
    assert "the AppRole login was refused (invalid role or secret ID); make a new secret_id" in told
    assert role_id not in told
    assert secret_id not in told


# -- a vault that cannot -----------------------------------------------------------------------------------------------


def test_a_sealed_vault_is_told_and_reads_again_once_it_is_unsealed(openbao: OpenBao) -> None:
    vault = of_token(openbao, openbao.token())
    vault.read("secret/s3", "key")
    with openbao.sealed():
        told = refusal(vault, StoreUnavailableError)
        assert f"the vault at {openbao.address} is sealed; unseal it: bao operator unseal" in told
        assert "is sealed" in refusal(of_token(openbao, "never-used"), StoreUnavailableError)
    assert vault.read("secret/s3", "key") == "of-the-store"


def test_an_address_that_does_not_answer_is_told() -> None:
    address = f"http://127.0.0.1:{servers.free_port()}"
    told = refusal(KeyValueVault(address, token=lambda: Secret("any-token")), StoreUnavailableError)
    assert f"the vault at {address} does not answer (ConnectionError); start it, or see vault.address" in told


@pytest.mark.parametrize("address", ["nowhere", "ftp://127.0.0.1", "http://"])
def test_what_is_no_address_is_told(address: str) -> None:
    told = refusal(KeyValueVault(address, token=lambda: Secret("any-token")), InputError)
    assert f"{address!r} is no address of a vault; see vault.address" in told


def test_a_vault_over_tls_whose_certificate_is_not_trusted_is_refused(openbao: OpenBao, tmp_path: Path) -> None:
    with servers.running(tmp_path, tls=True) as server:
        told = refusal(of_token(server, ROOT), StoreRefusedError)
        assert "shows a certificate that is not trusted; set vault.ca" in told
        trusting = KeyValueVault(server.address, token=lambda: Secret(ROOT), ca=server.ca)
        assert trusting.standing().version


def test_certificates_that_are_not_there_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"vault\.ca: .*absent\.pem: is not there"):
        KeyValueVault("https://127.0.0.1:1", token=lambda: Secret("x" * 9), ca=tmp_path / "absent.pem")


# -- renewal -----------------------------------------------------------------------------------------------------------


def seconds_left(server: OpenBao, token: str) -> float:
    return float(server.owner.auth.token.lookup(token)["data"]["ttl"])


def test_a_token_is_renewed_once_a_third_of_its_time_is_over_and_not_before(openbao: OpenBao) -> None:
    clock, token = Clock(), openbao.token(ttl="60s", period="60s")
    vault = of_token(openbao, token, clock)
    vault.read("secret/s3", "key")

    def renewals() -> object:
        return openbao.owner.auth.token.lookup(token)["data"].get("last_renewal_time")

    clock.now = 19.0
    vault.read("secret/s3", "key")
    assert renewals() is None
    clock.now = 20.0
    vault.read("secret/s3", "key")
    assert renewals() is not None
    assert seconds_left(openbao, token) > 55


def test_a_token_of_two_seconds_lives_as_long_as_it_is_used(openbao: OpenBao) -> None:
    token, unused = openbao.token(ttl="2s"), openbao.token(ttl="2s")
    vault = of_token(openbao, token)

    def used_until_the_other_has_gone() -> bool:
        assert vault.read("secret/s3", "key") == "of-the-store"
        return not openbao.knows(unused)

    until(used_until_the_other_has_gone)
    assert openbao.knows(token)


def test_an_approle_logs_in_anew_when_its_token_was_revoked(openbao: OpenBao) -> None:
    vault = of_role(openbao, *openbao.role("revoked"))
    vault.read("secret/s3", "key")
    openbao.revoke(held_token(vault))
    assert vault.read("secret/s3", "key") == "of-the-store"


def test_an_approle_logs_in_anew_when_its_token_has_had_its_longest_time(openbao: OpenBao) -> None:
    vault = of_role(openbao, *openbao.role("short", token_ttl="1s", token_max_ttl="1s"))
    vault.read("secret/s3", "key")
    first = held_token(vault)
    until(lambda: not openbao.knows(first))
    assert vault.read("secret/s3", "key") == "of-the-store"
    assert held_token(vault) != first


def test_an_approle_that_lost_its_right_and_its_token_is_told_that_it_has_no_right(openbao: OpenBao) -> None:
    vault = of_role(openbao, *openbao.role("poor"))
    vault.read("secret/s3", "key")
    openbao.owner.auth.approle.create_or_update_approle("poor", token_policies=["default"])
    openbao.revoke(held_token(vault))
    assert "the token may not read it; give one of its policies" in refusal(vault, StoreRefusedError)


def test_a_vault_without_the_approle_login_is_told(openbao: OpenBao) -> None:
    role_id, secret_id = openbao.role("gone")
    openbao.owner.sys.disable_auth_method("approle")
    assert "the AppRole login was refused (permission denied)" in refusal(
        of_role(openbao, role_id, secret_id), StoreRefusedError
    )


def test_an_approle_whose_secret_was_withdrawn_is_told_in_mid_use(openbao: OpenBao) -> None:
    role_id, secret_id = openbao.role("withdrawn")
    vault = of_role(openbao, role_id, secret_id)
    vault.read("secret/s3", "key")
    openbao.owner.auth.approle.destroy_secret_id("withdrawn", secret_id)
    openbao.revoke(held_token(vault))
    assert "the AppRole login was refused" in refusal(vault, StoreRefusedError)


def test_a_token_that_was_changed_where_it_stands_is_taken_up(openbao: OpenBao, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(openbao.token())
    file.chmod(0o600)
    reference = Reference("file", str(file))
    vault = KeyValueVault(openbao.address, token=reference.resolve)
    vault.read("secret/s3", "key")
    openbao.revoke(file.read_text())
    file.write_text(openbao.token())
    assert vault.read("secret/s3", "key") == "of-the-store"


def test_many_threads_ask_with_one_login(openbao: OpenBao) -> None:
    logins = []
    role_id, secret_id = openbao.role("threads")

    def read_secret_id() -> Secret:
        logins.append(1)
        return Secret(secret_id)

    vault = KeyValueVault(openbao.address, role=(lambda: Secret(role_id), read_secret_id))
    found: list[str | StoreError] = []
    threads = [threading.Thread(target=lambda: found.append(vault.read("secret/s3", "key"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (found, len(logins)) == (["of-the-store"] * 8, 1)


def test_no_text_of_a_vault_shows_its_token(openbao: OpenBao) -> None:
    token = openbao.token()
    vault = of_token(openbao, token)
    vault.read("secret/s3", "key")
    assert token not in repr(vault) + str(vault) + repr(vault._lease) + repr(vault.standing())
