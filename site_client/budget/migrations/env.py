"""Alembic's entry: the connection is handed in by `upgrade`, never opened here."""

from alembic import context

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=None, version_table="ledger_schema")
context.run_migrations()
