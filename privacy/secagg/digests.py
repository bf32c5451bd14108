"""The chain of digests that binds every message and key to one plan, one roster, one view and one set of survivors.

plan → roster (who advertised, with which keys) → view (who shared, committed to what) → inputs (who uploaded what) →
consensus (who is summed). Sites that were shown different things derive different keys, so nothing cancels.
"""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from privacy.secagg.derivation import digest
from privacy.secagg.envelope import Opened
from privacy.secagg.messages import Advert, Masked, Message, Shares

Body = TypeVar("Body", bound=Message)


def _over(label: str, first: Iterable[bytes], received: Mapping[str, Opened[Body]]) -> bytes:
    return digest(label, *first, *(received[site].message.body for site in sorted(received)))


def plan_digest(body: bytes) -> bytes:
    """Return pd."""
    return digest("plan", body)


def roster_digest(plan: bytes, adverts: Mapping[str, Opened[Advert]]) -> bytes:
    """Return R."""
    return _over("roster", (plan,), adverts)


def view_digest(roster: bytes, shares: Mapping[str, Opened[Shares]]) -> bytes:
    """Return V."""
    return _over("view", (roster,), shares)


def inputs_digest(masked: Mapping[str, Opened[Masked]]) -> bytes:
    """Return I."""
    return _over("inputs", (), masked)


def consensus_digest(view: bytes, inputs: bytes, survivors: Iterable[str]) -> bytes:
    """Return what the consenting sites agree on."""
    return digest("consensus", view, inputs, *sorted(survivors))


def self_seed_commitment(roster: bytes, site: str, self_seed: bytes | bytearray) -> bytes:
    """Return `commit_b`."""
    return digest("commit-b", roster, site, self_seed)


def share_commitment(kind: str, roster: bytes, dealer: str, holder: str, share: bytes, salt: bytes) -> bytes:
    """Return the commitment to a share; `kind` is ``b`` for the self seed's, ``m`` for the mask seed's."""
    return digest(f"share-{kind}", roster, dealer, holder, share, salt)
