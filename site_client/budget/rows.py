"""The ledger's two tables: entries, which are the truth, and the totals, which must be their fold."""

from collections.abc import Iterable, Mapping

import sqlalchemy as sa
from sqlalchemy import Connection

from privacy.accounting.entries import GENESIS, Entry, Head, Lease, read, read_all
from privacy.accounting.state import State, Total, fold
from privacy.errors import LedgerBroken

_METADATA = sa.MetaData()
ENTRIES = sa.Table(
    "ledger_entries",
    _METADATA,
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("hash", sa.String(64), nullable=False),
    sa.Column("kind", sa.String(32), nullable=False),
    sa.Column("text", sa.Text, nullable=False),
)
TOTALS = sa.Table(
    "ledger_totals",
    _METADATA,
    sa.Column("atom", sa.String(128), primary_key=True),
    sa.Column("policy", sa.String(128), primary_key=True),
    sa.Column("charged", sa.Text, nullable=False),
    sa.Column("held", sa.Text, nullable=False),
)


def load(connection: Connection) -> State:
    """Return the fold of all entries, once it equals the stored totals."""
    rows = connection.execute(sa.select(ENTRIES.c.text, ENTRIES.c.hash).order_by(ENTRIES.c.seq))
    state = fold(read_all((row.text, row.hash) for row in rows))
    stored = {
        (row.atom, row.policy): (row.charged, row.held) for row in connection.execute(sa.select(TOTALS)).fetchall()
    }
    if stored != {key: _as_text(total) for key, total in state.totals.items()}:
        raise LedgerBroken("the totals of the privacy ledger aren't the sum of its entries")
    return state


def catch_up(connection: Connection, state: State) -> State:
    """Return `state` with the entries that others have appended since.

    Raises:
        LedgerBroken: The entry that `state` ends with is no longer there.
    """
    rows = connection.execute(
        sa.select(ENTRIES.c.seq, ENTRIES.c.text, ENTRIES.c.hash)
        .where(ENTRIES.c.seq >= state.head.seq)
        .order_by(ENTRIES.c.seq)
    ).fetchall()
    if state.head.seq >= 0:
        if not rows or rows[0].seq != state.head.seq or rows[0].hash != state.head.hash:
            raise LedgerBroken(f"entry {state.head.seq} of the privacy ledger changed while it was in use")
        rows = rows[1:]
    return fold(read_all(((row.text, row.hash) for row in rows), state.head), state)


def append(connection: Connection, start: State, end: State, written: Iterable[Entry]) -> None:
    """Write the entries, and the totals that they changed."""
    for entry in written:
        connection.execute(
            sa.insert(ENTRIES).values(seq=entry.seq, hash=entry.hash, kind=entry.body.kind, text=entry.text)
        )
    for (atom, policy), total in _changed(start.totals, end.totals).items():
        charged, held = _as_text(total)
        here = (TOTALS.c.atom == atom) & (TOTALS.c.policy == policy)
        if (atom, policy) in start.totals:
            connection.execute(sa.update(TOTALS).where(here).values(charged=charged, held=held))
        else:
            connection.execute(sa.insert(TOTALS).values(atom=atom, policy=policy, charged=charged, held=held))


def _changed(
    before: Mapping[tuple[str, str], Total], after: Mapping[tuple[str, str], Total]
) -> dict[tuple[str, str], Total]:
    return {key: total for key, total in after.items() if before.get(key) != total}


def _as_text(total: Total) -> tuple[str, str]:
    return " ".join(map(str, total.charged)), " ".join(map(str, total.held))


def hash_at(connection: Connection, seq: int) -> str | None:
    """Return the hash of the entry at `seq`, or None if there is none."""
    found: str | None = connection.scalar(sa.select(ENTRIES.c.hash).where(ENTRIES.c.seq == seq))
    return found


def find_lease(connection: Connection, reservation: str, number: int) -> Entry:
    """Return the entry of a lease that is known to be there.

    Raises:
        LedgerBroken: It isn't.
    """
    query = sa.select(ENTRIES).where(ENTRIES.c.kind == "lease").order_by(ENTRIES.c.seq.desc())
    for row in connection.execute(query):
        before = hash_at(connection, row.seq - 1)
        entry = read(Head(row.seq - 1, before or GENESIS), row.text, row.hash)
        if isinstance(entry.body, Lease) and (entry.body.reservation, entry.body.number) == (reservation, number):
            return entry
    raise LedgerBroken(f"lease {number} of {reservation} isn't in the privacy ledger")
