"""Models, versions, their files, aliases, tags, and the audit."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

TABLES = ("models", "versions", "files", "aliases", "tags", "audit")


def upgrade() -> None:
    text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    key = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.create_table(
        "models",
        sa.Column("id", key, primary_key=True),
        sa.Column("name", text, nullable=False, unique=True),
        sa.Column("created", sa.Text, nullable=False),
    )
    op.create_table(
        "versions",
        sa.Column("id", key, primary_key=True),
        sa.Column("model_id", key, sa.ForeignKey("models.id"), nullable=False),
        *(sa.Column(name, sa.Integer, nullable=False) for name in ("major", "minor", "patch")),
        *(sa.Column(name, text, nullable=False) for name in ("pre", "pre_order")),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("passing", sa.Boolean, nullable=False),
        sa.Column("created", sa.Text, nullable=False),
        *(sa.Column(name, sa.Text) for name in ("completed", "deleted")),
        sa.Column("run", sa.Text, nullable=False),
        sa.Column("artifact_url", sa.Text),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("metrics", "sha256", "evidence_sha256")),
        *(sa.Column(f"contract_{name}", sa.Text) for name in ("id", "version", "sha256")),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("hyperparameters", "verdicts", "lineage", "notes")),
    )
    of_number = ["model_id", "major", "minor", "patch"]
    op.create_index("a_number_is_used_once", "versions", [*of_number, "pre"], unique=True)
    op.create_index("versions_in_order", "versions", [*of_number, "pre_order"])
    there = sa.text("status <> 'deleted'")
    op.create_index(
        *("a_run_is_one_version", "versions", ["model_id", "run"]),
        unique=True,
        sqlite_where=there,
        postgresql_where=there,
    )
    op.create_table(
        "files",
        sa.Column("version_id", key, sa.ForeignKey("versions.id"), primary_key=True),
        sa.Column("name", text, primary_key=True),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("sha256", sa.Text, nullable=False),
    )
    op.create_table(
        "aliases",
        sa.Column("model_id", key, sa.ForeignKey("models.id"), primary_key=True),
        sa.Column("name", text, primary_key=True),
        sa.Column("version_id", key, sa.ForeignKey("versions.id"), nullable=False),
    )
    op.create_index("ix_aliases_version_id", "aliases", ["version_id"])
    op.create_table(
        "tags",
        sa.Column("version_id", key, sa.ForeignKey("versions.id"), primary_key=True),
        sa.Column("key", text, primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )
    op.create_table(
        "audit",
        sa.Column("id", key, primary_key=True),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("time", "who", "action")),
        sa.Column("model", text, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("subject", "detail")),
    )
    op.create_index("ix_audit_model", "audit", ["model"])


def downgrade() -> None:
    for table in reversed(TABLES):
        op.drop_table(table)
