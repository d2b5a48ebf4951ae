"""The tables of the registry, as SQLAlchemy Core knows them; they are made by the migrations.

Versions are columns of numbers, so that the database puts them in order; names and pre-releases are compared by their
characters, whatever the database's own order of letters is.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    text,
)
from sqlalchemy.types import TypeEngine

BY_CHARACTER: TypeEngine[str] = Text().with_variant(Text(collation="C"), "postgresql")
NUMBERED: TypeEngine[int] = BigInteger().with_variant(Integer, "sqlite")  # SQLite counts an INTEGER key by itself

metadata = MetaData()

models = Table(
    "models",
    metadata,
    Column("id", NUMBERED, primary_key=True),
    Column("name", BY_CHARACTER, nullable=False, unique=True),
    Column("created", Text, nullable=False),
)

versions = Table(
    "versions",
    metadata,
    Column("id", NUMBERED, primary_key=True),
    Column("model_id", ForeignKey("models.id"), nullable=False),
    Column("major", Integer, nullable=False),
    Column("minor", Integer, nullable=False),
    Column("patch", Integer, nullable=False),
    Column("pre", BY_CHARACTER, nullable=False),
    Column("pre_order", BY_CHARACTER, nullable=False),
    Column("status", Text, nullable=False),
    Column("passing", Boolean, nullable=False),
    Column("created", Text, nullable=False),
    Column("completed", Text),
    Column("deleted", Text),
    Column("run", Text, nullable=False),
    Column("artifact_url", Text),
    Column("metrics", Text, nullable=False),  # JSON
    Column("sha256", Text, nullable=False),
    Column("evidence_sha256", Text, nullable=False),
    Column("contract_id", Text),
    Column("contract_version", Text),
    Column("contract_sha256", Text),
    Column("hyperparameters", Text, nullable=False),  # JSON
    Column("verdicts", Text, nullable=False),  # JSON
    Column("lineage", Text, nullable=False),  # JSON
    Column("notes", Text, nullable=False),
)

OF_NUMBER = (versions.c.model_id, versions.c.major, versions.c.minor, versions.c.patch)
NOT_DELETED = text("status <> 'deleted'")

Index("a_number_is_used_once", *OF_NUMBER, versions.c.pre, unique=True)
Index("versions_in_order", *OF_NUMBER, versions.c.pre_order)
Index(
    *("a_run_is_one_version", versions.c.model_id, versions.c.run),
    unique=True,
    sqlite_where=NOT_DELETED,
    postgresql_where=NOT_DELETED,
)

files = Table(
    "files",
    metadata,
    Column("version_id", ForeignKey("versions.id"), primary_key=True),
    Column("name", BY_CHARACTER, primary_key=True),
    Column("size", BigInteger, nullable=False),
    Column("sha256", Text, nullable=False),
)

aliases = Table(
    "aliases",
    metadata,
    Column("model_id", ForeignKey("models.id"), primary_key=True),
    Column("name", BY_CHARACTER, primary_key=True),
    Column("version_id", ForeignKey("versions.id"), nullable=False, index=True),
)

tags = Table(
    "tags",
    metadata,
    Column("version_id", ForeignKey("versions.id"), primary_key=True),
    Column("key", BY_CHARACTER, primary_key=True),
    Column("value", Text, nullable=False),
)

audit = Table(
    "audit",
    metadata,
    Column("id", NUMBERED, primary_key=True),
    Column("time", Text, nullable=False),
    Column("who", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("model", BY_CHARACTER, nullable=False, index=True),
    Column("subject", Text, nullable=False),
    Column("detail", Text, nullable=False),  # JSON
)

SEMVER = (versions.c.major, versions.c.minor, versions.c.patch, versions.c.pre_order)
