"""From a run to a version: what is let in, what lies in the store, and what is left when a store or a process dies."""

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from tests.acceptance import harness
from tests.attached import TEXT, contract_file, sealed_run
from tests.servers.seaweed import BUCKET, Seaweed
from tests.suites.registry import WHO, sqlite_url
from trainwright import registration, runs, versionfiles
from trainwright.checkpoints.base import Store
from trainwright.checkpoints.filesystem import FileStore
from trainwright.checkpoints.memory import MemoryStore
from trainwright.checkpoints.within import within
from trainwright.config import RunConfig
from trainwright.errors import DamagedCheckpointError, InputError, StoreError
from trainwright.files import sha256_of_bytes, sha256_of_file
from trainwright.manifest import FileRecord
from trainwright.mirror import Mirror
from trainwright.outside import problems_of_evidence
from trainwright.registration import Registration, register
from trainwright.registry.base import Facts, ModelVersion, Registry
from trainwright.registry.open import open_registry
from trainwright.registry.versions import Version
from trainwright.rundir import RunDirectory
from trainwright.versionfiles import Shelf

FILES = {
    *("model.safetensors", "manifest.json", "run.yaml", "environment.json", "result.json"),
    *("evidence.json", "evidence.sha256"),
}
HOSTILE_FILES = [
    *("../outside", "..", "a/../../outside", "/etc/hostname", "a/b", "%2e%2e%2foutside", "%252e%252e%252foutside"),
    *("..\\outside", "C:\\a", "a\0b", "a#b", ".hidden", "a.1.tmp", "", "é", "a\nb"),
]
QUICK_BOUND = "median_ms < 60000"


def trained(folder: Path, **changes: Any) -> RunDirectory:
    return runs.execute(RunConfig.parse(harness.config(**{"train__steps": 12, **changes})), runs_dir=folder).run


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """Give a finished run without a contract, which is soon judged again."""
    return trained(tmp_path_factory.mktemp("once") / "runs")


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """Give a run whose gates hold."""
    return sealed_run(tmp_path_factory.mktemp("judged"))


@pytest.fixture
def run(once: RunDirectory, tmp_path: Path) -> RunDirectory:
    return copied(once, tmp_path)


def copied(run: RunDirectory, folder: Path) -> RunDirectory:
    return RunDirectory(Path(shutil.copytree(run.path, folder / "runs" / run.id)))


@pytest.fixture(scope="module")
def s3_server(seaweed: Seaweed) -> Iterator[Seaweed]:
    yield seaweed
    if not seaweed.running:
        seaweed.start()


@pytest.fixture(params=["memory", "file", "s3"])
def shelf(request: pytest.FixtureRequest, tmp_path: Path) -> Shelf:
    if request.param == "memory":
        return Shelf(MemoryStore(), "memory:")
    if request.param == "file":
        return file_shelf(tmp_path)
    server, prefix = request.getfixturevalue("s3_server"), uuid4().hex
    return Shelf(server.open(prefix), f"s3://{BUCKET}/{prefix}")


def file_shelf(folder: Path) -> Shelf:
    return Shelf(FileStore(folder / "store"), (folder / "store").as_uri())


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    registry = open_registry(sqlite_url(tmp_path))
    yield registry
    registry.close()


def registered(registry: Registry, shelf: Shelf, run: RunDirectory, **options: Any) -> Registration:
    return register(run, registry, shelf, "m", "minor", who=WHO, **options)


def files_in(store: Store, version: ModelVersion) -> dict[str, bytes]:
    folder = f"{versionfiles.folder_of(version)}/"
    return {key.removeprefix(folder): store.get(key) for key in store.keys(folder)}


def nothing_is_stored(registry: Registry, store: Store) -> bool:
    return not registry.ls(deleted=True) and not registry.audit() and not list(store.keys())


# -- what a version is -----------------------------------------------------------------------------------------------


def test_a_version_has_its_number_its_facts_and_its_files(registry: Registry, shelf: Shelf, run: RunDirectory) -> None:
    done = registered(registry, shelf, run)
    version, facts = done.version, done.version.facts
    assert (done.is_new, done.why, version.reference, version.status) == (True, None, "m@0.1.0", "ready")
    assert version.artifact_url == f"{shelf.url}/models/m/0.1.0"
    assert versionfiles.store_url_of(version) == shelf.url
    assert set(facts.files) == FILES
    there = files_in(shelf.store, version)
    assert set(there) == FILES | {"version.json"}
    assert {name: sha256_of_bytes(there[name]) for name in FILES} == {n: r.sha256 for n, r in facts.files.items()}
    assert versionfiles.problems_of(shelf.store, version) == []
    assert there["run.yaml"] == run.config.read_bytes()


def test_a_version_leads_back_to_the_hash_of_its_data(registry: Registry, run: RunDirectory, tmp_path: Path) -> None:
    facts = registered(registry, file_shelf(tmp_path), run).version.facts
    best = next(row for row in reversed(run.read_validations()) if row.is_best)
    manifest = json.loads((run.checkpoints / best.checkpoint / "manifest.json").read_bytes())
    assert (facts.lineage.run, facts.lineage.checkpoint) == (run.id, best.checkpoint)
    assert dict(facts.lineage.hashes) == manifest["stamp"]["hashes"] != {}
    assert facts.metrics[best.metric] == best.value
    assert facts.hyperparameters["train"]["steps"] == 12
    assert facts.evidence_sha256 == sha256_of_file(run.evidence)
    assert facts.files["model.safetensors"].sha256 == manifest["files"]["model.safetensors"]["sha256"]


def test_a_version_knows_the_run_that_its_own_went_on_from(
    registry: Registry, once: RunDirectory, tmp_path: Path
) -> None:
    from trainwright import app

    parent = copied(once, tmp_path)
    child = app.resume(parent.path, ["train.steps=20"], runs_dir=parent.path.parent).run
    lineage = registered(registry, file_shelf(tmp_path), child).version.facts.lineage
    assert (lineage.parent_run, lineage.parent_checkpoint) == (parent.id, "step-00000012.a1")


def test_version_json_says_what_the_registry_says(registry: Registry, run: RunDirectory, tmp_path: Path) -> None:
    shelf = file_shelf(tmp_path)
    version = registered(registry, shelf, run).version
    document = json.loads(files_in(shelf.store, version)["version.json"])
    assert msgspec.convert(document, Facts) == version.facts
    assert (document["name"], document["version"], document["sha256"]) == ("m", "0.1.0", version.facts.sha256)


def test_a_second_registration_gives_the_same_version_and_puts_nothing(
    registry: Registry, run: RunDirectory, tmp_path: Path
) -> None:
    shelf = file_shelf(tmp_path)
    first = registered(registry, shelf, run)
    again = registered(registry, shelf, run)
    assert (again.is_new, again.version) == (False, first.version)
    assert [row.kind for row in run.read_after()] == ["registered"]


def test_what_was_registered_is_on_record_beside_the_sealed_files(
    registry: Registry, run: RunDirectory, tmp_path: Path
) -> None:
    registered(registry, file_shelf(tmp_path), run)
    (row,) = run.read_after()
    assert (row.kind, row.detail["model"], row.detail["version"]) == ("registered", "m", "0.1.0")
    assert problems_of_evidence(run) == []


def test_deleting_a_run_never_touches_its_version(registry: Registry, shelf: Shelf, run: RunDirectory) -> None:
    Mirror(run, within(shelf.store, f"runs/{run.id}")).sync()
    version = registered(registry, shelf, run).version
    for key in shelf.store.keys("runs/"):
        shelf.store.delete(key)
    shutil.rmtree(run.path)
    assert versionfiles.problems_of(shelf.store, version) == []


class CopyOnly(FileStore):
    """A store that takes no file from outside: each has to be copied inside it."""

    def put_file(self, key: str, path: Path, *, sha256: str) -> None:
        raise StoreError(f"{key}: came from outside")


def test_files_of_a_mirrored_run_are_copied_inside_the_store(
    registry: Registry, run: RunDirectory, tmp_path: Path
) -> None:
    Mirror(run, within(FileStore(tmp_path / "store"), f"runs/{run.id}")).sync()
    shelf = Shelf(CopyOnly(tmp_path / "store"), (tmp_path / "store").as_uri())
    assert registered(registry, shelf, run).why is None


def test_a_damaged_copy_in_the_store_is_not_taken(registry: Registry, shelf: Shelf, run: RunDirectory) -> None:
    Mirror(run, within(shelf.store, f"runs/{run.id}")).sync()
    key = next(key for key in shelf.store.keys("runs/") if key.endswith("model.safetensors"))
    data = bytearray(shelf.store.get(key))
    data[-1] ^= 1
    for one in (key for key in shelf.store.keys("runs/") if key.endswith("model.safetensors")):
        shelf.store.put(one, bytes(data))
    done = registered(registry, shelf, run)
    assert done.why is None
    assert versionfiles.problems_of(shelf.store, done.version) == []


# -- what is let in --------------------------------------------------------------------------------------------------


def test_a_run_whose_gates_hold_is_let_in_with_its_contract_and_verdicts(
    registry: Registry, judged: RunDirectory, tmp_path: Path
) -> None:
    version = registered(registry, file_shelf(tmp_path), copied(judged, tmp_path)).version
    assert version.passing
    assert version.facts.contract is not None
    assert (version.facts.contract.id, version.facts.contract.version) == ("demo-v1", "1.2.3")
    assert {verdict["gate"]: verdict["result"] for verdict in version.facts.verdicts}["GATE-DEMO-001"] == "pass"
    assert "contract.yaml" in version.facts.files


def test_a_run_whose_gate_fails_is_let_in_only_by_the_flag_and_marked_for_ever(
    registry: Registry, tmp_path: Path
) -> None:
    run, shelf = failing(tmp_path), file_shelf(tmp_path)
    with pytest.raises(InputError, match="GATE-DEMO-003; --allow-failing registers it all the same"):
        registered(registry, shelf, run)
    assert nothing_is_stored(registry, shelf.store)
    done = registered(registry, shelf, run, allow_failing=True)
    assert not done.version.passing
    assert registration.told([done]) == ["m@0.1.0 is ready (its gates do not hold)"]


def test_a_gate_that_forbids_to_ship_keeps_a_run_out_whatever_the_flags(registry: Registry, tmp_path: Path) -> None:
    run, shelf = failing(tmp_path, "    unit: ms\n    ship_blocking: true\n"), file_shelf(tmp_path)
    for allow_failing in (False, True):
        with pytest.raises(InputError, match="GATE-DEMO-003 forbids to ship it and does not hold; no flag changes"):
            registered(registry, shelf, run, allow_failing=allow_failing)
    assert nothing_is_stored(registry, shelf.store)


def test_a_gate_that_only_warns_and_forbids_to_ship_keeps_a_run_out_too(registry: Registry, tmp_path: Path) -> None:
    rest = "    unit: ms\n    ship_blocking: true\n    on_fail: warn\n"
    run, shelf = failing(tmp_path, rest), file_shelf(tmp_path)
    with pytest.raises(InputError, match="forbids to ship it"):
        registered(registry, shelf, run, allow_failing=True)
    assert nothing_is_stored(registry, shelf.store)


def failing(folder: Path, rest: str = "    unit: ms\n") -> RunDirectory:
    """Train a run of which one gate fails."""
    text = TEXT.replace(QUICK_BOUND, "median_ms < 0.0001").replace("    unit: ms\n", rest, 1)
    return trained(folder / "runs", contract=str(contract_file(folder / "judged", text)))


def test_an_aborted_run_is_never_let_in(registry: Registry, tmp_path: Path) -> None:
    run, shelf = trained(tmp_path / "runs", model__nan_at_step=7), file_shelf(tmp_path)
    with pytest.raises(InputError, match=r"ended as aborted .* only a run that finished is registered"):
        registered(registry, shelf, run, allow_failing=True)
    assert nothing_is_stored(registry, shelf.store)


def remove_weights(run: RunDirectory) -> None:
    for file in run.checkpoints.glob("*/model.safetensors"):
        file.unlink()


def flip_weights(run: RunDirectory) -> None:
    for file in run.checkpoints.glob("*/model.safetensors"):
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)


REFUSED: dict[str, Callable[[RunDirectory], object]] = {
    "no weights": remove_weights,
    "other weights": flip_weights,
    "no checkpoints": lambda run: shutil.rmtree(run.checkpoints),
    "no result": lambda run: run.result.unlink(),
    "no evidence": lambda run: run.evidence.unlink(),
    "no seal": lambda run: run.evidence_sha256.unlink(),
    "another configuration": lambda run: run.config.write_text(run.config.read_text() + "# more\n"),
    "a row less": lambda run: run.steps.write_bytes(b"".join(run.steps.read_bytes().splitlines(keepends=True)[:-1])),
    "a better end": lambda run: run.result.write_text(run.result.read_text().replace('"step": 12', '"step": 13')),
}


@pytest.mark.parametrize("change", REFUSED.values(), ids=REFUSED)
def test_a_version_whose_files_are_not_there_as_they_were_is_refused_and_nothing_stored(
    registry: Registry, run: RunDirectory, tmp_path: Path, change: Callable[[RunDirectory], object]
) -> None:
    change(run)
    shelf = file_shelf(tmp_path)
    with pytest.raises((InputError, StoreError)):
        registered(registry, shelf, run, allow_failing=True)
    assert nothing_is_stored(registry, shelf.store)


def test_a_name_deleted_and_made_again_goes_on_counting(registry: Registry, run: RunDirectory, shelf: Shelf) -> None:
    first = registered(registry, shelf, run).version
    versionfiles.remove(shelf.store, registry.delete("m", first.number, who=WHO))
    assert list(shelf.store.keys()) == []
    again = registered(registry, shelf, run).version
    assert again.number == Version(0, 2, 0)
    assert versionfiles.problems_of(shelf.store, again) == []


# -- a store that fails ----------------------------------------------------------------------------------------------


def test_with_a_store_that_is_down_a_version_is_pending_and_completed_later(
    registry: Registry, run: RunDirectory, tmp_path: Path
) -> None:
    (tmp_path / "store").write_bytes(b"in the way")
    shelf = file_shelf(tmp_path)
    done = registered(registry, shelf, run)
    assert done.why is not None
    assert (done.version.status, done.version.artifact_url) == ("pending", None)
    with pytest.raises(InputError, match="no version of it is ready"):
        registry.latest("m")
    (tmp_path / "store").unlink()
    ready = registration.complete(registry, shelf, registry.get("m", done.version.number), run, who=WHO)
    assert (ready.version.status, ready.why) == ("ready", None)
    assert versionfiles.problems_of(shelf.store, ready.version) == []
    assert [row.kind for row in run.read_after()] == ["registration_pending", "registered"]


def test_a_server_killed_and_started_again_ends_with_a_version_that_is_ready(
    registry: Registry, run: RunDirectory, s3_server: Seaweed
) -> None:
    prefix = uuid4().hex
    impatient = replace(s3_server.settings, retry_seconds=0.1)
    shelf = Shelf(s3_server.open(prefix, impatient), f"s3://{BUCKET}/{prefix}")
    s3_server.kill()
    down = registered(registry, shelf, run)
    assert (down.version.status, down.why is None) == ("pending", False)
    s3_server.start()
    done = registered(registry, Shelf(s3_server.open(prefix), shelf.url), run)
    assert (done.is_new, done.why, done.version.number) == (False, None, down.version.number)
    assert versionfiles.problems_of(shelf.store, done.version) == []


class KilledAtPut(FileStore):
    """Kills its own process in the n-th put, before it is done."""

    left = 0

    def put_file(self, key: str, path: Path, *, sha256: str) -> None:
        self._count()
        super().put_file(key, path, sha256=sha256)

    def put(self, key: str, *parts: bytes | memoryview) -> None:
        self._count()
        super().put(key, *parts)

    def _count(self) -> None:
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1


def register_and_die(url: str, folder: Path, run: Path, puts: int) -> int:
    store = KilledAtPut(folder / "store")
    store.left = puts
    registered(open_registry(url), Shelf(store, (folder / "store").as_uri()), RunDirectory(run))
    return 0


@pytest.mark.parametrize("puts", [0, 3, len(FILES)])
def test_a_process_killed_in_a_registration_is_completed_by_a_second_call(
    registry: Registry, run: RunDirectory, tmp_path: Path, puts: int
) -> None:
    child = harness.start(register_and_die, sqlite_url(tmp_path), tmp_path, run.path, puts)
    assert harness.finish(child) == -signal.SIGKILL
    (listed,) = registry.ls()
    shelf = file_shelf(tmp_path)
    assert listed.status == "pending"
    assert "version.json" not in files_in(shelf.store, registry.get("m", listed.number))
    done = registered(registry, shelf, run)
    assert (done.version.number, done.version.status, done.is_new) == (listed.number, "ready", False)
    assert versionfiles.problems_of(shelf.store, done.version) == []


class DeletedMeanwhile(FileStore):
    """Somebody deletes the version, and its files, when all but the last are there."""

    def __init__(self, root: Path, registry: Registry) -> None:
        super().__init__(root)
        self.registry = registry

    def put(self, key: str, *parts: bytes | memoryview) -> None:
        if key.endswith("version.json"):
            versionfiles.remove(FileStore(self._root), self.registry.delete("m", Version(0, 1, 0), who=WHO))
        super().put(key, *parts)


def test_a_version_deleted_while_its_files_go_up_leaves_none(
    registry: Registry, run: RunDirectory, tmp_path: Path
) -> None:
    store = DeletedMeanwhile(tmp_path / "store", registry)
    with pytest.raises(InputError, match=r"m@0\.1\.0: was deleted at"):
        registered(registry, Shelf(store, (tmp_path / "store").as_uri()), run)
    assert list(store.keys()) == []


def test_a_deleted_version_is_not_completed(registry: Registry, run: RunDirectory, tmp_path: Path) -> None:
    shelf = file_shelf(tmp_path)
    version = registered(registry, shelf, run).version
    deleted = registry.delete("m", version.number, who=WHO)
    versionfiles.remove(shelf.store, deleted)
    with pytest.raises(InputError, match="was deleted, and its files do not come back"):
        registration.complete(registry, shelf, deleted, run, who=WHO)
    assert list(shelf.store.keys()) == []


# -- what lies in the store ------------------------------------------------------------------------------------------


def test_each_changed_missing_or_added_file_of_a_version_is_named(
    registry: Registry, run: RunDirectory, shelf: Shelf
) -> None:
    version = registered(registry, shelf, run).version
    whole = files_in(shelf.store, version)
    folder = versionfiles.folder_of(version)
    for name, data in whole.items():
        for other in (None, b"", data[:-1], bytes([data[0] ^ 1]) + data[1:]):
            if other is None:
                shelf.store.delete(f"{folder}/{name}")
            else:
                shelf.store.put(f"{folder}/{name}", other)
            (problem,) = versionfiles.problems_of(shelf.store, version)
            assert problem.startswith(f"{name}: ")
        shelf.store.put(f"{folder}/{name}", data)
    shelf.store.put(f"{folder}/more.bin", b"more")
    assert versionfiles.problems_of(shelf.store, version) == ["more.bin: is no file of this version"]


def test_a_pulled_version_is_the_same_in_every_byte(
    registry: Registry, run: RunDirectory, shelf: Shelf, tmp_path: Path
) -> None:
    version = registered(registry, shelf, run).version
    out = versionfiles.pull(shelf.store, version, tmp_path / "out" / "m")
    assert {path.name: path.read_bytes() for path in out.iterdir()} == files_in(shelf.store, version)
    (out / "model.safetensors").write_bytes(b"cut")
    versionfiles.pull(shelf.store, version, out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == files_in(shelf.store, version)


def test_a_file_that_is_not_what_the_registry_says_never_gets_its_name(
    registry: Registry, run: RunDirectory, shelf: Shelf, tmp_path: Path
) -> None:
    version = registered(registry, shelf, run).version
    key = f"{versionfiles.folder_of(version)}/model.safetensors"
    data = shelf.store.get(key)
    shelf.store.put(key, data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(DamagedCheckpointError, match=r"model\.safetensors.*SHA-256"):
        versionfiles.pull(shelf.store, version, tmp_path / "out")
    assert not (tmp_path / "out" / "model.safetensors").exists()
    assert not (tmp_path / "out" / "version.json").exists()
    assert not list((tmp_path / "out").glob("*.tmp"))


def test_a_folder_half_of_one_version_and_half_of_another_has_no_mark(
    registry: Registry, run: RunDirectory, tmp_path: Path
) -> None:
    shelf = file_shelf(tmp_path)
    out = versionfiles.pull(shelf.store, registered(registry, shelf, run).version, tmp_path / "out")
    other = trained(tmp_path / "other", train__learning_rate=0.2)
    version = registered(registry, shelf, other).version
    shelf.store.delete(f"{versionfiles.folder_of(version)}/run.yaml")
    with pytest.raises(StoreError):
        versionfiles.pull(shelf.store, version, out)
    assert sha256_of_file(out / "model.safetensors") == version.facts.files["model.safetensors"].sha256
    assert not (out / "version.json").exists()


def test_a_folder_with_other_files_is_not_pulled_into(registry: Registry, run: RunDirectory, tmp_path: Path) -> None:
    shelf = file_shelf(tmp_path)
    version = registered(registry, shelf, run).version
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_bytes(b"mine")
    with pytest.raises(InputError, match=r"holds mine\.txt, which is no file of m@0\.1\.0"):
        versionfiles.pull(shelf.store, version, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine.txt"]


# -- paths that would lead out of it ---------------------------------------------------------------------------------


def test_no_name_of_a_file_leads_out_of_a_version(registry: Registry, run: RunDirectory, tmp_path: Path) -> None:
    shelf, secret = file_shelf(tmp_path), tmp_path / "outside"
    version = registered(registry, shelf, run).version
    secret.write_bytes(b"secret")
    for name in HOSTILE_FILES:
        record = FileRecord(6, sha256_of_bytes(b"secret"))
        facts = msgspec.structs.replace(version.facts, files={**version.facts.files, name: record})
        forged = msgspec.structs.replace(version, facts=facts)
        for verb in (
            partial(registry.register, "other", facts, "minor", who=WHO),
            partial(versionfiles.pull, shelf.store, forged, tmp_path / "out"),
            partial(versionfiles.problems_of, shelf.store, forged),
            partial(versionfiles.put, shelf.store, forged, {}),
        ):
            with pytest.raises(InputError):
                verb()
    assert secret.read_bytes() == b"secret"
    assert not (tmp_path / "out").exists()
    assert versionfiles.problems_of(shelf.store, version) == []
    assert [one.name for one in registry.ls()] == ["m"]


def test_no_name_of_a_model_leads_out_of_the_store(registry: Registry, run: RunDirectory, tmp_path: Path) -> None:
    shelf = file_shelf(tmp_path)
    version = registered(registry, shelf, run).version
    for name in ("../m", "a/b", "..", "%2e%2e", "m\0", "m#", "/m", "m\n", "..\\m"):
        with pytest.raises(InputError, match="is no name of a model"):
            register(run, registry, shelf, name, "minor", who=WHO)
        with pytest.raises(InputError, match="is no name of a model"):
            versionfiles.remove(shelf.store, msgspec.structs.replace(version, name=name, status="deleted"))
    assert [one.name for one in registry.ls()] == ["m"]
    assert versionfiles.problems_of(shelf.store, version) == []


def test_a_link_in_the_place_of_a_version_is_neither_read_nor_removed(
    registry: Registry, run: RunDirectory, tmp_path: Path
) -> None:
    shelf = file_shelf(tmp_path)
    version = registered(registry, shelf, run).version
    folder = tmp_path / "store" / versionfiles.folder_of(version)
    outside = tmp_path / "outside"
    folder.rename(outside)
    folder.symlink_to(outside)
    with pytest.raises(StoreError):
        versionfiles.pull(shelf.store, version, tmp_path / "out")
    assert len(versionfiles.problems_of(shelf.store, version)) == len(FILES) + 1
    versionfiles.remove(shelf.store, registry.delete("m", version.number, who=WHO))
    assert {path.name for path in outside.iterdir()} == FILES | {"version.json"}


def test_an_artifact_url_of_another_place_is_not_read(registry: Registry, run: RunDirectory, tmp_path: Path) -> None:
    version = registered(registry, file_shelf(tmp_path), run).version
    for url in ("file:///etc", f"{version.artifact_url}/..", "file:///a/models/m/0.1.1", "file:///a/models/n/0.1.0"):
        with pytest.raises(InputError, match="nothing is read there"):
            versionfiles.store_url_of(msgspec.structs.replace(version, artifact_url=url))
