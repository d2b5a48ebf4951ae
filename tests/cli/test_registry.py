"""`trainwright models`: from a run to a version, and all that is asked of one, as the installed command is called."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from tests.acceptance import harness
from tests.acceptance.harness import Completed, command
from tests.attached import TEXT, contract_file
from trainwright import runs
from trainwright.config import RunConfig
from trainwright.data.prepare import PrepareRequest, prepare
from trainwright.registry import revisions
from trainwright.rundir import RunDirectory
from trainwright.settings import HOME_VARIABLE, REGISTRY_VARIABLE, STORE_VARIABLE

LM = {"type": "lm", "layers": 1, "width": 16, "heads": 2, "context": 32}
HOSTILE = "x: y\n---\n<script>|`a`| 'q' \"d\" #"


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (HOME_VARIABLE, REGISTRY_VARIABLE, STORE_VARIABLE):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with three runs: two of a language model that differ in the learning rate, and one that fails."""
    folder = tmp_path_factory.mktemp("trained")
    texts = folder / "texts"
    texts.mkdir()
    for number in range(20):
        (texts / f"{number}.py").write_text("".join(f"x{line} = {line * number}\n" for line in range(20)))
    prepare(PrepareRequest(texts, folder / "data", vocabulary_size=280))
    judged = {"contract": str(contract_file(folder / "judged"))}
    text = {"model": LM, "data": {"path": str(folder / "data")}, "train__steps": 12}
    train(folder, name="first", **text, **judged)
    train(folder, name="second", **text, **judged, train__learning_rate=2e-2)
    bad = contract_file(folder / "bad", TEXT.replace("median_ms < 60000", "median_ms < 0.0001"))
    train(folder, name="third", contract=str(bad), train__steps=12)
    return folder


def train(folder: Path, **changes: Any) -> None:
    values = harness.config(**{"validate": {"every": 6}, **changes})
    runs.execute(RunConfig.parse(values), runs_dir=folder / "runs")


@pytest.fixture(scope="module")
def registered(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder whose registry holds the two runs as 0.1.0 and 0.2.0."""
    folder = tmp_path_factory.mktemp("registered") / "folder"
    shutil.copytree(trained, folder)
    for name in ("first", "second"):
        done = command(folder, "models", "register", run_of(folder, name).id, "--name", "python-lm")
        assert (done.code, done.err) == (0, ""), done.err
    return folder


@pytest.fixture
def folder(registered: Path, tmp_path: Path) -> Path:
    """Give a copy of it that a test may change; its versions' files are where they were registered."""
    return Path(shutil.copytree(registered, tmp_path / "folder"))


def run_of(folder: Path, name: str) -> RunDirectory:
    (path,) = (folder / "runs").glob(f"{name}-*")
    return RunDirectory(path)


def document(folder: Path, *arguments: object, code: int = 0) -> Any:
    done = command(folder, "models", *arguments, "--json")
    assert (done.code, done.err) == (code, ""), done.err
    return json.loads(done.out)


def said(done: Completed) -> str:
    assert (done.code, done.err) == (0, ""), done.err
    return done.out


def test_the_first_version_is_0_1_0_and_a_run_is_registered_once(folder: Path) -> None:
    again = document(folder, "register", run_of(folder, "first").id, "--name", "python-lm")
    assert (again["version"], again["is_new"], again["status"], again["why"]) == ("0.1.0", False, "ready", None)
    assert said(command(folder, "models", "register", run_of(folder, "first").path, "--name", "python-lm")) == (
        "python-lm@0.1.0 is ready\n"
    )


def test_ls_lists_the_versions_with_their_best_metric_and_aliases(folder: Path) -> None:
    said(command(folder, "models", "alias", "python-lm@0.1.0", "champion"))
    listed = document(folder, "ls")["versions"]
    assert [(one["name"], one["version"], one["aliases"]) for one in listed] == [
        ("python-lm", "0.1.0", ["champion"]),
        ("python-lm", "0.2.0", []),
    ]
    out = said(command(folder, "models", "ls", "python-lm"))
    assert "python-lm@0.1.0" in out
    assert "champion" in out
    assert "hold" in out
    assert said(command(folder, "models", "ls", "other")) == "no versions of other\n"


def test_show_leads_from_the_version_to_the_hash_of_its_data(folder: Path) -> None:
    found = document(folder, "show", "python-lm@0.1.0")
    out = said(command(folder, "models", "show", "python-lm@0.1.0"))
    lineage = found["facts"]["lineage"]
    assert lineage["run"] == run_of(folder, "first").id
    assert len(lineage["hashes"]) >= 2
    shown = (found["sha256"], found["facts"]["evidence_sha256"], lineage["checkpoint"], lineage["run"])
    for text in (*shown, *lineage["hashes"].values(), "demo-v1 1.2.3", "GATE-DEMO-001"):
        assert text in out


def test_a_name_alone_is_the_latest_version_that_passes(folder: Path) -> None:
    assert document(folder, "show", "python-lm")["version"] == "0.2.0"
    bad = document(
        *(folder, "register", run_of(folder, "third").id, "--name", "python-lm", "--bump", "major"),
        "--allow-failing",
    )
    assert (bad["version"], bad["passing"]) == ("1.0.0", False)
    assert document(folder, "show", "python-lm")["version"] == "0.2.0"
    assert "do not hold" in said(command(folder, "models", "show", "python-lm@1.0.0"))


def test_diff_shows_configurations_metrics_and_gates_side_by_side(folder: Path) -> None:
    found = document(folder, "diff", "python-lm@0.1.0", "python-lm@0.2.0")
    assert found["versions"] == ["python-lm@0.1.0", "python-lm@0.2.0"]
    assert found["config"]["train.learning_rate"] == [0.01, 0.02]
    assert found["config"]["name"] == ["first", "second"]
    assert "train.steps" not in found["config"]
    assert found["metrics"]["val_loss"][0] != found["metrics"]["val_loss"][1]
    assert [one["result"] for one in found["gates"]["GATE-DEMO-001"]] == ["pass", "pass"]
    out = said(command(folder, "models", "diff", "python-lm@0.1.0", "python-lm"))
    for text in ("train.learning_rate", "0.01", "0.02", "val_loss", "GATE-DEMO-003", "pass"):
        assert text in out


def test_an_alias_is_moved_and_taken_away(folder: Path) -> None:
    for number in ("0.1.0", "0.2.0"):
        out = said(command(folder, "models", "alias", f"python-lm@{number}", "champion"))
        assert out == f"python-lm@champion is python-lm@{number}\n"
        assert document(folder, "show", "python-lm@champion")["version"] == number
    assert said(command(folder, "models", "alias", "python-lm", "champion", "--remove")) == (
        "python-lm@champion is no more\n"
    )
    gone = command(folder, "models", "show", "python-lm@champion")
    assert (gone.code, gone.err) == (2, "error: python-lm: has no alias 'champion'; it has none\n")


def test_tags_and_notes_are_set_and_each_change_is_in_the_audit(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("# Über\n")
    assert document(folder, "tag", "python-lm@0.1.0", "domain=a=b")["tags"] == {"domain": "a=b"}
    assert document(folder, "note", "python-lm@0.1.0", "--file", tmp_path / "notes.md")["notes"] == "# Über\n"
    assert document(folder, "tag", "python-lm@0.1.0", "domain", "--remove")["tags"] == {}
    changes = document(folder, "audit", "python-lm")["changes"]
    assert [one["action"] for one in changes][-3:] == ["tag", "note", "tag"]
    assert all(one["who"].count("@") == 1 and one["time"].endswith("Z") for one in changes)
    assert "registered" in said(command(folder, "models", "audit"))
    wrong = command(folder, "models", "tag", "python-lm", "domain")
    assert (wrong.code, wrong.err) == (2, "error: 'domain': expected KEY=VALUE, or KEY with --remove\n")


def test_verify_hashes_what_is_in_the_store_and_names_what_was_changed(trained: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(trained, tmp_path / "folder"))
    said(command(folder, "models", "register", run_of(folder, "first").id, "--name", "python-lm"))
    assert said(command(folder, "models", "verify", "python-lm")).endswith("\nholds\n")
    weights = folder / ".trainwright" / "store" / "models" / "python-lm" / "0.1.0" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    done = command(folder, "models", "verify", "python-lm")
    assert done.code == 3
    assert done.out.splitlines()[1].startswith("model.safetensors: has ")
    assert document(folder, "verify", "python-lm", code=3)["holds"] is False
    pulled = command(folder, "models", "pull", "python-lm", "--out", "out")
    assert pulled.code == 7
    assert not (folder / "out" / "model.safetensors").exists()


def test_pull_writes_the_files_that_were_registered(folder: Path) -> None:
    assert said(command(folder, "models", "pull", "python-lm@0.1.0", "--out", "out")) == "out\n"
    best = document(folder, "show", "python-lm@0.1.0")["facts"]["lineage"]["checkpoint"]
    weights = run_of(folder, "first").checkpoints / best / "model.safetensors"
    assert (folder / "out" / "model.safetensors").read_bytes() == weights.read_bytes()
    assert (folder / "out" / "tokenizer.json").read_bytes() == (folder / "data" / "tokenizer.json").read_bytes()


def test_delete_takes_the_files_and_the_number_is_never_used_again(trained: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(trained, tmp_path / "folder"))
    register = ("models", "register", run_of(folder, "first").id, "--name", "python-lm")
    said(command(folder, *register))
    assert command(folder, "models", "delete", "python-lm").code == 2
    assert said(command(folder, "models", "delete", "python-lm@0.1.0")) == "python-lm@0.1.0 is deleted\n"
    assert not (folder / ".trainwright" / "store" / "models").exists()
    assert document(folder, "ls")["versions"] == []
    assert [one["status"] for one in document(folder, "ls", "--deleted")["versions"]] == ["deleted"]
    assert command(folder, *register, "--version", "0.1.0").code == 2
    assert said(command(folder, *register)) == "python-lm@0.2.0 is ready\n"


def test_an_export_is_loaded_by_transformers_and_its_card_is_read_by_hugging_face(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    said(command(folder, "models", "note", "python-lm@0.1.0", HOSTILE))
    said(command(folder, "models", "tag", "python-lm@0.1.0", f"domain={HOSTILE}"))
    assert said(command(folder, "models", "export", "python-lm@0.1.0", "--format", "hf", "--out", "hf")) == "hf\n"
    out = folder / "hf"
    assert {path.name for path in out.iterdir()} == {
        *("README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"),
        "trainwright.json",
    }
    AutoModelForCausalLM.from_pretrained(out)
    AutoTokenizer.from_pretrained(out)
    card = ModelCard.load(out / "README.md")
    found = document(folder, "show", "python-lm@0.1.0")
    assert (card.data.library_name, card.data.pipeline_tag) == ("transformers", "text-generation")
    assert {one.metric_type: one.metric_value for one in card.data.eval_results or []}["val_loss"] == (
        found["metrics"]["val_loss"]
    )
    for text in (found["facts"]["evidence_sha256"], "GATE-DEMO-001", "demo-v1 1.2.3", found["run"]):
        assert text in card.text


def test_a_model_that_is_none_of_language_is_exported_with_a_card_too(folder: Path) -> None:
    said(command(folder, "models", "register", run_of(folder, "third").id, "--name", "toy", "--allow-failing"))
    assert command(folder, "models", "export", "toy@0.1.0", "--format", "hf", "--out", "out").code == 2
    said(command(folder, "models", "export", "toy@0.1.0", "--out", "out"))
    assert "**Not every gate of its contract holds.**" in (folder / "out" / "README.md").read_text()


def test_a_readme_that_no_export_wrote_stays_and_the_card_of_another_model_goes(folder: Path) -> None:
    said(command(folder, "models", "export", "python-lm@0.1.0", "--out", "out"))
    said(command(folder, "models", "export", "python-lm@0.2.0", "--out", "out"))
    card = folder / "out" / "README.md"
    assert "# python-lm 0.2.0" in card.read_text()
    run = run_of(folder, "first").id
    said(command(folder, "export", run, "--out", "out"))
    assert not card.exists()
    card.write_text("# my own\n")
    said(command(folder, "export", run, "--out", "out"))
    refused = command(folder, "models", "export", "python-lm@0.1.0", "--out", "out")
    assert (refused.code, card.read_text()) == (2, "# my own\n")
    assert "was written by no export, and would be lost" in refused.err


def test_an_older_registry_is_refused_until_it_is_migrated(folder: Path) -> None:
    oldest, newest = revisions.known()[0], revisions.known()[-1]
    assert document(folder, "migrate", "--to", oldest) == {"before": newest, "after": oldest}
    old = command(folder, "models", "ls")
    assert old.code == 7
    assert old.err.endswith("then: trainwright models migrate\n")
    assert said(command(folder, "models", "migrate")) == f"revision {oldest} → {newest}\n"
    assert len(document(folder, "ls")["versions"]) == 2


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("show", "no-such"), "error: no-such: no version of it is ready and passes; newest models: python-lm\n"),
        (("show", "python-lm@9.9.9"), "newest versions: 0.2.0, 0.1.0\n"),
        (("show", "../x"), "error: '../x' is no name of a model; expected "),
        (("register", "latest", "--name", "m", "--bump", "huge"), "error: bump 'huge' is not one of: major, minor"),
        (("register", "latest", "--name", "m", "--version", "1.0"), "error: '1.0' is no version; expected "),
        (("register", "no-such", "--name", "m"), "error: no-such: is no run directory and no run id"),
        (("note", "python-lm"), "error: expected TEXT or --file FILE\n"),
        (("export", "python-lm", "--format", "onnx", "--out", "x"), "error: format 'onnx' is not one of: hf, saf"),
    ],
)
def test_what_is_wrong_is_told_in_a_line_with_exit_code_2(registered: Path, arguments: Any, told: str) -> None:
    done = command(registered, "models", *arguments)
    assert (done.code, done.out) == (2, "")
    assert told in done.err


def test_a_version_that_waits_for_its_store_is_completed_by_sync(trained: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(trained, tmp_path / "folder"))
    (folder / ".trainwright").mkdir()
    (folder / ".trainwright" / "store").write_bytes(b"in the way")
    done = command(folder, "models", "register", run_of(folder, "first").id, "--name", "python-lm")
    assert done.code == 7
    assert done.out.startswith("python-lm@0.1.0 is pending: ")
    assert command(folder, "checkpoints", "sync").code == 7
    (folder / ".trainwright" / "store").unlink()
    synced = command(folder, "checkpoints", "sync", run_of(folder, "first").id)  # which has no store of its own
    assert (synced.code, synced.out) == (2, "python-lm@0.1.0 is ready\n")
    assert "no store is named" in synced.err
    assert said(command(folder, "checkpoints", "sync")) == ""
    assert said(command(folder, "models", "verify", "python-lm")).endswith("\nholds\n")
