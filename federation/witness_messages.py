"""What coordinator and sites say to each other about their audit logs: checkpoints, cosignatures, proofs; pure.

The site dials, the coordinator relays. Checkpoints, requests to witnesses and proof files travel in their own forms
(C2SP tlog-checkpoint, tlog-witness, tlog-proof), in hex; each is checked by whoever believes it, and the relay by
nobody.
"""

from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import Field

from federation.bodies import Body, Count, Digest, HexBytes, SiteName, Token

MAX_PROOF_HASHES: Final = 63
MAX_LINES_COUNT: Final = 4096
MAX_LOGS_COUNT: Final = 512
MAX_ENTRIES_COUNT: Final = 64
Note = Annotated[HexBytes, Field(max_length=32_768)]
"""A signed checkpoint with at most some dozens of cosignatures, or one with its proof."""
Hashes = Annotated[tuple[Digest, ...], Field(max_length=MAX_PROOF_HASHES)]


class CosignedTree(Body):
    """One witness's line about a tree of one log."""

    origin: Token
    size: Count
    root: Digest
    line: Annotated[str, Field(max_length=4096)]


class Growth(Body):
    """The proof that a tree grew from its first `old_size` leaves."""

    old_size: Count
    hashes: Hashes = ()


class OwnCheckpoint(Body):
    """A party's newest checkpoint, with a consistency proof for each size that a witness last cosigned."""

    checkpoint: Note
    growth: Annotated[tuple[Growth, ...], Field(max_length=MAX_LOGS_COUNT)] = ()


class Proved(Body):
    """Where an entry is in its party's log: an inclusion proof to the checkpoint of `own`."""

    index: Count
    path: Hashes
    own: OwnCheckpoint


class ReceiptPlace(Body):
    """Where a site's `update.sent` is in the tree of a round's receipts."""

    index: Count
    count: Count
    path: Hashes


class Word(Body):
    """What a witness last cosigned of a log: the checkpoint with the log's own signature, or nothing."""

    party: Token
    checkpoint: Note = ""


class CheckpointCall(Body):
    """A site brings its newest checkpoint, what it cosigned since, and what it last cosigned of each log."""

    message_id: Token
    site: SiteName
    own: OwnCheckpoint | None = None
    lines: Annotated[tuple[CosignedTree, ...], Field(max_length=MAX_LINES_COUNT)] = ()
    seen: Annotated[tuple[Note, ...], Field(max_length=MAX_LOGS_COUNT)] = ()


class CheckpointReply(Body):
    """The coordinator's answer as a witness, and what it relays.

    Attributes:
        status: Of C2SP tlog-witness; 0 where the site brought no checkpoint.
        held: The size of the site's log that the coordinator has cosigned.
        lines: Cosignatures of the site's own log.
        words: What each other witness last cosigned of the site's log.
        offers: Requests to cosign, about logs that go beyond what the site cosigned; the coordinator's own first.
    """

    message_id: Token
    status: Count
    held: Count
    lines: Annotated[tuple[CosignedTree, ...], Field(max_length=MAX_LINES_COUNT)] = ()
    words: Annotated[tuple[Word, ...], Field(max_length=MAX_LOGS_COUNT)] = ()
    offers: Annotated[tuple[Note, ...], Field(max_length=MAX_LOGS_COUNT)] = ()


class CosignCall(Body):
    """A site hands over cosignatures of other logs."""

    message_id: Token
    site: SiteName
    lines: Annotated[tuple[CosignedTree, ...], Field(max_length=MAX_LINES_COUNT)]


class CosignReply(Body):
    """The cosignatures of the site's own log that have been gathered."""

    message_id: Token
    lines: Annotated[tuple[CosignedTree, ...], Field(max_length=MAX_LINES_COUNT)] = ()


class EntriesCall(Body):
    """A site asks for entries of the coordinator's log, proved in the tree of `size` entries."""

    message_id: Token
    site: SiteName
    origin: Token
    indices: Annotated[tuple[Count, ...], Field(max_length=MAX_ENTRIES_COUNT)]
    size: Count


class ProvedLeaf(Body):
    """One entry: whole where the site may see it, else its hash alone; and where it is."""

    index: Count
    leaf_hash: Digest
    leaf: Annotated[HexBytes, Field(max_length=131_070)] = ""
    path: Hashes = ()


class EntriesReply(Body):
    """The entries under a checkpoint of that size."""

    message_id: Token
    checkpoint: Note
    entries: Annotated[tuple[ProvedLeaf, ...], Field(max_length=MAX_ENTRIES_COUNT)]


class WitnessNotice(Body):
    """At a round's end, and when a job is submitted, the coordinator asks the sites to cosign.

    `about` names what ended, so that each site records its cosignature once for it. `model` and `ended` are proof files
    of the entries `model.released` and `round.released` of that round, under the coordinator's checkpoint among
    `offers`; `receipt` is the place of the site's own receipt among those that the round's end counts.
    """

    message_id: Token
    about: Token
    lines: Annotated[tuple[CosignedTree, ...], Field(max_length=MAX_LINES_COUNT)] = ()
    offers: Annotated[tuple[Note, ...], Field(max_length=MAX_LOGS_COUNT)] = ()
    model: Annotated[HexBytes, Field(max_length=262_144)] = ""
    ended: Annotated[HexBytes, Field(max_length=262_144)] = ""
    receipt: ReceiptPlace | None = None


class WitnessLines(Body):
    """A site's cosignatures, in answer to a notice."""

    message_id: Token
    about: Token
    lines: Annotated[tuple[CosignedTree, ...], Field(max_length=MAX_LINES_COUNT)] = ()


KINDS: Final[Mapping[str, type[Body]]] = {
    "checkpoint-call": CheckpointCall,
    "checkpoint-reply": CheckpointReply,
    "cosign-call": CosignCall,
    "cosign-reply": CosignReply,
    "entries-call": EntriesCall,
    "entries-reply": EntriesReply,
    "witness-notice": WitnessNotice,
    "witness-lines": WitnessLines,
}
