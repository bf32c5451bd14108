"""What Alembic runs: the migrations, on the connection and in the transaction of whoever called."""

from alembic import context

from audit import tables

context.configure(connection=context.config.attributes["connection"], target_metadata=tables.metadata)
context.run_migrations()
