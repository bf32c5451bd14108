"""The site's database `site.db`, brought to the shape that this program knows; see `federation.edge.migrations`.

Both the daemon's tables and those of the registry of data sets live in it.
"""

from pathlib import Path
from typing import Final

from sqlalchemy import Engine

from federation.edge import migrations

HEAD: Final = "0002"
"""The newest file in `versions/`."""


def bring_up(engine: Engine) -> None:
    """Give the database behind `engine` all tables of `HEAD`.

    Raises:
        ConfigurationWrong: The database belongs to a newer program; it is unchanged.
    """
    migrations.bring_up(engine, Path(__file__).parent, head=HEAD)
