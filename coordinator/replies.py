"""Replies of sites to the phases of a round: kept before they count, read back after a restart, named where they fail.

A reply is on disk before anybody acts on it or acknowledges it. The same reply under another message id is the same
reply. Of a failure only its code is told on: a text from a site might hold a value.
"""

from audit.events import Peer
from coordinator.records import ReplyRecord
from coordinator.store import Store
from federation import canonical
from federation.codes import CODES
from federation.errors import OutOfOrder
from federation.messages import Body, JobId, Outcome, PhaseReply, SiteId, decode_body


def keep_reply(
    store: Store, site: SiteId, reply: PhaseReply, *, body: bytes, signature: bytes, peer: Peer | None = None
) -> bool:
    """Store a site's reply durably; return whether it is new.

    The same reply under another message id, or with another proof of its receipt, is the same. `peer` is the site's
    entry that the proof showed.

    Raises:
        PeerMisbehaved: As `RoundStore.save_reply`.
    """
    plain = canonical.encode(reply.model_dump(mode="json", exclude={"message_id", "proved"}))
    update = reply.update if reply.outcome is Outcome.DONE else None
    return store.rounds.save_reply(
        ReplyRecord(
            job=JobId(reply.job),
            round=reply.round,
            attempt=reply.attempt,
            phase=reply.phase,
            site=site,
            body=body,
            signature=signature,
            fingerprint=canonical.digest(plain),
            received_us=store.database.now_us(),
            peer=None if peer is None else peer.model_dump_json(exclude_none=True),
        ),
        update_root=None if update is None else update.root,
        upload_bytes=0 if update is None else update.size_bytes,
    )


def reply_of(kept: ReplyRecord) -> PhaseReply:
    """Return a stored reply as the message that it was.

    Raises:
        OutOfOrder: It is another message.
    """
    body: Body = decode_body("phase-reply", kept.body or b"")
    if not isinstance(body, PhaseReply):
        raise OutOfOrder("CFD-G01", "a stored reply is no reply")
    return body


def failure(reply: PhaseReply) -> str:
    """Return why a site failed, by its code; a text from a site isn't shown, it might hold a value."""
    if reply.reason is None:
        return "failed"
    cause = cause_of(reply.reason.code)
    return cause if reply.reference is None else f"{cause}, reference {reply.reference}"


def cause_of(code: str) -> str:
    """Return the cause that our list of codes gives for one, or the code itself."""
    known = CODES.get(code)
    return code if known is None else f"{known.cause} [{known.code}]"
