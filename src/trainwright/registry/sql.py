"""The registry in a SQL database, by SQLAlchemy Core: the same statements on SQLite and PostgreSQL.

Every change begins by locking what it is about: the row of the model on PostgreSQL, on SQLite the whole database. So
two that choose a number one after the other never choose the same.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, NoReturn, TypeAlias

import msgspec
from sqlalchemy import Connection, Engine, Row, Select, delete, desc, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from trainwright.errors import InputError
from trainwright.manifest import FileRecord
from trainwright.registry.base import (
    NOTES_BYTES,
    Change,
    ContractRecord,
    Facts,
    Lineage,
    Listed,
    ModelVersion,
    Registered,
    check_alias,
    check_file,
    check_name,
    check_tag,
)
from trainwright.registry.engines import reading, writing
from trainwright.registry.tables import SEMVER, aliases, audit, files, models, tags, versions
from trainwright.registry.versions import Bump, Version, first_after
from trainwright.timestamps import now

AnyRow: TypeAlias = Row[*tuple[Any, ...]]

INSERTS: Final[Mapping[str, Callable[..., Any]]] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}
NUMBER: Final = (versions.c.major, versions.c.minor, versions.c.patch, versions.c.pre)
LISTED: Final = (  # in the order in which `_listed` takes them
    *(versions.c.id, models.c.name, *NUMBER, versions.c.status, versions.c.passing, versions.c.created),
    *(versions.c.run, versions.c.metrics, versions.c.contract_id, versions.c.artifact_url),
)
IN_ORDER: Final = (models.c.name, *SEMVER)
FEW: Final = 5  # that an error names
_metrics: Final = msgspec.json.Decoder(dict[str, float | int | str | None])


class SqlRegistry:
    """See `base.Registry`. The database is of the newest revision."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def register(self, name: str, facts: Facts, chosen: Bump | Version, *, who: str) -> Registered:
        check_name(name)
        for file in facts.files:
            check_file(file)
        with writing(self._engine) as connection:
            model = _locked_model(connection, name)
            earlier = _of_run(connection, model, facts.lineage.run)
            if earlier is not None:
                return Registered(_same(earlier, facts, chosen), is_new=False)
            number = _unused(connection, model, name, chosen)
            version = _insert(connection, model, number, facts)
            _record(connection, who, "registered", name, number, run=facts.lineage.run, passing=facts.passing)
            return Registered(_whole(connection, versions.c.id == version), is_new=True)

    def complete(self, name: str, number: Version, artifact_url: str, *, who: str) -> ModelVersion:
        with writing(self._engine) as connection:
            version = _locked(connection, name, number)
            if version.status == "ready":
                return _whole(connection, versions.c.id == version.id)
            _refuse_deleted(version, name, number)
            _change(connection, version.id, status="ready", completed=now(), artifact_url=artifact_url)
            _record(connection, who, "completed", name, number, artifact_url=artifact_url)
            return _whole(connection, versions.c.id == version.id)

    def delete(self, name: str, number: Version, *, who: str) -> ModelVersion:
        with writing(self._engine) as connection:
            version = _locked(connection, name, number)
            if version.status != "deleted":
                _refuse_aliased(connection, version.id, name, number)
                _change(connection, version.id, status="deleted", deleted=now())
                _record(connection, who, "deleted", name, number, was=version.status)
            return _whole(connection, versions.c.id == version.id)

    def ls(self, name: str | None = None, *, deleted: bool = False) -> Sequence[Listed]:
        chosen = select(*LISTED).join(models).order_by(*IN_ORDER)
        if name is not None:
            chosen = chosen.where(models.c.name == check_name(name))
        if not deleted:
            chosen = chosen.where(versions.c.status != "deleted")
        with reading(self._engine) as connection:
            named = _aliases_by_version(connection)
            return [_listed(row, named) for row in connection.execute(chosen)]

    def get(self, name: str, number: Version) -> ModelVersion:
        with reading(self._engine) as connection:
            return _whole(connection, versions.c.id == _find(connection, name, number).id)

    def named(self, name: str, alias: str) -> ModelVersion:
        check_alias(alias)
        with reading(self._engine) as connection:
            of_model = select(aliases).join(models).where(models.c.name == check_name(name))
            version = connection.execute(of_model.where(aliases.c.name == alias)).one_or_none()
            if version is None:
                there = [row.name for row in connection.execute(of_model.order_by(aliases.c.name))]
                raise InputError(f"{name}: has no alias {alias!r}; it has {', '.join(there) or 'none'}")
            return _whole(connection, versions.c.id == version.version_id)

    def latest(self, name: str) -> ModelVersion:
        chosen = (
            _of_model(check_name(name))
            .where(versions.c.status == "ready", versions.c.passing)
            .order_by(desc(versions.c.pre == ""), *map(desc, SEMVER))
            .limit(1)
        )
        with reading(self._engine) as connection:
            version = connection.execute(chosen).one_or_none()
            if version is None:
                _refuse_missing(connection, name, f"{name}: no version of it is ready and passes")
            return _whole(connection, versions.c.id == version.id)

    def alias(self, name: str, alias: str, number: Version | None, *, who: str) -> None:
        check_alias(alias)
        with writing(self._engine) as connection:
            model = _locked_model(connection, name, is_made=False)
            here = (aliases.c.model_id == model) & (aliases.c.name == alias)
            was = connection.execute(select(aliases.c.version_id).where(here)).scalar_one_or_none()
            before = None if was is None else str(_number(_row(connection, versions.c.id == was)))
            if number is None and was is None:
                raise InputError(f"{name}: has no alias {alias!r}")
            connection.execute(delete(aliases).where(here))
            if number is not None:
                version = _find(connection, name, number)
                if version.status != "ready":
                    raise InputError(f"{name}@{number}: is {version.status}; an alias names a version that is ready")
                connection.execute(insert(aliases).values(model_id=model, name=alias, version_id=version.id))
            _record(connection, who, "alias", name, number, alias=alias, was=before)

    def tag(self, name: str, number: Version, key: str, value: str | None, *, who: str) -> None:
        check_tag(key)
        with writing(self._engine) as connection:
            version = _locked(connection, name, number)
            here = (tags.c.version_id == version.id) & (tags.c.key == key)
            was = connection.execute(select(tags.c.value).where(here)).scalar_one_or_none()
            connection.execute(delete(tags).where(here))
            if value is not None:
                connection.execute(insert(tags).values(version_id=version.id, key=key, value=_text(value)))
            _record(connection, who, "tag", name, number, key=key, value=value, was=was)

    def note(self, name: str, number: Version, text: str, *, who: str) -> None:
        with writing(self._engine) as connection:
            version = _locked(connection, name, number)
            _change(connection, version.id, notes=_text(text))
            _record(connection, who, "note", name, number, was=version.notes)

    def audit(self, name: str | None = None) -> Sequence[Change]:
        chosen = select(audit).order_by(audit.c.id)
        if name is not None:
            chosen = chosen.where(audit.c.model == check_name(name))
        with reading(self._engine) as connection:
            return [_read_change(row) for row in connection.execute(chosen)]

    def close(self) -> None:
        self._engine.dispose()


# -- what is found ---------------------------------------------------------------------------------------------------


def _of_model(name: str) -> Select[*tuple[Any, ...]]:
    return select(versions).join(models).where(models.c.name == name)


def _locked_model(connection: Connection, name: str, *, is_made: bool = True) -> int:
    """Give the id of a model, whose row is locked until the transaction ends; it is made where it is not there."""
    if is_made:
        insertion = INSERTS[connection.dialect.name](models).values(name=name, created=now())
        connection.execute(insertion.on_conflict_do_nothing())
    found = select(models.c.id).where(models.c.name == check_name(name)).with_for_update()
    model: int | None = connection.execute(found).scalar_one_or_none()
    if model is None:
        _refuse_missing(connection, name, f"{name}: is no model of the registry")
    return model


def _locked(connection: Connection, name: str, number: Version) -> AnyRow:
    _locked_model(connection, name, is_made=False)
    return _find(connection, name, number)


def _find(connection: Connection, name: str, number: Version) -> AnyRow:
    here = [column == getattr(number, column.name) for column in NUMBER]
    version = connection.execute(_of_model(check_name(name)).where(*here)).one_or_none()
    if version is None:
        _refuse_missing(connection, name, f"{name}@{number}: is no version of the registry")
    return version


def _row(connection: Connection, which: Any) -> AnyRow:
    return connection.execute(select(versions).where(which)).one()


def _of_run(connection: Connection, model: int, run: str) -> ModelVersion | None:
    which = (versions.c.model_id == model) & (versions.c.run == run) & (versions.c.status != "deleted")
    found = connection.execute(select(versions.c.id).where(which)).scalar_one_or_none()
    return None if found is None else _whole(connection, versions.c.id == found)


def _same(earlier: ModelVersion, facts: Facts, chosen: Bump | Version) -> ModelVersion:
    """Give the version that the run has. Errors: InputError where it is not what is asked for now."""
    if earlier.facts.evidence_sha256 != facts.evidence_sha256:
        raise InputError(f"{facts.lineage.run}: its evidence is not that of {earlier.reference}, of a run of this id")
    if isinstance(chosen, Version) and chosen != earlier.number:
        raise InputError(f"{facts.lineage.run}: is registered as {earlier.reference}; a run has one version of a model")
    if earlier.facts.lineage.checkpoint != facts.lineage.checkpoint:
        raise InputError(
            f"{facts.lineage.run}: is registered as {earlier.reference} with {earlier.facts.lineage.checkpoint}, not "
            f"{facts.lineage.checkpoint}; a run has one version of a model, so register it under another name"
        )
    return earlier


def _unused(connection: Connection, model: int, name: str, chosen: Bump | Version) -> Version:
    of_model = select(*NUMBER, versions.c.status).where(versions.c.model_id == model)
    if not isinstance(chosen, Version):
        greatest = connection.execute(of_model.order_by(*map(desc, SEMVER)).limit(1)).one_or_none()
        return first_after(greatest and _number(greatest), chosen)
    here = [column == getattr(chosen, column.name) for column in NUMBER]
    used = connection.execute(of_model.where(*here)).one_or_none()
    if used is not None:
        state = "was deleted" if used.status == "deleted" else f"is {used.status}"
        raise InputError(f"{name}@{chosen}: {state}; a number is never used twice, so choose another, or a bump")
    return chosen


# -- what is written -------------------------------------------------------------------------------------------------


def _insert(connection: Connection, model: int, number: Version, facts: Facts) -> Any:
    contract = facts.contract
    values = {
        **{column.name: getattr(number, column.name) for column in (*NUMBER, versions.c.pre_order)},
        **{name: _json(getattr(facts, name)) for name in ("metrics", "hyperparameters", "verdicts", "lineage")},
        **({f"contract_{name}": getattr(contract, name) for name in contract.__struct_fields__} if contract else {}),
    }
    inserted = connection.execute(
        insert(versions).values(
            model_id=model,
            status="pending",
            passing=facts.passing,
            created=now(),
            run=facts.lineage.run,
            sha256=facts.sha256,
            evidence_sha256=facts.evidence_sha256,
            notes="",
            **values,
        )
    )
    version = inserted.inserted_primary_key[0] if inserted.inserted_primary_key else None
    rows = [
        {"version_id": version, "name": name, "size": record.size, "sha256": record.sha256}
        for name, record in facts.files.items()
    ]
    if rows:
        connection.execute(insert(files), rows)
    return version


def _change(connection: Connection, version: int, **values: Any) -> None:
    connection.execute(update(versions).where(versions.c.id == version).values(**values))


def _record(connection: Connection, who: str, action: str, name: str, number: Version | None, **detail: Any) -> None:
    subject = name if number is None else f"{name}@{number}"
    values = {"time": now(), "who": who, "action": action, "model": name, "subject": subject}
    connection.execute(insert(audit).values(**values, detail=_json(detail)))


# -- what is refused -------------------------------------------------------------------------------------------------


def _refuse_missing(connection: Connection, name: str, told: str) -> NoReturn:
    there = select(*NUMBER).join(models).where(models.c.name == name, versions.c.status != "deleted")
    numbers = [str(_number(row)) for row in connection.execute(there.order_by(*map(desc, SEMVER)).limit(FEW))]
    if numbers:
        raise InputError(f"{told}; newest versions: {', '.join(numbers)}")
    known = connection.execute(select(models.c.name).order_by(desc(models.c.id)).limit(FEW)).scalars()
    raise InputError(f"{told}; newest models: {', '.join(known) or 'none'}")


def _refuse_deleted(version: AnyRow, name: str, number: Version) -> None:
    if version.status == "deleted":
        raise InputError(f"{name}@{number}: was deleted at {version.deleted}")


def _refuse_aliased(connection: Connection, version: int, name: str, number: Version) -> None:
    chosen = select(aliases.c.name).where(aliases.c.version_id == version).order_by(aliases.c.name)
    names = list(connection.execute(chosen).scalars())
    if names:
        raise InputError(f"{name}@{number}: is {', '.join(names)}; have the alias name another version, or none, first")


# -- what is read ----------------------------------------------------------------------------------------------------


def _whole(connection: Connection, which: Any) -> ModelVersion:
    row = _row(connection, which)
    columns = connection.execute(select(*LISTED).join(models).where(which)).one()
    listed = _listed(columns, _aliases_by_version(connection, row.id))
    of_version = {
        table: connection.execute(select(table).where(table.c.version_id == row.id)) for table in (files, tags)
    }
    return ModelVersion(
        **msgspec.structs.asdict(listed),
        facts=_facts(row, {one.name: FileRecord(one.size, one.sha256) for one in of_version[files]}),
        tags={one.key: one.value for one in of_version[tags]},
        notes=row.notes,
        completed=row.completed,
        deleted=row.deleted,
    )


def _facts(row: AnyRow, records: Mapping[str, FileRecord]) -> Facts:
    contract = ContractRecord(row.contract_id, row.contract_version, row.contract_sha256) if row.contract_id else None
    return Facts(
        lineage=msgspec.json.decode(row.lineage, type=Lineage),
        hyperparameters=msgspec.json.decode(row.hyperparameters),
        metrics=_metrics.decode(row.metrics),
        files=dict(sorted(records.items())),
        contract=contract,
        verdicts=msgspec.json.decode(row.verdicts),
        evidence_sha256=row.evidence_sha256,
        passing=row.passing,
    )


def _listed(row: AnyRow, named: Mapping[int, Sequence[str]]) -> Listed:
    version, name, major, minor, patch, pre, status, passing, created, run, metrics, contract_id, artifact_url = row
    return Listed(
        name=name,
        number=Version(major, minor, patch, pre),
        status=status,
        passing=passing,
        created=created,
        run=run,
        metrics=_metrics.decode(metrics),
        contract_id=contract_id,
        aliases=named.get(version, ()),
        artifact_url=artifact_url,
    )


def _aliases_by_version(connection: Connection, version: int | None = None) -> dict[int, list[str]]:
    chosen = select(aliases.c.version_id, aliases.c.name).order_by(*aliases.c["version_id", "name"])
    rows = connection.execute(chosen if version is None else chosen.where(aliases.c.version_id == version))
    return {key: [row.name for row in group] for key, group in groupby(rows, key=lambda row: row.version_id)}


def _number(row: AnyRow) -> Version:
    return Version(row.major, row.minor, row.patch, row.pre)


def _read_change(row: AnyRow) -> Change:
    detail = msgspec.json.decode(row.detail)
    return Change(time=row.time, who=row.who, action=row.action, subject=row.subject, detail=detail)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _text(text: str) -> str:
    """Return a text that a database takes. Errors: InputError."""
    if (
        "\0" in text
        or len(text.encode(errors="replace")) > NOTES_BYTES
        or text.encode(errors="replace").decode() != text
    ):
        raise InputError(f"a text of the registry is UTF-8 without NUL, of at most {NOTES_BYTES} bytes")
    return text
