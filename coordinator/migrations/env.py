"""What Alembic runs: the migrations, on the connection and in the transaction of whoever called."""

from alembic import context

from coordinator import membership_tables, tables

context.configure(
    connection=context.config.attributes["connection"], target_metadata=[tables.metadata, membership_tables.metadata]
)
with context.begin_transaction():
    context.run_migrations()
