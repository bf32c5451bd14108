"""Whether each site's link stands, since when, and its last hello, on disk."""

from sqlalchemy import Connection, insert, select, update

from coordinator import tables
from coordinator.records import PresenceRecord
from coordinator.transactions import Transactions
from federation.messages import SiteId


class PresenceStore:
    """The presence of the sites of one database."""

    def __init__(self, database: Transactions) -> None:
        self._database = database

    def save_hello(self, site: SiteId, hello: bytes) -> None:
        """Keep the body of a site's hello; whether its link stands is told by `save`."""
        self._save(site, None, hello)

    def save(self, site: SiteId, *, connected: bool) -> None:
        """Keep that a site's link stands or broke just now."""
        self._save(site, connected, None)

    def _save(self, site: SiteId, connected: bool | None, hello: bytes | None) -> None:
        def work(connection: Connection) -> None:
            now = self._database.now_us()
            columns = tables.presence.c
            known = connection.execute(select(tables.presence).where(columns.site == site)).first()
            if known is None:
                values = {"connected": bool(connected), "since_us": now, "seen_us": now, "hello": hello}
                connection.execute(insert(tables.presence).values(site=site, **values))
                return
            stands = known.connected if connected is None else connected
            since = now if known.connected != stands else known.since_us
            values = {"connected": stands, "since_us": since, "seen_us": now, "hello": hello or known.hello}
            connection.execute(update(tables.presence).where(columns.site == site).values(values))

        self._database.once(work)

    def all(self) -> dict[SiteId, PresenceRecord]:
        """Return what is known of every site's link."""
        with self._database.read() as connection:
            return {
                SiteId(row.site): PresenceRecord(SiteId(row.site), row.connected, row.since_us, row.seen_us, row.hello)
                for row in connection.execute(select(tables.presence))
            }

    def everyone_is_lost(self) -> None:
        """Keep at the start of the service that no link stands yet."""

        def work(connection: Connection) -> None:
            connection.execute(
                update(tables.presence)
                .where(tables.presence.c.connected.is_(True))
                .values(connected=False, since_us=self._database.now_us())
            )

        self._database.once(work)
