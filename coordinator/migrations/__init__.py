"""The coordinator's database, brought to the shape that this program knows; never the other way.

Each change of shape is one file in `versions/`. `bring_up` runs those that a database hasn't seen, in one
transaction each, and does nothing, not even load Alembic, where there are none. A database of a newer program is
refused: going back is what backups are for.
"""

from pathlib import Path
from typing import Final

from sqlalchemy import Engine, MetaData, Table, inspect, select

from federation.edge.database import read
from federation.errors import ConfigurationWrong

HEAD: Final = "0002"
"""The newest file in `versions/`."""
_FOLDER: Final = Path(__file__).parent


def bring_up(engine: Engine) -> None:
    """Give the database behind `engine` all tables of `HEAD`.

    Raises:
        ConfigurationWrong: The database belongs to a newer program; it is unchanged.
    """
    found = _version(engine)
    if found == HEAD:
        return
    if found is not None and not (_FOLDER / "versions" / f"v{found}.py").exists():
        raise ConfigurationWrong(
            "CFD-J14",
            f"the database has shape {found}, this program knows {HEAD}",
            hint="run the newer program, or restore a backup that was made with this one",
        )
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    with engine.connect() as connection, connection.begin():
        config.attributes["connection"] = connection
        command.upgrade(config, HEAD)


def _version(engine: Engine) -> str | None:
    with read(engine) as connection:
        if not inspect(connection).has_table("alembic_version"):
            return None
        table = Table("alembic_version", MetaData(), autoload_with=connection)
        version: str | None = connection.scalar(select(table.c.version_num))
        return version
