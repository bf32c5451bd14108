"""A database brought to the shape that this program knows; never the other way.

Each change of shape is one file in a folder of Alembic's, `versions/v<number>.py`, run in one transaction. Alembic is
loaded only where there is something to change. A database of a newer program is refused: going back is what backups
are for.
"""

from pathlib import Path
from typing import Final

from sqlalchemy import Connection, Engine, column, inspect, select, table
from sqlalchemy.exc import DBAPIError

from federation.edge.database import disk_full, is_disk_full, read
from federation.errors import ConfigurationWrong

_VERSIONS: Final = table("alembic_version", column("version_num"))


def bring_up(engine: Engine, folder: Path, *, head: str) -> None:
    """Give the database behind `engine` the shape `head`.

    Args:
        engine: The database.
        folder: Alembic's `env.py` and `versions/`.
        head: The newest of the versions.

    Raises:
        ConfigurationWrong: The database belongs to a newer program, or its disk is full; it is unchanged.
    """
    found = _version(engine)
    if found == head:
        return
    if found is not None and not (folder / "versions" / f"v{found}.py").exists():
        raise ConfigurationWrong(
            "CFD-J14",
            f"the database {engine.url.render_as_string()} has shape {found}, this program knows {head}",
            hint="run the newer program, or restore a backup that was made with this one",
        )
    try:
        with engine.connect() as connection, connection.begin():
            run(connection, folder, head)
    except DBAPIError as problem:
        if is_disk_full(problem):
            raise disk_full(engine) from problem
        raise


def run(connection: Connection, folder: Path, version: str) -> None:
    """Run the migrations of `folder` up to `version`, within the transaction of `connection`."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, version)


def _version(engine: Engine) -> str | None:
    with read(engine) as connection:
        if not inspect(connection).has_table("alembic_version"):
            return None
        version: str | None = connection.scalar(select(_VERSIONS.c.version_num))
        return version
