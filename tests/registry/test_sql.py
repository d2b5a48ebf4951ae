"""The registry on a real SQLite file and a real PostgreSQL, and both against a plain model of what they should do."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from time import process_time

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from benchmarks.registry import fill
from tests.servers.postgres import NewUrl, new_postgres_url, postgres_server
from tests.suites.registry import WHO, RegistryTests, added, facts, refused, sqlite_url
from trainwright.errors import InputError
from trainwright.registry.base import Registry
from trainwright.registry.engines import engine_of, reading
from trainwright.registry.open import open_registry
from trainwright.registry.versions import BUMPS, Bump, Version

__all__ = ["new_postgres_url", "postgres_server"]

LS_SECONDS = 0.1
MANY = 10_000


class TestSqlite(RegistryTests):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return sqlite_url(tmp_path)

    def test_a_power_cut_takes_nothing_that_was_told(self, url: str, registry: Registry) -> None:
        with reading(engine_of(url)) as connection:
            pragmas = ("journal_mode", "synchronous", "foreign_keys")
            found = [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in pragmas]
        assert found == ["wal", 2, 1]

    def test_ten_thousand_versions_are_listed_in_under_100_ms_of_processor_time(
        self, url: str, registry: Registry
    ) -> None:
        fill(url, MANY)
        assert len(registry.ls()) == MANY
        assert min(map(seconds_of_ls, [registry] * 5)) < LS_SECONDS


class TestPostgresql(RegistryTests):
    @pytest.fixture
    def url(self, new_postgres_url: NewUrl) -> str:
        return new_postgres_url()

    def test_no_table_that_is_kept_is_emptied(self, url: str, registry: Registry) -> None:
        added(registry, "m", "1.0.0")
        for table in ("audit", "versions CASCADE", "files", "models CASCADE"):
            assert refused(url, f"TRUNCATE {table}")
        assert registry.get("m", Version(1, 0, 0)).facts == facts("run-of-1.0.0")


def seconds_of_ls(registry: Registry) -> float:
    before = process_time()
    registry.ls()
    return process_time() - before


# -- against a plain model -------------------------------------------------------------------------------------------


class AgainstPlainModel(RuleBasedStateMachine):
    """A dict of what the registry should hold, changed by the same verbs. Each example has names of its own."""

    registry: Registry
    examples = itertools.count()
    runs: Bundle[str] = Bundle("runs")

    def __init__(self) -> None:
        super().__init__()
        self.prefix = f"e{next(self.examples)}-"
        self.status: dict[tuple[str, Version], str] = {}
        self.by_run: dict[tuple[str, str], Version] = {}
        self.aliases: dict[tuple[str, str], Version] = {}
        self.lines = 0

    names = st.sampled_from(["a", "b"])
    numbers = st.builds(Version, *[st.integers(0, 11)] * 3, st.sampled_from(["", "rc.1", "rc.10", "rc.2", "a"]))

    @rule(target=runs, run=st.integers(0, 30))
    def a_run(self, run: int) -> str:
        return f"run-{run}"

    @rule(name=names, run=runs, bump=st.sampled_from(BUMPS))
    def register(self, name: str, run: str, bump: Bump) -> None:
        used = [number for model, number in self.status if model == name]
        expected = self.by_run.get((name, run)) or (max(used) if used else Version(0, 0, 0)).bumped(bump)
        registered = self.registry.register(self.prefix + name, facts(run), bump, who=WHO)
        assert registered.version.number == expected
        assert registered.is_new == ((name, run) not in self.by_run)
        self._registered(name, run, expected)

    @rule(name=names, run=runs, number=numbers)
    def register_as(self, name: str, run: str, number: Version) -> None:
        has = self.by_run.get((name, run))
        if has not in {None, number} or (has is None and (name, number) in self.status):
            with pytest.raises(InputError):
                self.registry.register(self.prefix + name, facts(run), number, who=WHO)
            return
        assert self.registry.register(self.prefix + name, facts(run), number, who=WHO).version.number == number
        self._registered(name, run, number)

    def _registered(self, name: str, run: str, number: Version) -> None:
        self.lines += (name, run) not in self.by_run
        self.by_run[name, run] = number
        self.status.setdefault((name, number), "pending")

    def _picked(self, data: st.DataObject) -> tuple[str, Version] | None:
        return data.draw(st.sampled_from(sorted(self.status))) if self.status else None

    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        if (picked := self._picked(data)) is None:
            return
        name, number = picked
        if self.status[picked] == "deleted":
            with pytest.raises(InputError, match="was deleted"):
                self.registry.complete(self.prefix + name, number, "file:///a", who=WHO)
            return
        self.registry.complete(self.prefix + name, number, "file:///a", who=WHO)
        self.lines += self.status[picked] == "pending"
        self.status[picked] = "ready"

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        if (picked := self._picked(data)) is None:
            return
        name, number = picked
        if any(model == name and named == number for (model, _), named in self.aliases.items()):
            with pytest.raises(InputError, match="have the alias name another"):
                self.registry.delete(self.prefix + name, number, who=WHO)
            return
        self.registry.delete(self.prefix + name, number, who=WHO)
        self.lines += self.status[picked] != "deleted"
        self.status[picked] = "deleted"
        self.by_run = {key: value for key, value in self.by_run.items() if (key[0], value) != picked}

    @rule(data=st.data(), alias=st.sampled_from(["champion", "next"]))
    def alias(self, data: st.DataObject, alias: str) -> None:
        if (picked := self._picked(data)) is None:
            return
        name, number = picked
        if self.status[picked] != "ready":
            with pytest.raises(InputError, match="a version that is ready"):
                self.registry.alias(self.prefix + name, alias, number, who=WHO)
            return
        self.registry.alias(self.prefix + name, alias, number, who=WHO)
        self.lines += 1
        self.aliases[name, alias] = number

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        for name in ("a", "b"):
            mine = sorted((number, status) for (model, number), status in self.status.items() if model == name)
            listed = self.registry.ls(self.prefix + name, deleted=True)
            assert [(one.number, one.status) for one in listed] == mine
            named = {alias: one.number for one in listed for alias in one.aliases}
            assert named == {alias: number for (model, alias), number in self.aliases.items() if model == name}
            ready = [number for number, status in mine if status == "ready"]
            expected = max([number for number in ready if not number.pre] or ready, default=None)
            if expected is not None:
                assert self.registry.latest(self.prefix + name).number == expected
        assert sum(len(self.registry.audit(self.prefix + name)) for name in ("a", "b")) == self.lines


@pytest.fixture(params=["sqlite", "postgresql"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Registry]:
    sqlite = request.param == "sqlite"
    registry = open_registry(sqlite_url(tmp_path) if sqlite else request.getfixturevalue("new_postgres_url")())
    yield registry
    registry.close()


def test_a_registry_does_what_a_plain_model_does(shared: Registry) -> None:
    class Machine(AgainstPlainModel):
        registry = shared

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=15,
            stateful_step_count=25,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
