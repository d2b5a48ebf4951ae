"""docs/settings.md, held against the code: its file loads and shows every key, and its tables say what is so."""

import re
from pathlib import Path

import pytest

from tests.acceptance import harness
from trainwright.diagnosis import diagnose
from trainwright.errors import InputError
from trainwright.settings import S3Section, Settings, VaultSection

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "settings.md").read_text(encoding="utf-8")
FILE = re.findall(r"^```yaml file=settings\.yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[0]
COMMANDS = re.findall(r"^trainwright (.+)$", PAGE, re.MULTILINE)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "settings.yaml").write_text(FILE)
    return tmp_path


def test_the_file_of_the_page_loads_and_shows_every_key(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRAINWRIGHT_STORE", raising=False)
    settings = Settings.load(home)
    assert settings.store_url() == "s3://models/team-a"
    assert settings.s3 is not None
    assert settings.vault is not None
    for section in (S3Section, VaultSection):
        for key in section.model_fields:
            assert re.search(rf"^  {key}: |\b{key}: file:", FILE, re.MULTILINE), key
    assert {key for key in Settings.model_fields if re.search(rf"^{key}:", FILE, re.MULTILINE)} == {
        *Settings.model_fields
    }


def test_the_alternative_that_a_comment_of_the_file_names_loads_too(home: Path) -> None:
    roles = re.compile(r"^  (role_id|secret_id): .*\n", re.MULTILINE)
    token = re.findall(r"# or (token: \S+)", FILE)[0]
    (home / "settings.yaml").write_text(f"{roles.sub('', FILE)}  {token}\n")
    settings = Settings.load(home)
    assert settings.vault is not None
    assert settings.vault.token == "file:vault-token"


def test_what_the_page_refers_to_is_told_when_it_is_not_there(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REGISTRY_URL", raising=False)
    monkeypatch.delenv("TRAINWRIGHT_REGISTRY", raising=False)
    with pytest.raises(InputError, match=r"settings\.yaml:2: registry: env:REGISTRY_URL: .* is not set"):
        Settings.load(home).registry_url()


def test_the_page_names_every_check_of_the_doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINWRIGHT_STORE", f"file://{tmp_path}/store")
    rows = re.findall(r"^\| ([a-z][^|]*?) \|", PAGE.partition("## The doctor")[2], re.MULTILINE)
    named = {name.partition(" ")[0] for name in rows} - {"check"}
    found = {check.name.partition(" ")[0] for check in diagnose(Settings.load(tmp_path), tmp_path)}
    assert found - {"settings"} <= named
    assert named - {"setting"} <= found


@pytest.mark.parametrize("line", COMMANDS)
def test_each_command_of_the_page_does_what_it_says(line: str, tmp_path: Path) -> None:
    variables = {"TRAINWRIGHT_HOME": str(tmp_path), "TRAINWRIGHT_STORE": "", "TRAINWRIGHT_REGISTRY": ""}
    completed = harness.command(tmp_path, *line.split(), variables=variables)
    assert (completed.code, completed.err) == (0, "")


def test_the_page_shows_both_forms_of_the_doctor() -> None:
    assert COMMANDS == ["doctor", "doctor --json"]
