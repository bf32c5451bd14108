"""The coordinator's database, brought to the shape that this program knows; see `federation.edge.migrations`."""

from pathlib import Path
from typing import Final

from sqlalchemy import Engine

from federation.edge import migrations

HEAD: Final = "0004"
"""The newest file in `versions/`."""


def bring_up(engine: Engine) -> None:
    """Give the database behind `engine` all tables of `HEAD`.

    Raises:
        ConfigurationWrong: The database belongs to a newer program; it is unchanged.
    """
    migrations.bring_up(engine, Path(__file__).parent, head=HEAD)
