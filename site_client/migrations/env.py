"""What Alembic runs: the migrations, on the connection and in the transaction of whoever called."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], target_metadata=None)
with context.begin_transaction():
    context.run_migrations()
