"""`confide audit verify --peer`: two parties' logs side by side, the links between them followed both ways."""

from collections.abc import Sequence
from pathlib import Path

from audit import checkpoint as checkpoints
from audit import reading
from audit.bundle_log import BundleLog
from audit.checked import ReadableLog
from audit.errors import AuditError, LogUnreadable, NoteRefused, ProofRefused
from audit.findings import Flaw, Verification
from audit.frame import hash_text
from audit.links import Links
from audit.names import Origin
from audit.proofs import root_at
from audit.reading import FoundBundle, FoundLog
from audit.redactions import redaction_of


def check_peers(log: FoundLog, peers: Sequence[Path], trust: Path | None, result: Verification) -> None:
    """Add to `result` what the logs of other parties say of the links between them and `log`.

    Args:
        log: The log that was verified.
        peers: Where the others' logs lie.
        trust: The policies that the reader named.
        result: What was found of `log`; a contradiction makes it flawed.
    """
    for path in peers:
        _check_peer(log, reading.find_log(path), trust, result)
    if result.flaws:
        result.proved.clear()


def _check_peer(log: FoundLog, peer: FoundLog, trust: Path | None, result: Verification) -> None:
    name = _name(peer)
    if name.rpartition("/")[0] == result.origin.rpartition("/")[0]:
        raise LogUnreadable("the peer's log is this log", hint="name another party's log")
    before, count, beyond = len(result.flaws), 0, 0
    try:
        _check_keys(log, peer, trust, result)
        for one, other, shown in ((log, peer, ""), (peer, log, f"{name}, ")):
            for links in _linked(one, other, shown):
                count, beyond = count + len(links.links), beyond + links.beyond
                result.flaws += links.flaws
    except AuditError as refused:
        if isinstance(refused, LogUnreadable):
            raise
        result.flaws.append(Flaw(refused.code, name, refused.message))
        return
    if beyond:
        what = f"{beyond} links lead to entries that what is here of the other log doesn't have"
        result.notes.append(Flaw("CFD-A45", name, what))
    if len(result.flaws) == before:
        result.proved.append(f"{count - beyond} links with {name}, both ways: each names an entry that says the same")


def _name(log: FoundLog) -> str:
    if isinstance(log, FoundBundle):
        try:
            return checkpoints.parse(log.checkpoint_bytes()).origin
        except NoteRefused:
            raise LogUnreadable(f"{log.path} has no checkpoint") from None
    return reading.origin_of(log.epochs()[-1])


def _check_keys(log: FoundLog, peer: FoundLog, trust: Path | None, result: Verification) -> None:
    """See that the other log's checkpoint is by a key that the reader pins, where one is known."""
    data = peer.checkpoint_bytes()
    origin = checkpoints.parse(data).origin
    named = trust if trust is not None and trust.is_dir() else None
    try:
        policy, _ = reading.find_policy(log, origin, named)
    except LogUnreadable:
        policy = None
    keys = () if policy is None else policy.for_origin(origin)
    if not keys:
        result.notes.append(Flaw("CFD-A20", origin, "no pinned key says whose log this is; its links were followed"))
        return
    checkpoints.open_checkpoint(data, origin=origin, log_keys=keys)


def _extent(log: ReadableLog) -> tuple[int, int]:
    """Return from where to where there is every entry; of a selection nowhere."""
    if isinstance(log, BundleLog):
        return (log.begin, log.end) if log.complete else (log.size, log.size)
    return log.begin, log.size


def _linked(one: FoundLog, other: FoundLog, shown: str) -> list[Links]:
    """Return the links of `one` into each epoch of `other`, followed."""
    found = []
    for target in other.epochs():
        with target.checked() as checked:
            links = Links(_name(target))
            for epoch in one.epochs():
                with epoch.checked() as saying:
                    number = f"{Origin.parse(saying.origin).epoch}/" if len(one.epochs()) > 1 else ""
                    for row in saying.rows():
                        links.gather(f"{shown}entry {number}{row.index}", row.event)
            blank = set()
            for row in checked.rows():
                links.match(row.index, row.leaf_hash, row.event)
                redaction = redaction_of(row.index, row.event)
                if redaction is not None:
                    blank.add(redaction.leaf_hash)
            roots = {}
            for size in links.sizes():
                if size <= checked.size:
                    try:
                        roots[size] = hash_text(root_at(checked.tree, size))
                    except (ProofRefused, LogUnreadable):
                        continue  # a selection, or an archive: nothing to compare with
            first, end = _extent(checked)
            links.finish(roots, begin=first, size=end, blank=blank)
            found.append(links)
    return found
