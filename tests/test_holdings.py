"""What checkpoints a store holds: listed from manifests alone, verified by every byte, tidied of what none names."""

from pathlib import Path

import pytest

from tests.stores import Watched, begin, checkpoints, content, new_run, save
from trainwright.checkpoints.checkpoints import Checkpoints
from trainwright.checkpoints.filesystem import FileStore
from trainwright.checkpoints.memory import MemoryStore
from trainwright.errors import InputError
from trainwright.files import sha256_of_bytes
from trainwright.holdings import chosen, has_ended, holdings, problems, runs_in, tidy, unnamed
from trainwright.manifest import MANIFEST, Checkpoint, FileRecord, Manifest, Stamp, encode_manifest
from trainwright.mirror import Mirror
from trainwright.rundir import RunDirectory


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return new_run(tmp_path)


@pytest.fixture
def saved(run: RunDirectory) -> FileStore:
    """Give a folder with one checkpoint that is retired and two that are kept."""
    removed = save(run, 10)
    for step in (20, 30):
        save(run, step)
    checkpoints(run).retire([removed])
    return FileStore(run.checkpoints)


def many(count: int, files: int) -> MemoryStore:
    store = MemoryStore()
    for step in range(count):
        stamp = Stamp(run="many", attempt=1, model_type="toy", config_sha256="0" * 64)
        contents = {f"part-{number:02d}.safetensors": f"{step} {number}".encode() for number in range(files)}
        records = {name: FileRecord(len(data), sha256_of_bytes(data)) for name, data in contents.items()}
        folder = Checkpoint(step, 1).name
        for name, data in contents.items():
            store.put(f"{folder}/{name}", data)
        manifest = Manifest(step=step, stamp=stamp, time="2026-01-01T00:00:00.000Z", files=records)
        store.put(f"{folder}/{MANIFEST}", encode_manifest(manifest))
    return store


def test_a_thousand_checkpoints_of_twenty_files_are_listed_by_their_manifests_alone_and_verified() -> None:
    watched = Watched(many(1000, 20))
    found = holdings(watched)
    assert [(one.step, one.state, one.files) for one in found] == [(step, "kept", 20) for step in range(1000)]
    assert watched.counts() == {"keys": 1, "get": 1000}
    assert {key.rpartition("/")[2] for verb, key in watched.calls if verb == "get"} == {MANIFEST}
    assert problems(watched.inner) == []
    watched.inner.put("step-00000500.a1/part-07.safetensors", b"500 8")
    assert [one.checkpoint for one in problems(watched.inner)] == ["step-00000500.a1"]


def test_a_listing_tells_what_is_kept_retired_damaged_and_incomplete(run: RunDirectory, saved: FileStore) -> None:
    (run.checkpoints / "step-00000020.a1" / "model.safetensors").unlink()
    saved.put("step-00000040.a1/model.safetensors", b"cut")
    saved.put("step-00000050.a1/manifest.json", b"{}")
    saved.put("my-copy/model.safetensors", b"mine")
    found = {one.step: one for one in holdings(saved)}
    states = ["retired", "damaged", "kept", "incomplete", "damaged"]
    assert [(step, one.state) for step, one in found.items()] == list(zip((10, 20, 30, 40, 50), states, strict=True))
    assert found[20].reason == "model.safetensors is missing"
    assert "is not a manifest" in found[50].reason
    manifest = Checkpoints(saved).manifest(Checkpoint(30, 1))
    records = [*manifest.files.values(), *manifest.segments.values()]
    assert (found[30].files, found[30].size_bytes) == (len(records), sum(record.size for record in records))


@pytest.mark.parametrize("how", ["flipped", "cut", "gone", "segment", "manifest"])
def test_every_kind_of_damage_is_found_with_its_file(run: RunDirectory, saved: FileStore, how: str) -> None:
    assert problems(saved) == []
    folder = run.checkpoints / "step-00000030.a1"
    segment = checkpoints(run).manifest(Checkpoint(30, 1)).segments["replay.own"].sha256
    files = {"segment": run.checkpoints / "segments" / segment, "manifest": folder / MANIFEST}
    file = files.get(how, folder / "optimizer.safetensors")
    data = file.read_bytes()
    if how == "gone":
        file.unlink()
    else:
        file.write_bytes(data[:-1] if how == "cut" else data[:-1] + bytes([data[-1] ^ 1]))
    [problem] = problems(saved)
    assert problem.checkpoint == "step-00000030.a1"
    assert file.name in problem.reason


def test_what_no_manifest_names_is_removed_and_what_one_names_or_a_user_put_there_stays(
    run: RunDirectory, saved: FileStore
) -> None:
    saved.put("my-copy/model.safetensors", b"mine")
    whole = content(saved)
    left = {
        *("step-00000010.a1/model.safetensors", "step-00000030.a1/extra", f"segments/{'0' * 64}"),
        *("step-00000040.a1/model.safetensors", "step-00000040.a1/retired.json"),
    }
    for key in left:
        saved.put(key, b"left")
    (run.checkpoints / "segments" / f"{'1' * 64}.7.tmp").write_bytes(b"half")
    assert set(unnamed(saved)) == left
    assert set(tidy(saved)) == left
    assert content(saved) == whole
    assert list(run.checkpoints.rglob("*.tmp")) == []
    assert (tidy(saved), problems(saved)) == ([], [])


def test_while_a_manifest_cannot_be_read_its_files_and_every_segment_stay(saved: FileStore) -> None:
    saved.put("step-00000020.a1/manifest.json", b"{}")
    saved.put(f"segments/{'0' * 64}", b"left")
    assert unnamed(saved) == []


def test_the_newest_that_is_kept_is_chosen_or_the_one_that_is_named(saved: FileStore) -> None:
    assert chosen(saved, None) == Checkpoint(30, 1)
    assert chosen(saved, "step-00000020.a1") == Checkpoint(20, 1)
    with pytest.raises(InputError, match=r"no checkpoint step-00000010\.a1 .* step-00000030\.a1, step-00000020\.a1"):
        chosen(saved, "step-00000010.a1")


def test_the_runs_of_a_store_are_known_and_whether_their_newest_attempt_has_ended(run: RunDirectory) -> None:
    store, view = MemoryStore(), MemoryStore()
    for key in ("runs/b/run.yaml", "runs/a/run.yaml", "runs/cut/checkpoints/x", "models/m/1.0.0/run.yaml"):
        store.put(key, b"")
    assert runs_in(store) == ["a", "b"]
    mirror = Mirror(run, view)
    mirror.sync()
    assert not has_ended(view)
    view.put("result.json", b'{"attempts": 1}')
    assert has_ended(view)
    begin(run, 0)
    mirror.sync()
    assert not has_ended(view)
