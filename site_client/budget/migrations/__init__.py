"""Schema changes of the ledger's database, run at opening."""

from pathlib import Path

from sqlalchemy import Connection

from federation.edge import migrations


def upgrade(connection: Connection) -> None:
    """Bring the schema behind `connection` to the newest revision, within its transaction."""
    migrations.run(connection, Path(__file__).parent, "head")
