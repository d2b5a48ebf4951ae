"""What every registry must do: a backend's tests inherit `RegistryTests` and give the fixture `url`."""

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from tests.forkserver import SERVER
from trainwright.errors import InputError
from trainwright.manifest import FileRecord
from trainwright.registry import references
from trainwright.registry.base import ContractRecord, Facts, Lineage, Registry
from trainwright.registry.engines import engine_of
from trainwright.registry.open import open_registry
from trainwright.registry.versions import Bump, Version

WHO = "anna@desk"
PROCESSES = 50
DEADLINE_SECONDS = 60
HOSTILE_NAMES = [
    *("", ".", "..", "../outside", "a/b", "/etc", "a\\b", "%2e%2e%2f", "%252e%252e%252fa", "a\0b", "a#b", "a b", "-a"),
    *(".hidden", "A", "é", "a\n", "a@b", "x" * 64, "~", "$HOME", "'; drop table models; --", "a%00b", "C:\\a"),
]
HOSTILE_VERSIONS = [
    *("", "1", "1.0", "01.0.0", "1.0.0.0", "1.0.0+build", "v1.0.0", "1.0.0-", "1.0.0-01", "1.0.0-a..b", "-1.0.0"),
    *("1.0.0/../../x", "1.0.0-../x", "1.0.0-%2e%2e", "1.0.0\n", "1.0.0\0", "1.0.0-é", "١.٠.٠", "9999999999.0.0"),
]
CHANGES_BY_HAND = [
    *("DELETE FROM audit", "UPDATE audit SET who = 'nobody'", "DELETE FROM versions", "UPDATE versions SET major = 7"),
    *("UPDATE versions SET evidence_sha256 = ''", "DELETE FROM files", "UPDATE files SET sha256 = ''"),
]


def facts(run: str = "run-1", **changes: Any) -> Facts:
    """Give the facts of a version that a run could make; none of its files exists anywhere."""
    made = Facts(
        lineage=Lineage(
            run=run,
            checkpoint="step-00000020.a1",
            step=20,
            parent_run="run-0",
            parent_checkpoint="step-00000010.a1",
            init={"run": "run-x"},
            hashes={"data": "d" * 64, "tokenizer": "e" * 64},
            config_sha256="c" * 64,
        ),
        hyperparameters={"name": "m", "train": {"steps": 20, "learning_rate": 1e-3, "target": None}, "data": {}},
        metrics={"metric": "val_loss", "val_loss": 2.5, "worst": None, "worst_nonfinite": "inf", "n": 64},
        files={"model.safetensors": FileRecord(3, "a" * 64), "run.yaml": FileRecord(1 << 40, "b" * 64)},
        contract=ContractRecord("training-loop-pretrain", "1.2.0", "f" * 64),
        verdicts=[{"gate": "GATE-TRAIN-001", "result": "pass", "figures": {"rows": 20.0}, "headroom_percent": None}],
        evidence_sha256="9" * 64,
        passing=True,
    )
    return msgspec.structs.replace(made, **changes)


def added(registry: Registry, name: str, number: str, *, ready: bool = True, **changes: Any) -> Version:
    """Register a run of its own as this version."""
    version = Version.parse(number)
    registry.register(name, facts(f"run-of-{number}", **changes), version, who=WHO)
    if ready:
        registry.complete(name, version, f"file:///store/models/{name}/{number}", who=WHO)
    return version


def register_at_once(url: str, run: str, start: Barrier, results: Any) -> None:
    """Register a run in this process when all the others are there too."""
    registry = open_registry(url)
    start.wait(DEADLINE_SECONDS)
    results.put(str(registry.register("m", facts(run), "minor", who=str(os.getpid())).version.number))
    registry.close()


def open_at_once(url: str, start: Barrier, results: Any) -> None:
    start.wait(DEADLINE_SECONDS)
    registry = open_registry(url)
    results.put(len(registry.ls()))
    registry.close()


def register_until_killed(url: str, started: Any) -> None:
    registry = open_registry(url)
    for number in range(10_000):
        registry.register("m", facts(f"run-{number}"), "patch", who=WHO)
        started.set()


def at_once(target: Any, arguments: list[tuple[Any, ...]]) -> list[Any]:
    """Run `target` in a process for each of the arguments, all at the same moment; give what they put."""
    start, results = SERVER.Barrier(len(arguments)), SERVER.Queue()
    processes = [SERVER.Process(target=target, args=(*one, start, results), daemon=True) for one in arguments]
    for process in processes:
        process.start()
    given = [results.get(timeout=DEADLINE_SECONDS) for _ in processes]
    for process in processes:
        process.join(DEADLINE_SECONDS)
    assert [process.exitcode for process in processes] == [0] * len(processes)
    return given


def numbers(registry: Registry, name: str = "m") -> list[str]:
    return [str(one.number) for one in registry.ls(name)]


class RegistryTests:
    @pytest.fixture
    def url(self) -> str:
        raise NotImplementedError("a backend's class gives the URL of an empty database")

    @pytest.fixture
    def registry(self, url: str) -> Iterator[Registry]:
        registry = open_registry(url)
        yield registry
        registry.close()

    def test_what_is_registered_comes_back_as_it_was(self, registry: Registry) -> None:
        registered = registry.register("m", facts(), "minor", who=WHO)
        version = registry.get("m", Version(0, 1, 0))
        assert registered.is_new
        assert registered.version == version
        assert version.facts == facts()
        assert (version.status, version.passing, version.artifact_url) == ("pending", True, None)
        assert (version.run, version.metrics) == ("run-1", facts().metrics)
        assert version.created.endswith("Z")

    def test_the_first_version_is_a_bump_of_nothing(self, registry: Registry) -> None:
        bumps: dict[str, Bump] = {"a": "major", "b": "minor", "c": "patch"}
        made = {name: registry.register(name, facts(), bump, who=WHO).version.number for name, bump in bumps.items()}
        assert made == {"a": Version(1, 0, 0), "b": Version(0, 1, 0), "c": Version(0, 0, 1)}

    def test_a_bump_counts_from_the_greatest_as_a_number(self, registry: Registry) -> None:
        for number in ("1.9.0", "1.10.0", "0.20.0"):
            added(registry, "m", number)
        assert registry.register("m", facts("next"), "minor", who=WHO).version.number == Version(1, 11, 0)

    def test_versions_are_listed_as_numbers_are_ordered(self, registry: Registry) -> None:
        order = ["0.9.9", "1.9.0", "1.10.0-alpha", "1.10.0-alpha.1", "1.10.0-alpha.beta", "1.10.0-beta.2"]
        order += ["1.10.0-beta.11", "1.10.0-rc.1", "1.10.0", "1.10.1", "2.0.0-a", "2.0.0-a-b", "10.0.0"]
        for number in sorted(order):
            added(registry, "m", number, ready=False)
        assert numbers(registry) == order

    def test_a_second_registration_of_a_run_gives_the_same_version(self, registry: Registry) -> None:
        first = registry.register("m", facts(), "minor", who=WHO)
        again = registry.register("m", facts(), "major", who=WHO)
        assert (first.is_new, again.is_new) == (True, False)
        assert again.version == first.version
        assert registry.register("m", facts(), first.version.number, who=WHO).version == first.version
        assert numbers(registry) == ["0.1.0"]
        assert len(registry.audit()) == 1

    def test_a_run_is_registered_under_another_name_too(self, registry: Registry) -> None:
        assert registry.register("a", facts(), "minor", who=WHO).is_new
        assert registry.register("b", facts(), "minor", who=WHO).is_new

    def test_a_run_has_one_number(self, registry: Registry) -> None:
        registry.register("m", facts(), "minor", who=WHO)
        with pytest.raises(InputError, match=r"run-1: is registered as m@0\.1\.0; a run has one version"):
            registry.register("m", facts(), Version(2, 0, 0), who=WHO)

    def test_a_run_has_one_checkpoint(self, registry: Registry) -> None:
        registry.register("m", facts(), "minor", who=WHO)
        lineage = msgspec.structs.replace(facts().lineage, checkpoint="step-00000030.a1")
        with pytest.raises(InputError, match=r"m@0\.1\.0 with step-00000020\.a1, not step-00000030\.a1"):
            registry.register("m", facts(lineage=lineage), "minor", who=WHO)

    def test_another_run_of_the_same_id_is_refused(self, registry: Registry) -> None:
        registry.register("m", facts(), "minor", who=WHO)
        with pytest.raises(InputError, match="its evidence is not that of m@0"):
            registry.register("m", facts(evidence_sha256="8" * 64), "minor", who=WHO)

    def test_a_number_that_is_used_is_refused_and_nothing_is_stored(self, registry: Registry) -> None:
        added(registry, "m", "1.0.0")
        before = registry.audit()
        with pytest.raises(InputError, match=r"m@1\.0\.0: is ready; a number is never used twice"):
            registry.register("m", facts("other"), Version(1, 0, 0), who=WHO)
        assert numbers(registry) == ["1.0.0"]
        assert registry.audit() == before

    def test_a_number_is_not_used_again_after_deletion(self, registry: Registry) -> None:
        for number in ("1.0.0", "1.1.0"):
            added(registry, "m", number)
            registry.delete("m", Version.parse(number), who=WHO)
        assert numbers(registry) == []
        with pytest.raises(InputError, match=r"m@1\.1\.0: was deleted; a number is never used twice"):
            registry.register("m", facts("other"), Version(1, 1, 0), who=WHO)
        assert registry.register("m", facts("other"), "patch", who=WHO).version.number == Version(1, 1, 1)

    def test_a_deleted_versions_run_is_registered_anew_under_a_new_number(self, registry: Registry) -> None:
        first = registry.register("m", facts(), "minor", who=WHO).version
        registry.delete("m", first.number, who=WHO)
        again = registry.register("m", facts(), "minor", who=WHO)
        assert again.is_new
        assert again.version.number == Version(0, 2, 0)

    def test_a_deleted_version_is_shown_when_it_is_asked_for(self, registry: Registry) -> None:
        number = added(registry, "m", "1.0.0")
        deleted = registry.delete("m", number, who=WHO)
        assert (deleted.status, registry.get("m", number)) == ("deleted", deleted)
        assert deleted.deleted is not None
        assert [one.status for one in registry.ls(deleted=True)] == ["deleted"]
        assert registry.delete("m", number, who=WHO) == deleted
        with pytest.raises(InputError, match="was deleted at"):
            registry.complete("m", number, "file:///a", who=WHO)

    def test_a_version_is_completed_once(self, registry: Registry) -> None:
        number = added(registry, "m", "1.0.0", ready=False)
        ready = registry.complete("m", number, "file:///a", who=WHO)
        assert (ready.status, ready.artifact_url) == ("ready", "file:///a")
        assert registry.complete("m", number, "file:///b", who=WHO) == ready

    def test_the_latest_is_the_greatest_release_that_is_ready_and_passes(self, registry: Registry) -> None:
        added(registry, "m", "1.9.0")
        added(registry, "m", "1.10.0")
        added(registry, "m", "1.11.0", passing=False)
        added(registry, "m", "1.12.0", ready=False)
        added(registry, "m", "2.0.0-rc.1")
        registry.delete("m", added(registry, "m", "1.13.0"), who=WHO)
        assert registry.latest("m").number == Version(1, 10, 0)
        assert references.find(registry, "m").number == Version(1, 10, 0)
        assert references.find(registry, "m@latest").number == Version(1, 10, 0)

    def test_the_latest_is_a_pre_release_only_where_there_is_no_release(self, registry: Registry) -> None:
        added(registry, "m", "1.0.0-rc.2")
        added(registry, "m", "1.0.0-rc.10")
        assert str(registry.latest("m").number) == "1.0.0-rc.10"
        added(registry, "m", "0.1.0")
        assert str(registry.latest("m").number) == "0.1.0"

    def test_what_does_not_pass_is_marked_for_ever(self, registry: Registry, url: str) -> None:
        number = added(registry, "m", "1.0.0", passing=False)
        registry.register("m", facts("run-of-1.0.0"), number, who=WHO)
        assert not registry.get("m", number).passing
        with pytest.raises(InputError, match="no version of it is ready and passes; newest versions: 1"):
            registry.latest("m")
        assert refused(url, "UPDATE versions SET passing = true")

    def test_an_alias_names_one_version_at_a_time(self, registry: Registry) -> None:
        one, two = added(registry, "m", "1.0.0"), added(registry, "m", "2.0.0")
        for number in (one, two):
            registry.alias("m", "champion", number, who=WHO)
            assert references.find(registry, "m@champion").number == number
        assert [one.aliases for one in registry.ls()] == [(), ["champion"]]
        registry.alias("m", "champion", None, who=WHO)
        with pytest.raises(InputError, match="has no alias 'champion'; it has none"):
            registry.named("m", "champion")
        with pytest.raises(InputError, match="has no alias 'champion'"):
            registry.alias("m", "champion", None, who=WHO)

    def test_an_alias_of_one_model_is_none_of_another(self, registry: Registry) -> None:
        for name in ("a", "b"):
            registry.alias(name, "champion", added(registry, name, "1.0.0"), who=WHO)
        registry.alias("a", "champion", None, who=WHO)
        assert registry.named("b", "champion").reference == "b@1.0.0"

    def test_a_version_that_an_alias_names_is_not_deleted(self, registry: Registry) -> None:
        number = added(registry, "m", "1.0.0")
        registry.alias("m", "champion", number, who=WHO)
        with pytest.raises(InputError, match=r"m@1\.0\.0: is champion; have the alias name another version"):
            registry.delete("m", number, who=WHO)
        assert registry.get("m", number).status == "ready"

    def test_an_alias_names_only_what_is_ready(self, registry: Registry) -> None:
        number = added(registry, "m", "1.0.0", ready=False)
        with pytest.raises(InputError, match="is pending; an alias names a version that is ready"):
            registry.alias("m", "champion", number, who=WHO)
        assert list(registry.ls()[0].aliases) == []

    def test_what_is_no_alias_is_refused(self, registry: Registry) -> None:
        number = added(registry, "m", "1.0.0")
        for alias in (*HOSTILE_NAMES, "latest", "1", "1.0.0"):
            with pytest.raises(InputError, match=r"is no alias|cannot be set"):
                registry.alias("m", alias, number, who=WHO)
        assert list(registry.ls()[0].aliases) == []

    def test_tags_and_notes_are_set_changed_and_removed(self, registry: Registry) -> None:
        number = added(registry, "m", "1.0.0")
        registry.tag("m", number, "domain", "code", who=WHO)
        registry.tag("m", number, "domain", "python: 'x' %s", who=WHO)
        registry.tag("m", number, "other", "", who=WHO)
        registry.note("m", number, "# Notes\n\nüber `x`\n", who=WHO)
        version = registry.get("m", number)
        assert version.tags == {"domain": "python: 'x' %s", "other": ""}
        assert version.notes == "# Notes\n\nüber `x`\n"
        registry.tag("m", number, "domain", None, who=WHO)
        assert registry.get("m", number).tags == {"other": ""}

    def test_a_text_that_a_database_does_not_take_is_refused(self, registry: Registry) -> None:
        number = added(registry, "m", "1.0.0")
        for value in ("a\0b", "\ud800", "x" * (1 << 20) + "x"):
            with pytest.raises(InputError, match="a text of the registry"):
                registry.note("m", number, value, who=WHO)
            with pytest.raises(InputError, match="a text of the registry"):
                registry.tag("m", number, "key", value, who=WHO)

    def test_a_name_that_is_none_is_refused_by_every_verb(self, registry: Registry) -> None:
        number = Version(1, 0, 0)
        verbs: list[Callable[[str], object]] = [
            lambda name: registry.register(name, facts(), "minor", who=WHO),
            lambda name: registry.complete(name, number, "file:///a", who=WHO),
            lambda name: registry.delete(name, number, who=WHO),
            lambda name: registry.get(name, number),
            lambda name: registry.named(name, "champion"),
            lambda name: registry.alias(name, "champion", number, who=WHO),
            lambda name: registry.tag(name, number, "key", "value", who=WHO),
            lambda name: registry.note(name, number, "text", who=WHO),
            *(registry.ls, registry.latest, registry.audit),
        ]
        for name, verb in itertools.product(HOSTILE_NAMES, verbs):
            with pytest.raises(InputError, match="is no name of a model"):
                verb(name)
        assert not registry.ls()
        assert not registry.audit()

    def test_a_reference_to_no_version_is_refused(self, registry: Registry) -> None:
        added(registry, "m", "1.0.0", passing=False)
        for reference in (*(f"m@{number}" for number in HOSTILE_VERSIONS), *HOSTILE_NAMES, "@1.0.0", "m@1.0.0@1.0.0"):
            with pytest.raises(InputError):
                references.find(registry, reference)

    def test_an_error_names_what_there_is(self, registry: Registry) -> None:
        with pytest.raises(InputError, match="m: no version of it is ready and passes; newest models: none"):
            registry.latest("m")
        added(registry, "m", "1.0.0")
        with pytest.raises(InputError, match=r"m@1\.0\.1: is no version of the registry; newest versions: 1\.0\.0"):
            registry.get("m", Version(1, 0, 1))
        with pytest.raises(InputError, match="n: is no model of the registry; newest models: m"):
            registry.delete("n", Version(1, 0, 0), who=WHO)

    def test_every_change_leaves_its_line_in_the_audit(self, registry: Registry) -> None:
        number = added(registry, "m", "1.0.0")
        registry.alias("m", "champion", number, who="ben@desk")
        registry.alias("m", "champion", None, who="ben@desk")
        registry.tag("m", number, "key", "value", who=WHO)
        registry.note("m", number, "text", who=WHO)
        registry.delete("m", number, who=WHO)
        added(registry, "n", "1.0.0", ready=False)
        changes = [(one.who, one.action, one.subject) for one in registry.audit("m")]
        assert changes == [
            (WHO, "registered", "m@1.0.0"),
            (WHO, "completed", "m@1.0.0"),
            ("ben@desk", "alias", "m@1.0.0"),
            ("ben@desk", "alias", "m"),
            (WHO, "tag", "m@1.0.0"),
            (WHO, "note", "m@1.0.0"),
            (WHO, "deleted", "m@1.0.0"),
        ]
        assert registry.audit()[3].detail == {"alias": "champion", "was": "1.0.0"}
        assert len(registry.audit()) == 8

    def test_the_database_itself_keeps_what_never_changes(self, registry: Registry, url: str) -> None:
        added(registry, "m", "1.0.0")
        before = registry.get("m", Version(1, 0, 0)), registry.audit()
        for statement in CHANGES_BY_HAND:
            assert refused(url, statement), statement
        assert (registry.get("m", Version(1, 0, 0)), registry.audit()) == before

    def test_a_registry_that_is_opened_again_holds_the_same(self, registry: Registry, url: str) -> None:
        added(registry, "m", "1.0.0")
        again = open_registry(url)
        assert again.get("m", Version(1, 0, 0)) == registry.get("m", Version(1, 0, 0))
        again.close()

    def test_fifty_processes_register_at_once_and_get_fifty_versions(self, registry: Registry, url: str) -> None:
        given = at_once(register_at_once, [(url, f"run-{number}") for number in range(PROCESSES)])
        assert sorted(given) == sorted(numbers(registry)) == sorted(f"0.{number + 1}.0" for number in range(PROCESSES))

    def test_ten_processes_register_one_run_at_once_and_get_one_version(self, registry: Registry, url: str) -> None:
        assert at_once(register_at_once, [(url, "run-1")] * 10) == ["0.1.0"] * 10
        assert numbers(registry) == ["0.1.0"]
        assert len(registry.audit()) == 1

    def test_ten_processes_open_an_empty_database_at_once(self, url: str) -> None:
        assert at_once(open_at_once, [(url,)] * 10) == [0] * 10

    def test_a_process_killed_while_it_registers_leaves_whole_versions(self, registry: Registry, url: str) -> None:
        for _ in range(3):
            started = SERVER.Event()
            process = SERVER.Process(target=register_until_killed, args=(url, started), daemon=True)
            process.start()
            assert started.wait(DEADLINE_SECONDS)
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            process.join(DEADLINE_SECONDS)
            listed = registry.ls("m")
            assert [registry.get("m", one.number).facts.files for one in listed] == [facts().files] * len(listed)
            assert [change.subject for change in registry.audit("m")] == [one.reference for one in listed]
        registry.register("m", facts("last"), "patch", who=WHO)


def refused(url: str, statement: str) -> bool:
    """Tell whether the database refuses a statement that somebody gives it by hand."""
    engine = engine_of(url)
    try:
        with engine.begin() as connection:
            connection.execute(text(statement))
    except DBAPIError as error:
        return "keeps this row" in str(error)
    finally:
        engine.dispose()
    return False


def sqlite_url(folder: Path) -> str:
    return f"sqlite:///{folder / 'home' / 'registry.db'}"
