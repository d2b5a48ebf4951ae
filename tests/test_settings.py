"""settings.yaml: what it may say, who wins over it, and that nothing of it is read before it is needed."""

import sys
from pathlib import Path

import pytest

from tests.servers.openbao import OpenBao
from trainwright import redaction
from trainwright.checkpoints.base import S3Settings
from trainwright.errors import InputError, StoreRefusedError
from trainwright.redaction import REDACTED, redacted
from trainwright.secrets import Secret
from trainwright.settings import Settings, home_directory

VARIABLES = ("TRAINWRIGHT_HOME", "TRAINWRIGHT_STORE", "TRAINWRIGHT_REGISTRY")


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def settings(home: Path, text: str) -> Settings:
    (home / "settings.yaml").write_text(text)
    return Settings.load(home)


def refusal(home: Path, text: str) -> str:
    with pytest.raises(InputError) as caught:
        settings(home, text)
    return str(caught.value).replace(f"{home}/", "")


# -- the file ----------------------------------------------------------------------------------------------------------


def test_without_a_file_there_is_no_store_and_the_registry_lies_in_the_home(tmp_path: Path) -> None:
    found = Settings.load(tmp_path)
    assert (found.store_url(), found.s3_settings(), found.opened_vault()) == (None, None, None)
    assert found.registry_url() == f"sqlite:///{tmp_path}/registry.db"


def test_the_home_is_that_of_the_variable_else_below_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert home_directory() == Path(".trainwright")
    monkeypatch.setenv("TRAINWRIGHT_HOME", str(tmp_path))
    assert home_directory() == Settings.load().home == tmp_path


def test_every_key_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S3_KEY", "secret-of-s3")
    found = settings(
        tmp_path,
        "store: s3://bucket/prefix\nregistry: postgresql://user@host/db\n"
        "s3: {endpoint: 'http://minio:9000', region: eu-1, access_key: me, secret_key: 'env:S3_KEY', "
        "session_token: 'env:S3_KEY', path_style: false, allow_http: true}\n",
    )
    assert (found.store_url(), found.registry_url()) == ("s3://bucket/prefix", "postgresql://user@host/db")
    assert found.s3_settings() == S3Settings(
        endpoint="http://minio:9000",
        region="eu-1",
        access_key="me",
        secret_key=Secret("secret-of-s3"),
        session_token=Secret("secret-of-s3"),
        path_style=False,
        allow_http=True,
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("stor: x\n", "settings.yaml:1: unknown key 'stor'; did you mean 'store'?"),
        (
            "s3:\n  endpoint: x\n  secret: env:A\n",
            "settings.yaml:3: unknown key 's3.secret'; did you mean",
        ),
        ("store: [a]\n", "settings.yaml:1: store: expected text"),
        ("store: 'env:A-B'\n", "settings.yaml:1: store: 'env:A-B' is no reference; expected env:NAME"),
        ("s3: {path_style: 5}\n", "settings.yaml:1: s3.path_style: found 5; input should be a valid boolean"),
        ("vault: {token: 'env:A'}\n", "settings.yaml:1: key 'vault.address' is missing"),
        ("vault: {address: x}\n", "settings.yaml:1: vault: expected either token, or role_id and secret_id"),
        (
            "vault: {address: x, token: 'env:A', role_id: b, secret_id: 'env:C'}\n",
            "settings.yaml:1: vault: expected either token, or role_id and secret_id",
        ),
        (
            "vault: {address: x, token: 'vault:secret/a#b'}\n",
            "settings.yaml:1: vault.token: what opens the vault cannot lie in it; write env:NAME or file:PATH",
        ),
    ],
)
def test_what_cannot_be_used_is_told_with_file_line_and_key(tmp_path: Path, text: str, told: str) -> None:
    assert refusal(tmp_path, text).startswith(told)


PLAIN = "Zq7-plain-secret"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (f"s3: {{secret_key: {PLAIN}}}\n", "s3.secret_key"),
        (f"s3: {{session_token: {PLAIN}}}\n", "s3.session_token"),
        (f"s3: {{secret_key: [{PLAIN}]}}\n", "s3.secret_key"),
        (f"s3: {PLAIN}\n", "s3"),
        (f"vault: {PLAIN}\n", "vault"),
        (f"vault: {{address: x, token: {PLAIN}}}\n", "vault.token"),
        (f"vault: {{address: x, role_id: x, secret_id: {PLAIN}}}\n", "vault.secret_id"),
        (f"registry: postgresql://user:{PLAIN}@host/db\n", "registry"),
        (f"registry: postgresql://host/db?user=me&password={PLAIN}\n", "registry"),
        (f"store: s3://key:{PLAIN}@bucket\n", "store"),
    ],
)
def test_a_secret_that_stands_in_the_file_is_refused_and_not_repeated(tmp_path: Path, text: str, key: str) -> None:
    told = refusal(tmp_path, text)
    assert told.startswith(f"settings.yaml:1: {key}: ")
    assert "env:NAME" in told or "expected" in told
    assert PLAIN not in told


# -- who wins ----------------------------------------------------------------------------------------------------------


def test_the_variables_win_over_the_file_and_may_be_references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = settings(tmp_path, "store: file:///a\nregistry: sqlite:///a.db\n")
    monkeypatch.setenv("TRAINWRIGHT_STORE", "s3://b")
    monkeypatch.setenv("TRAINWRIGHT_REGISTRY", "env:DATABASE")
    monkeypatch.setenv("DATABASE", "postgresql://host/db")
    assert (found.store_url(), found.registry_url()) == ("s3://b", "postgresql://host/db")
    monkeypatch.delenv("DATABASE")
    with pytest.raises(InputError, match=r"^TRAINWRIGHT_REGISTRY: env:DATABASE: the environment"):
        found.registry_url()


# -- when it is read ---------------------------------------------------------------------------------------------------


def test_a_reference_is_read_each_time_that_its_value_is_needed_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("S3_KEY", raising=False)
    found = settings(tmp_path, "s3:\n  region: eu-1\n  secret_key: env:S3_KEY\n")
    with pytest.raises(InputError) as caught:
        found.s3_settings()
    told = f"{tmp_path}/settings.yaml:3: s3.secret_key: env:S3_KEY: the environment variable S3_KEY is not set; "
    assert str(caught.value).startswith(told)
    for value in ("one-value", "another-value"):
        monkeypatch.setenv("S3_KEY", value)
        read = found.s3_settings()
        assert read is not None
        assert read.secret_key == Secret(value)


def test_a_relative_file_lies_beside_the_settings(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("beside-them\n")
    (tmp_path / "key").chmod(0o600)
    read = settings(tmp_path, "s3: {secret_key: 'file:key'}\n").s3_settings()
    assert read is not None
    assert read.secret_key == Secret("beside-them")


def test_the_password_of_a_database_is_redacted_and_its_host_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE", "postgresql://user:p%40ssword@host/db")
    url = settings(tmp_path, "registry: env:DATABASE\n").registry_url()
    assert (
        redacted(f"{url}: no answer for p@ssword") == f"postgresql://user:{REDACTED}@host/db: no answer for {REDACTED}"
    )


def test_what_is_no_secret_is_not_redacted_although_it_is_a_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENDPOINT", "http://minio:9000")
    monkeypatch.setenv("STORE", "s3://bucket/prefix")
    before = dict(redaction._known)
    found = settings(tmp_path, "store: env:STORE\ns3: {endpoint: 'env:ENDPOINT'}\n")
    assert found.store_url() == "s3://bucket/prefix"
    assert found.s3_settings() == S3Settings(endpoint="http://minio:9000")
    assert redaction._known == before


def test_without_the_extra_of_the_vault_the_command_to_type_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "trainwright.vault", raising=False)
    monkeypatch.delattr("trainwright.vault", raising=False)
    monkeypatch.setitem(sys.modules, "hvac", None)
    found = settings(tmp_path, "store: vault:secret/a#b\nvault: {address: x, token: 'env:TOKEN'}\n")
    with pytest.raises(InputError, match=r"vault: needs the extra vault: pip install 'trainwright\[vault\]'"):
        found.store_url()


# -- a vault -----------------------------------------------------------------------------------------------------------


def test_values_come_out_of_a_vault_by_a_token_and_by_an_approle(
    tmp_path: Path, openbao: OpenBao, monkeypatch: pytest.MonkeyPatch
) -> None:
    openbao.write("settings", url="s3://of-the-vault", access="access-of-vault", secret="secret-of-vault")
    role_id, secret_id = openbao.role("settings")
    monkeypatch.setenv("TOKEN", openbao.token())
    monkeypatch.setenv("SECRET_ID", secret_id)
    for way in ("token: env:TOKEN", f"role_id: {role_id}, secret_id: env:SECRET_ID"):
        found = settings(
            tmp_path,
            "store: vault:secret/settings#url\n"
            "s3: {access_key: 'vault:secret/settings#access', secret_key: 'vault:secret/settings#secret'}\n"
            f"vault: {{address: '{openbao.address}', {way}}}\n",
        )
        read = found.s3_settings()
        assert read is not None
        assert (found.store_url(), read.access_key) == ("s3://of-the-vault", "access-of-vault")
        assert read.secret_key == Secret("secret-of-vault")
        assert found.opened_vault() is Settings.load(tmp_path).opened_vault()
    assert "access-of-vault" not in redacted("the key access-of-vault is refused")


def test_a_secret_id_for_one_login_is_enough_for_a_process_that_loads_its_settings_twice(
    tmp_path: Path, openbao: OpenBao, monkeypatch: pytest.MonkeyPatch
) -> None:
    openbao.write("settings", url="s3://of-the-vault")
    role_id, secret_id = openbao.role("once", secret_id_num_uses=1)
    monkeypatch.setenv("SECRET_ID", secret_id)
    access = f"address: '{openbao.address}', role_id: {role_id}, secret_id: env:SECRET_ID"
    text = f"store: vault:secret/settings#url\nvault: {{{access}}}\n"
    assert [settings(tmp_path, text).store_url() for _ in range(2)] == ["s3://of-the-vault"] * 2


def test_an_error_of_the_vault_names_the_line_that_asked_for_it(
    tmp_path: Path, openbao: OpenBao, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "no-such-token")
    vault = f"vault: {{address: '{openbao.address}', token: 'env:TOKEN'}}\n"
    found = settings(tmp_path, f"{vault}s3:\n  secret_key: vault:secret/a#b\n")
    with pytest.raises(StoreRefusedError) as caught:
        found.s3_settings()
    place = f"{tmp_path}/settings.yaml:3: s3.secret_key: vault:secret/a#b: "
    assert str(caught.value).startswith(f"{place}the vault does not know this token: ")


def test_a_missing_token_names_both_lines(tmp_path: Path, openbao: OpenBao, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOKEN", raising=False)
    vault = f"vault: {{address: '{openbao.address}', token: 'env:TOKEN'}}\n"
    with pytest.raises(InputError) as caught:
        settings(tmp_path, f"{vault}s3:\n  secret_key: vault:secret/a#b\n").s3_settings()
    told = str(caught.value).replace(f"{tmp_path}/", "")
    assert told.startswith(
        "settings.yaml:3: s3.secret_key: vault:secret/a#b: settings.yaml:1: vault.token: env:TOKEN: "
    )
