"""`checkpoints ls|verify|pull|gc|sync`, of a directory and of its copy in a store."""

import re
import urllib.request
from pathlib import Path

import pytest

from tests.acceptance import harness
from tests.acceptance.test_command_line import document, ok
from trainwright import yamlfile
from trainwright.rundir import RunDirectory

NEWEST = "step-00000020.a1"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Give a folder with a run of 20 steps, made while its store was no folder, so that nothing went up."""
    values = harness.config(train__steps=20, checkpoint__every=10, checkpoint__store=f"file://{tmp_path / 'store'}")
    (tmp_path / "run.yaml").write_text(yamlfile.dump(values))
    return tmp_path


@pytest.fixture
def trained(place: Path) -> RunDirectory:
    ok(place, "train", "run.yaml")
    return harness.only_run(place / "runs")


def test_a_run_and_its_copy_are_listed_verified_and_pulled(place: Path, trained: RunDirectory) -> None:
    url = f"file://{place / 'store'}/runs/{trained.id}"
    here = document(ok(place, "checkpoints", "ls", trained.id, "--json"))
    assert [(one["step"], one["state"], one["in_store"]) for one in here["checkpoints"]] == [
        *((0, "retired", True), (10, "kept", True), (20, "kept", True)),
    ]
    there = document(ok(place, "checkpoints", "ls", url, "--json"))
    assert there == {**here, "checkpoints": [{**one, "in_store": None} for one in here["checkpoints"]]}
    assert re.search(rf"{NEWEST} +20 +kept +\d+ .* there$", ok(place, "checkpoints", "ls", "latest"), re.MULTILINE)
    assert ok(place, "checkpoints", "verify", url) == f"{trained.id}: all hold\n"
    assert ok(place, "checkpoints", "pull", url, "--out", "out") == f"out/{NEWEST}\n"
    folder = place / "out" / NEWEST
    assert harness.contents(folder) == harness.contents(trained.checkpoints / NEWEST)


def test_damage_in_the_store_is_told_with_the_exit_code_of_stores(place: Path, trained: RunDirectory) -> None:
    url = f"file://{place / 'store'}/runs/{trained.id}"
    file = place / "store" / "runs" / trained.id / "checkpoints" / NEWEST / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    completed = harness.command(place, "checkpoints", "verify", url, "--json")
    assert completed.code == 7
    told = document(completed.out)
    assert [one["checkpoint"] for one in told["problems"]] == [NEWEST]
    assert harness.command(place, "checkpoints", "pull", url, "--out", "out").code == 7
    assert not (place / "out" / NEWEST).exists()
    assert ok(place, "checkpoints", "verify", trained.id) == f"{trained.id}: all hold\n"


def test_what_did_not_go_up_is_pending_until_a_sync_completes_it(place: Path) -> None:
    ok(place, "train", "run.yaml", "checkpoint.store=null")
    run, url = harness.only_run(place / "runs"), f"file://{place / 'store'}"
    listed = document(ok(place, "checkpoints", "ls", run.id, "--store", url, "--json"))
    assert {one["in_store"] for one in listed["checkpoints"]} == {False}
    refused = harness.command(place, "checkpoints", "sync", run.id)
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "no store is named; give --store URL" in refused.err
    told = ok(place, "checkpoints", "sync", "--store", url)
    assert told.startswith(f"{run.id}: 2 checkpoints went up, ")
    listed = document(ok(place, "checkpoints", "ls", run.id, "--store", url, "--json"))
    assert {one["in_store"] for one in listed["checkpoints"]} == {True}
    assert [row.kind for row in run.read_after()] == ["uploaded", "uploaded"]
    assert ok(place, "evidence", "verify", run.id)
    assert ok(place, "checkpoints", "sync", run.id, "--store", url).startswith(f"{run.id}: 0 checkpoints went up")


def test_gc_removes_what_no_manifest_names_and_nothing_of_models_or_of_a_run_that_may_go_on(
    place: Path, trained: RunDirectory
) -> None:
    store = place / "store"
    left = store / "runs" / trained.id / "checkpoints" / "step-00000099.a1" / "model.safetensors"
    models = store / "models" / "toy" / "1.0.0" / "model.safetensors"
    going_on = store / "runs" / "going-on" / "run.yaml"
    begun = store / "runs" / "going-on" / "checkpoints" / "step-00000001.a1" / "model.safetensors"
    for file in (left, models, going_on, begun):
        file.parent.mkdir(parents=True)
        file.write_bytes(b"left")
    arguments = ("checkpoints", "gc", "--store", f"file://{store}", "--json")
    keys = {trained.id: ["step-00000099.a1/model.safetensors"]}
    assert document(ok(place, *arguments, "--dry-run")) == {"removed": False, "keys": keys}
    assert left.exists()
    assert document(ok(place, *arguments)) == {"removed": True, "keys": keys}
    assert [file.exists() for file in (left, models, begun)] == [False, True, True]
    refused = harness.command(place, "checkpoints", "gc", f"file://{store}/runs/going-on")
    assert (refused.code, "it may be in training" in refused.err) == (2, True)
    assert ok(place, "checkpoints", "gc", trained.id) == f"{trained.id}: nothing to remove\n"
    ok(place, "checkpoints", "gc", f"file://{store}/runs/going-on", "--unfinished")
    assert [file.exists() for file in (models, begun)] == [True, False]
    assert ok(place, "checkpoints", "verify", f"file://{store}/runs/{trained.id}")


def test_a_url_without_a_run_is_told(place: Path) -> None:
    completed = harness.command(place, "checkpoints", "ls", f"file://{place}/store/runs/none")
    assert (completed.code, completed.err.count("\n")) == (2, 1)
    assert "there is no run at this place of the store" in completed.err


def test_the_numbers_are_served_while_a_run_trains_and_no_longer(place: Path) -> None:
    child = harness.start(harness._command, place, ["train", "run.yaml", "--metrics-port", "0", "train.steps=100000"])
    try:
        harness.until(lambda: b"/metrics" in told(place), child)
        address = re.search(rb"metrics: (http://127\.0\.0\.1:\d+/metrics)", told(place))
        assert address, told(place)
        url = address[1].decode()
        harness.until(lambda: 'outcome="uploaded"} 0.0' not in scraped(url), child)
        assert "trainwright_checkpoint_upload_seconds_count" in scraped(url)
    finally:
        assert harness.kill(child, 15) == 143
    with pytest.raises(OSError, match="refused"):
        scraped(url)


def told(folder: Path) -> bytes:
    file = folder / ".stderr"
    return file.read_bytes() if file.exists() else b""


def scraped(url: str) -> str:
    with urllib.request.urlopen(url) as answer:
        text: str = answer.read().decode()
    return text


def test_a_store_of_run_yaml_that_holds_a_key_is_refused_with_its_line(place: Path) -> None:
    for url in ("s3://key:secret@bucket/x", "s3://bucket/x?key=secret", "bucket"):
        completed = harness.command(place, "train", "run.yaml", f"checkpoint.store={url}")
        assert (completed.code, completed.out) == (2, "")
        assert "checkpoint.store" in completed.err
        assert not (place / "runs").exists()
