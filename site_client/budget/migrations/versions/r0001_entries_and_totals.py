"""Entries that can only be appended, and the totals that must equal their fold."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_SQLITE_APPEND_ONLY = """
CREATE TRIGGER ledger_entries_no_{verb} BEFORE {verb} ON ledger_entries
BEGIN SELECT RAISE(ABORT, 'ledger entries are append-only'); END
"""
_POSTGRESQL_APPEND_ONLY = (
    """
    CREATE FUNCTION ledger_entries_refuse() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'ledger entries are append-only'; END $$
    """,
    """
    CREATE TRIGGER ledger_entries_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON ledger_entries
    FOR EACH STATEMENT EXECUTE FUNCTION ledger_entries_refuse()
    """,
)


def upgrade() -> None:
    """Make the two tables, and the triggers that refuse to change an entry."""
    op.create_table(
        "ledger_entries",
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("text", sa.Text, nullable=False),
    )
    op.create_table(
        "ledger_totals",
        sa.Column("atom", sa.String(128), primary_key=True),
        sa.Column("policy", sa.String(128), primary_key=True),
        sa.Column("charged", sa.Text, nullable=False),
        sa.Column("held", sa.Text, nullable=False),
    )
    if op.get_bind().dialect.name == "sqlite":
        for verb in ("UPDATE", "DELETE"):
            op.execute(_SQLITE_APPEND_ONLY.format(verb=verb))
    else:
        for statement in _POSTGRESQL_APPEND_ONLY:
            op.execute(statement)


def downgrade() -> None:
    """Refuse: entries are never given up."""
    raise NotImplementedError("the privacy ledger has no way back")
