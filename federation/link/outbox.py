"""Messages on their way: ids that sort by time, what is still unacknowledged, what was already received; pure.

Delivery is at least once by resending and at most once by remembering. The memory is bounded: when an id is
forgotten, everything as old is refused from then on, so that forgetting never lets a replay in. That needs ids
that sort by age: `MessageIds` makes them. The memory lives as long as the process; after a restart a message may
come once more, which the parties' own keys (job, round, attempt, phase) make harmless.
"""

import hashlib
import heapq
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from typing import Final

from federation.errors import InvalidInput, OutOfOrder
from federation.messages import SignedMessage

_ID: Final = re.compile(r"[0-9a-f]{12}-[0-9a-f]{16}")
_FARTHEST_AHEAD_MS: Final = 400 * 86_400_000
Randomness = Callable[[int], bytes]
"""Returns that many unpredictable bytes; `secrets.token_bytes` in production."""


def check_message_id(message_id: str) -> None:
    """Refuse an id that `MessageIds` couldn't have made.

    Raises:
        InvalidInput: Not 12 hex digits of milliseconds, a dash and 16 hex digits.
    """
    if _ID.fullmatch(message_id) is None:
        raise InvalidInput("CFD-L14", f"message id {message_id[:40]!r} isn't one that MessageIds makes")


class MessageIds:
    """Makes ids that are unique and never go back, even if the clock does."""

    def __init__(self, now: Callable[[], datetime], randomness: Randomness) -> None:
        self._now = now
        self._randomness = randomness
        self._last_ms = 0

    def next(self) -> str:
        """Return a new id, greater than all before it."""
        self._last_ms = max(self._last_ms + 1, self._clock_ms())
        return f"{self._last_ms:012x}-{self._randomness(8).hex()}"

    def observe(self, message_id: str) -> None:
        """Make the next ids greater than `message_id`, one of ours that the other side has seen.

        An id from farther ahead than a clock can reasonably be wrong is ignored.
        """
        if _ID.fullmatch(message_id) is None:
            return
        seen_ms = int(message_id[:12], 16)
        if seen_ms <= self._clock_ms() + _FARTHEST_AHEAD_MS:
            self._last_ms = max(self._last_ms, seen_ms)

    def _clock_ms(self) -> int:
        return int(self._now().timestamp() * 1000)


@dataclass(slots=True)
class _Pending:
    message: SignedMessage
    sent_s: float | None = None


class Outbox:
    """Messages to one party, oldest first, kept until acknowledged; bounded in count and bytes."""

    def __init__(self, *, max_count: int, max_bytes: int, resend_s: float) -> None:
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._resend_s = resend_s
        self._pending: OrderedDict[str, _Pending] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._pending)

    def __contains__(self, message_id: str) -> bool:
        return message_id in self._pending

    def put(self, message_id: str, message: SignedMessage) -> None:
        """Add a message; the same id again changes nothing.

        Raises:
            OutOfOrder: Too many or too large messages wait already; nothing was added.
        """
        if message_id in self._pending:
            return
        if len(self._pending) >= self._max_count or self._bytes + len(message.body) > self._max_bytes:
            raise OutOfOrder(
                "CFD-L18",
                f"{len(self._pending)} messages of {self._bytes} bytes wait to be acknowledged,"
                f" at most {self._max_count} and {self._max_bytes}",
            )
        self._pending[message_id] = _Pending(message)
        self._bytes += len(message.body)

    def take_due(self, now_s: float) -> tuple[str, SignedMessage] | None:
        """Return the oldest message that is due to be sent at `now_s`, and note that it is."""
        for message_id, pending in self._pending.items():
            if pending.sent_s is None or now_s - pending.sent_s >= self._resend_s:
                pending.sent_s = now_s
                return message_id, pending.message
        return None

    def remove(self, message_id: str) -> bool:
        """Forget a message (acknowledged, refused, withdrawn); return whether it was there."""
        pending = self._pending.pop(message_id, None)
        if pending is None:
            return False
        self._bytes -= len(pending.message.body)
        return True

    def all_due(self) -> None:
        """A new connection: every message is due again."""
        for pending in self._pending.values():
            pending.sent_s = None


class Standing(Enum):
    """What a received id is."""

    NEW = auto()
    REPEATED = auto()
    CHANGED = auto()
    OLD = auto()


@dataclass(frozen=True, slots=True)
class Refusal:
    """A final no to one message: code and one sentence."""

    code: str
    text: str


class Memory:
    """The ids received from one party, with what was answered; bounded."""

    def __init__(self, max_count: int) -> None:
        self._max_count = max_count
        self._answers: dict[str, tuple[bytes, Refusal | None]] = {}
        self._by_age: list[str] = []
        self._forgotten = ""
        self.newest = ""

    def standing(self, message_id: str, message: SignedMessage) -> Standing:
        """Return what `message_id` is. `CHANGED`: the id came before with other bytes."""
        known = self._answers.get(message_id)
        if known is None:
            return Standing.OLD if message_id <= self._forgotten else Standing.NEW
        return Standing.REPEATED if known[0] == _digest(message) else Standing.CHANGED

    def answer(self, message_id: str) -> Refusal | None:
        """Return what was answered to a remembered id: a refusal, or None for an acknowledgement."""
        return self._answers[message_id][1]

    def remember(self, message_id: str, message: SignedMessage, answer: Refusal | None) -> None:
        """Note a processed message; the oldest ids are forgotten and closed off once there are too many."""
        if message_id not in self._answers:
            heapq.heappush(self._by_age, message_id)
        self._answers[message_id] = (_digest(message), answer)
        self.newest = max(self.newest, message_id)
        while len(self._answers) > self._max_count:
            oldest = heapq.heappop(self._by_age)
            del self._answers[oldest]
            self._forgotten = max(self._forgotten, oldest)


def _digest(message: SignedMessage) -> bytes:
    return hashlib.sha256(message.kind.encode() + b"\n" + message.signature + message.body).digest()


class Backoff:
    """Waits that double up to a bound, with jitter in the upper half so that sites don't come back all at once."""

    def __init__(self, *, first_s: float, bound_s: float, randomness: Randomness) -> None:
        self._first_s = first_s
        self._bound_s = bound_s
        self._randomness = randomness
        self._failures = 0

    def wait_s(self) -> float:
        """Return the wait after one more failure, in [half, whole] of the doubled wait and never over the bound."""
        whole = min(self._bound_s, self._first_s * 2.0 ** min(self._failures, 30))
        self._failures += 1
        fraction = int.from_bytes(self._randomness(4), "big") / 2**32
        return whole * (0.5 + fraction / 2)

    def reset(self) -> None:
        """Begin again after a success."""
        self._failures = 0
