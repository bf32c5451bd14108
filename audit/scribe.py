"""Gives drafts their place in a log, and the writer's signature: what a batch makes of the log, not yet on the disk.

Time never decreases, whatever the clock says; where it moved, an entry of the scribe's own says so first. On a copy of
the state: whoever committed the batch adopts it.
"""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from audit import entry, events, merkle, note
from audit.canonical import Event
from audit.clock import Clock, microseconds
from audit.errors import AuditError
from audit.frame import TRAIL_ACTIONS
from audit.history import History
from audit.names import COORDINATOR, Origin
from audit.receipt import Receipt
from audit.storage import Batch
from audit.stored import Head, WriterRow
from audit.tiles import Edge, Growth

CLOCK_JUMP_US: Final = 2_000_000


@dataclass(slots=True)
class Pending:
    """A draft on its way."""

    body: Event
    digest: str
    size_bytes: int
    done: "Future[Receipt]" = field(default_factory=Future)


class _Signed(NamedTuple):
    """An entry that has its place, and isn't known to be on the disk."""

    leaf: bytes
    leaf_hash: bytes
    event: Event


@dataclass(slots=True)
class Written:
    """What a batch makes of the log, before it is known to be on the disk."""

    history: History
    growth: Growth
    running: bool
    entries: list[_Signed]
    clock: tuple[int, int]
    batch: Batch


class Scribe:
    """Writes the entries of one log for one process.

    Args:
        origin: The log.
        writer: Signs entries.
        boot: The id of this process.
        actor: Who records that the clock moved.
        clock: Wall and monotonic time.
        new_id: Gives ids for the scribe's own entries.
    """

    def __init__(
        self,
        origin: str,
        writer: note.Signer,
        *,
        boot: str,
        actor: events.Actor,
        clock: Clock,
        new_id: Callable[[], str],
    ) -> None:
        self._origin = origin
        self._writer = writer
        self._boot = boot
        self._actor = actor
        self._clock = clock
        self._new_id = new_id
        party = Origin.parse(origin).party
        self._site: Final[Event] = {} if party == COORDINATOR else {"site": party}

    def write(
        self,
        fresh: list[Pending],
        history: History,
        edge: Edge,
        *,
        running: bool,
        last_clock: tuple[int, int] | None,
    ) -> tuple[list[Pending], Written]:
        """Return the drafts that become entries, and what they make of the log; a bad one is answered alone.

        Args:
            fresh: Drafts, in order.
            history: The log as it is.
            edge: Its tree.
            running: Whether it says that a process runs.
            last_clock: Wall and monotonic microseconds of the batch before, in this process.
        """
        wall_us = microseconds(self._clock.now())
        mono_us = int(self._clock.monotonic_s() * 1_000_000)
        before = history
        entries: list[_Signed] = []
        assigned: list[Pending] = []
        items: list[Event | Pending] = [*self._clock_jump(before, last_clock, wall_us, mono_us), *fresh]
        for item in items:
            body = item.body if isinstance(item, Pending) else item
            try:
                event = self._committed(body, history, wall_us, mono_us)
                leaf = entry.write_leaf(self._origin, event, self._writer)
                signed = _Signed(leaf, merkle.leaf_hash(leaf), event)
                history = history.after(event, signed.leaf_hash)
            except AuditError as error:
                if isinstance(item, Pending):
                    item.done.set_exception(error)
                continue
            entries.append(signed)
            running = {"log.booted": True, "log.closed": False}.get(event["action"], running)
            if isinstance(item, Pending):
                assigned.append(item)
        growth = edge.grow([signed.leaf_hash for signed in entries])
        batch = self._batch(before, history, growth, entries, running=running)
        return assigned, Written(history, growth, running, entries, (wall_us, mono_us), batch)

    def _batch(
        self, before: History, history: History, growth: Growth, signed: list[_Signed], *, running: bool
    ) -> Batch:
        first = before.size
        entries = [
            (first + position, one.leaf, one.leaf_hash, bytes.fromhex(one.event["id"]))
            for position, one in enumerate(signed)
        ]
        key, tail = self._writer.key, history.tail(self._writer.key.name)
        last = entries[-1] if entries else (0, b"", b"", b"")
        return Batch(
            old_size=first,
            head=Head(history.size, growth.edge.root(), history.t_us, running),
            entries=entries,
            tiles=[(tile.level, tile.n, tile.hashes) for tile in growth.tiles if tile.level or tile.full],
            writers=[WriterRow(key.name, key.id, tail.next_seq, last[2], last[0])],
            trail=[
                (first + position, one.leaf)
                for position, one in enumerate(signed)
                if one.event["action"] in TRAIL_ACTIONS
            ],
        )

    def _committed(self, body: Event, history: History, wall_us: int, mono_us: int) -> Event:
        tail = history.tail(self._writer.key.name)
        t_us = max(wall_us, history.t_us)
        return entry.committed_event(
            body,
            t_us=t_us,
            wall_us=wall_us if wall_us != t_us else None,
            mono_us=mono_us,
            boot=self._boot,
            writer=self._writer.key.name,
            seq=tail.next_seq,
            prev=tail.last or None,
        )

    def _clock_jump(
        self, history: History, last_clock: tuple[int, int] | None, wall_us: int, mono_us: int
    ) -> list[Event]:
        """Return a `clock.jumped` draft if the wall clock moved against the monotonic one, or fell behind the log."""
        if last_clock is None:
            expected_us = history.t_us
            jumped = wall_us < expected_us
        else:
            expected_us = last_clock[0] + mono_us - last_clock[1]
            jumped = abs(wall_us - expected_us) > CLOCK_JUMP_US
        if not jumped:
            return []
        draft = events.ClockJumped(
            id=self._new_id(), decision="allowed", actor=self._actor, from_us=expected_us, to_us=wall_us
        )
        return [{**draft.body(), **self._site}]
