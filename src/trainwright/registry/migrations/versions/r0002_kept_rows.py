"""The database itself refuses to change what is kept for ever: the audit, the facts of a version, its files."""

from alembic import op

revision = "0002"
down_revision = "0001"

FACTS = (
    *("model_id", "major", "minor", "patch", "pre", "pre_order", "passing", "created", "run", "sha256"),
    *("evidence_sha256", "contract_id", "contract_version", "contract_sha256"),
    *("metrics", "hyperparameters", "verdicts", "lineage"),
)
KEPT = {  # name of the trigger → table, and the change that it refuses
    "audit_is_not_changed": ("audit", "UPDATE"),
    "audit_is_not_removed": ("audit", "DELETE"),
    "versions_are_not_removed": ("versions", "DELETE"),
    "facts_are_not_changed": ("versions", f"UPDATE OF {', '.join(FACTS)}"),
    "files_are_not_changed": ("files", "UPDATE"),
    "files_are_not_removed": ("files", "DELETE"),
}
EMPTIED = {"audit_is_not_emptied": "audit", "versions_are_not_emptied": "versions", "files_are_not_emptied": "files"}
TOLD = "the registry keeps this row as it is"


def upgrade() -> None:
    postgresql = op.get_bind().dialect.name == "postgresql"
    if postgresql:
        op.execute(
            "CREATE FUNCTION registry_keeps() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE EXCEPTION '{TOLD}'; END $$"
        )
    body = "EXECUTE FUNCTION registry_keeps()" if postgresql else f"BEGIN SELECT RAISE(ABORT, '{TOLD}'); END"
    for name, (table, change) in KEPT.items():
        op.execute(f"CREATE TRIGGER {name} BEFORE {change} ON {table} FOR EACH ROW {body}")
    for name, table in EMPTIED.items() if postgresql else ():  # SQLite has no TRUNCATE
        op.execute(f"CREATE TRIGGER {name} BEFORE TRUNCATE ON {table} FOR EACH STATEMENT {body}")


def downgrade() -> None:
    postgresql = op.get_bind().dialect.name == "postgresql"
    for name, (table, _) in KEPT.items():
        op.execute(f"DROP TRIGGER {name}{f' ON {table}' if postgresql else ''}")
    for name, table in EMPTIED.items() if postgresql else ():
        op.execute(f"DROP TRIGGER {name} ON {table}")
    if postgresql:
        op.execute("DROP FUNCTION registry_keeps()")
