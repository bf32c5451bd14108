"""One party's end of an exchange of messages with another: what both coordinator and site do with an envelope.

What goes out is kept until acknowledged and sent again after a while and on every new connection. What comes in is
checked (size, signature, id, schema), handed on once, and answered; a repeated message gets its first answer again.
An acknowledgement means: the receiver has taken the message over, durably where it must be. A fault of the
receiver's own leaves a message unanswered, so that it comes again. Threads may share it; no sockets here.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

import structlog

from federation.errors import ConfideError, InvalidInput, NotAuthenticated, PeerMisbehaved
from federation.identity import check_signature
from federation.link import link_pb2 as pb
from federation.link.limits import LinkLimits
from federation.link.outbox import Memory, Outbox, Refusal, Standing, check_message_id
from federation.link.wire import Signer, error_from, message_id_of, message_of, signed
from federation.messages import Body, MessageRefused, SignedMessage, decode_body, encode_body, kind_of

_log: Final = structlog.get_logger("confide.link")
ENVELOPE_ROOM_BYTES: Final = 1024
"""What an envelope adds to a body at most."""


def sign_message(signer: Signer, body: Body, limits: LinkLimits) -> tuple[str, SignedMessage]:
    """Return id and signed message of `body`, refused here if the link wouldn't carry it.

    Raises:
        InvalidInput: Too large, or its id isn't one that `MessageIds` makes.
    """
    message_id = message_id_of(body)
    check_message_id(message_id)
    content = encode_body(body)
    allowed = limits.max_message_bytes - ENVELOPE_ROOM_BYTES
    if len(content) > allowed:
        raise InvalidInput("CFD-L11", f"a {kind_of(body)} has {len(content)} bytes, the link carries {allowed}")
    kind = kind_of(body)
    return message_id, SignedMessage(kind=kind, body=content, signature=signer.sign(kind, content))


def open_message(travelled: pb.Signed, public_key: bytes) -> tuple[SignedMessage, Body]:
    """Return a message whose signature is by `public_key` and whose body has the id that its envelope says.

    Raises:
        NotAuthenticated: The signature is not by that key.
        PeerMisbehaved: The body isn't of its kind, or has another id.
    """
    message = message_of(travelled)
    if not message.kind.isascii():
        raise PeerMisbehaved("CFD-L09", "the kind of a message is malformed")
    check_signature(public_key, message.kind, message.body, message.signature)
    try:
        body = decode_body(message.kind, message.body)
    except MessageRefused as problem:
        raise PeerMisbehaved("CFD-L09", str(problem)) from None
    if message_id_of(body) != travelled.message_id:
        raise PeerMisbehaved("CFD-L09", f"a {message.kind} names another message id than its envelope")
    check_message_id(travelled.message_id)
    return message, body


class Correspondence:
    """The exchange with one other party, across its connections.

    Args:
        limits: Bounds of what waits and what is remembered.
        monotonic_s: Seconds on a clock that never jumps.
        accept: Takes a checked message over; returns when it is safe to acknowledge. A `ConfideError` is a final
            no, told to the sender; any other exception leaves the message unanswered.
        on_refused: Told when the other side finally refused a message of ours.
        on_acknowledged: Told when the other side has taken over a message of ours.
    """

    def __init__(
        self,
        *,
        limits: LinkLimits,
        monotonic_s: Callable[[], float],
        accept: Callable[[SignedMessage, Body], None],
        on_refused: Callable[[str, ConfideError], None],
        on_acknowledged: Callable[[str], None],
    ) -> None:
        self._limits = limits
        self._monotonic_s = monotonic_s
        self._accept = accept
        self._on_refused = on_refused
        self._on_acknowledged = on_acknowledged
        self._outbox = Outbox(
            max_count=limits.max_pending_count, max_bytes=limits.max_pending_bytes, resend_s=limits.resend_s
        )
        self._memory = Memory(limits.max_remembered_count)
        self._answers: deque[pb.Envelope] = deque(maxlen=limits.max_remembered_count)
        self._changed = threading.Condition()
        self._taking = threading.Lock()
        self._connection = 0
        self._last_out_s = 0.0

    # --- going out --------------------------------------------------------------------------------------------

    def send(self, message_id: str, message: SignedMessage) -> None:
        """Queue a message until it is acknowledged.

        Raises:
            OutOfOrder: Too many wait already.
        """
        with self._changed:
            self._outbox.put(message_id, message)
            self._changed.notify_all()

    def withdraw(self, message_id: str) -> bool:
        """Stop sending a message; return whether it was still waiting. It may have arrived all the same."""
        with self._changed:
            return self._outbox.remove(message_id)

    @property
    def pending_count(self) -> int:
        """Return how many messages wait to be acknowledged."""
        with self._changed:
            return len(self._outbox)

    @property
    def newest_id(self) -> str:
        """Return the newest id received, or an empty text."""
        return self._memory.newest

    def connect(self) -> int:
        """Begin a new connection; it alone gets envelopes from now on. Return its number."""
        with self._changed:
            self._connection += 1
            self._outbox.all_due()
            self._answers.clear()
            self._last_out_s = self._monotonic_s()
            self._changed.notify_all()
            return self._connection

    def disconnect(self) -> None:
        """End the present connection; whoever waits in `next_envelope` gets None."""
        with self._changed:
            self._connection += 1
            self._changed.notify_all()

    def next_envelope(self, connection: int) -> pb.Envelope | None:
        """Wait for the next envelope of this connection: an answer, a due message or a heartbeat; None at its end."""
        with self._changed:
            while connection == self._connection:
                now_s = self._monotonic_s()
                envelope = self._take(now_s)
                if envelope is not None:
                    self._last_out_s = now_s
                    return envelope
                quiet_s = now_s - self._last_out_s
                self._changed.wait(min(1.0, max(0.005, self._limits.heartbeat_s - quiet_s)))
            return None

    def _take(self, now_s: float) -> pb.Envelope | None:
        if self._answers:
            return self._answers.popleft()
        due = self._outbox.take_due(now_s)
        if due is not None:
            return pb.Envelope(message=signed(*due))
        if now_s - self._last_out_s >= self._limits.heartbeat_s:
            return pb.Envelope(heartbeat=pb.Heartbeat())
        return None

    # --- coming in --------------------------------------------------------------------------------------------

    def receive(self, envelope: pb.Envelope, public_key: bytes) -> None:
        """Act on one envelope of the other party, whose identity key is `public_key`.

        Raises:
            PeerMisbehaved: It is of no use at any time; the connection should end.
        """
        match envelope.WhichOneof("content"):
            case "message":
                self._receive_message(envelope.message, public_key)
            case "acknowledged":
                self._settle(envelope.acknowledged.message_id, None)
            case "refused":
                self._settle(envelope.refused.message_id, envelope.refused)
            case "heartbeat":
                pass
            case _:
                raise PeerMisbehaved("CFD-L09", "an envelope has a content that isn't expected here")

    def _settle(self, message_id: str, refused: pb.Refused | None) -> None:
        with self._changed:
            known = self._outbox.remove(message_id)
        if not known:
            return
        if refused is None:
            self._on_acknowledged(message_id)
        else:
            self._on_refused(message_id, error_from(refused.code, refused.text))

    def _receive_message(self, travelled: pb.Signed, public_key: bytes) -> None:
        with self._taking:
            try:
                message, body = open_message(travelled, public_key)
            except (NotAuthenticated, PeerMisbehaved, InvalidInput) as problem:
                # Not remembered: an id in an unproved message says nothing.
                _log.warning("message.refused", code=problem.code, kind=travelled.kind[:40])
                self._answer(travelled.message_id[:128], Refusal(problem.code, problem.message))
                return
            message_id = travelled.message_id
            match self._memory.standing(message_id, message):
                case Standing.REPEATED:
                    self._answer(message_id, self._memory.answer(message_id))
                case Standing.CHANGED:
                    self._answer(message_id, Refusal("CFD-L10", "this message id came before with another content"))
                case Standing.OLD:
                    self._answer(message_id, Refusal("CFD-L10", "this message id is older than those remembered"))
                case Standing.NEW:
                    self._take_over(message_id, message, body)

    def _take_over(self, message_id: str, message: SignedMessage, body: Body) -> None:
        refusal: Refusal | None = None
        try:
            self._accept(message, body)
        except ConfideError as problem:
            refusal = Refusal(problem.code, problem.message)
        except Exception:  # noqa: BLE001 (whatever the receiver's own fault is, the message must come again)
            _log.exception("a message wasn't taken over, it will come again", kind=message.kind)
            return
        self._memory.remember(message_id, message, refusal)
        self._answer(message_id, refusal)

    def _answer(self, message_id: str, refusal: Refusal | None) -> None:
        if refusal is None:
            envelope = pb.Envelope(acknowledged=pb.Acknowledged(message_id=message_id))
        else:
            envelope = pb.Envelope(
                refused=pb.Refused(message_id=message_id, code=refusal.code, text=refusal.text[:500])
            )
        with self._changed:
            self._answers.append(envelope)
            self._changed.notify_all()
