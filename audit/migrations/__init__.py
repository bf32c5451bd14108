"""Schema changes of a log's database, run at opening; a fresh database begins at the newest."""

from pathlib import Path

from sqlalchemy import Connection


def upgrade(connection: Connection) -> None:
    """Bring the schema behind `connection` to the newest revision, in one transaction."""
    from alembic import command
    from alembic.config import Config

    configuration = Config()
    configuration.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    configuration.set_main_option("path_separator", "os")
    configuration.attributes["connection"] = connection
    connection.exec_driver_sql("BEGIN")
    command.upgrade(configuration, "head")
    connection.exec_driver_sql("COMMIT")
