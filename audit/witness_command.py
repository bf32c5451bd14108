"""`confide audit witness`: who has seen this log, which logs its home has seen, and a fork that somebody notes."""

import argparse
import os
import sys
from collections import Counter
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from audit import edge, reading
from audit.errors import LogUnreadable
from audit.events import WitnessAcknowledged, new_event_id
from audit.filters import FilterRefused
from audit.names import Origin
from audit.read_record import admit, reader, site_of, talk
from audit.reading import FoundLog
from audit.recording import record
from audit.trust_file import TrustFolder
from audit.visible import json_text, visible
from audit.witness_office import FORK, REFUSED, Evidence, acknowledged_in, events_of
from audit.witness_status import NOBODY, OwnStatus, SeenStatus, own_status, seen_status

STALE: Final = 1


def witness(given: argparse.Namespace, log: FoundLog) -> int:
    """Show the status, or acknowledge a fork; return the exit status."""
    return _acknowledge(given, log) if given.act == "acknowledge" else _status(given, log)


def _status(given: argparse.Namespace, log: FoundLog) -> int:
    admit(log, "witness")
    origin = reading.origin_of(log)
    if not origin or log.home is None:
        raise LogUnreadable(
            "this is no home, so nothing says who its witnesses are", hint="name a home, or a copy of one"
        )
    trust = TrustFolder(log.home / "trust")
    named = Origin.parse(origin)
    policies = {party: policy for party in trust.parties() if (policy := trust.policy(party)) is not None}
    with log.moment() as (snapshot, _):
        head = snapshot.head()
        first = events_of(snapshot, "log.opened")
        own = own_status(
            origin,
            0 if head is None else head.size,
            snapshot.checkpoints(),
            policies.get(named.party, NOBODY),
            now_s=int(edge.SystemClock().now().timestamp()),
            began_s=first[0]["t_us"] // 1_000_000 if first else 0,
            stale_after_s=given.stale_after,
        )
        pairs = [Evidence.parse(about, notes) for about, kind, notes in snapshot.evidence() if kind == FORK]
        known = {pair.origin: acknowledged_in(snapshot, pair.origin) for pair in pairs}
        seen = seen_status(
            (key.name for party, policy in policies.items() if party != named.party for key in policy.logs),
            {about: (size, data) for about, size, _, data in snapshot.witnessed()},
            own_key_name=f"{named.federation}/{named.party}/witness",
            refusals=Counter(event["log"] for event in events_of(snapshot, REFUSED)),
            forks=Counter(pair.origin for pair in pairs if pair.digest not in known[pair.origin]),
        )
    if given.format == "table":
        _print(own, seen)
    else:
        value = {"schema": "confide/audit-witness/v1", "own": asdict(own), "witnessed": [asdict(one) for one in seen]}
        print(json_text(value, indent=2 if given.format == "json" else None))
    return STALE if own.stale or any(one.forks for one in seen) else 0


def _print(own: OwnStatus, seen: tuple[SeenStatus, ...]) -> None:
    quorum = f"cosigned by {own.have}, needed are {own.needed}" if own.needed else "no other operator to witness it"
    lines = [
        ("log", f"{own.origin}, {own.size} entries"),
        ("cosigned", f"{own.cosigned_size} entries, {own.age_s} s ago" if own.cosigned_size else "not yet witnessed"),
        ("newest", f"{quorum}{', missing ' + ', '.join(own.missing) if own.missing and own.needed else ''}"),
    ]
    if own.stale:
        lines.append(("stale", "CFD-A28 the witnesses haven't been heard of for too long"))
    for one in seen:
        when = datetime.fromtimestamp(one.time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if one.time_s else "never"
        more = f", refused {one.refusals} times" if one.refusals else ""
        more += f", {one.forks} proofs of two histories (CFD-A08)" if one.forks else ""
        lines.append(("witnesses", f"{one.origin}, {one.size} entries, {when}{more}"))
    sys.stdout.writelines(f"{name:<11}{visible(text)}\n" for name, text in lines)


def _acknowledge(given: argparse.Namespace, log: FoundLog) -> int:
    """Record that a person took note of every proof against a log; what it held up goes on."""
    if not given.about:
        raise FilterRefused("acknowledge names the log", hint="as `confide audit witness status` prints it")
    if not log.live or log.audit_folder is None:
        raise LogUnreadable("a copy is only read", hint="run this on the machine whose home it is")
    admit(log, "acknowledge")
    with log.moment() as (snapshot, _):
        pairs = [Evidence.parse(about, notes) for about, kind, notes in snapshot.evidence() if kind == FORK]
        done = acknowledged_in(snapshot, given.about)
    open_pairs = sorted({pair.digest for pair in pairs if pair.origin == given.about} - done)
    if not open_pairs:
        raise LogUnreadable(f"nothing is held against {given.about[:200]}", hint="see `confide audit witness status`")
    clock = edge.SystemClock()
    draft = WitnessAcknowledged(
        id=new_event_id(clock, os.urandom),
        decision="allowed",
        actor=reader(log),
        site=site_of(reading.origin_of(log)),
        log=given.about,
        evidence=open_pairs[:256],
    )
    record(Path(log.audit_folder), draft, clock=clock)
    talk(f"acknowledged {len(open_pairs)} proof(s) that {given.about} has two histories; both checkpoints are kept")
    return 0
