"""Logs, witnesses and liars in one process: what a quorum promises, and what a log waits for after a start."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit import cosignature, gossip, note, proofs, quorum, witness
from audit.checkpoint import OpenedCheckpoint, parse
from audit.entry import write_leaf
from audit.errors import LogBehind, LogDamaged, NoteRefused, ProofRefused
from audit.merkle import leaf_hash
from audit.proof_file import ProofFile
from audit.round_gate import check_roster_entry, check_round_gate
from tests.support.rfc6962 import Book
from tests.support.witnessed_trees import (
    NOW_S,
    ORIGIN,
    Grown,
    cosigned,
    opened,
    party_of,
    policy_of,
    signed,
    witness_signer,
)

BOOK = Book.counted(60)
OTHER_BOOK = Book([*BOOK.leaf_hashes[:5], *(bytes([n]) * 32 for n in range(55))])
HISTORIES = (Grown(BOOK.leaf_hashes), Grown(OTHER_BOOK.leaf_hashes))
SHARED = 5  # entries that both histories begin with
PARTIES = [f"site-{number}" for number in range(7)]


@dataclass
class Peer:
    """A witness of the log: an honest one steps by the rule, a liar signs whatever it is shown."""

    name: str
    lies: bool
    seen: witness.Seen = field(default_factory=witness.Seen)
    forks: list[witness.Fork] = field(default_factory=list)

    def cosign(self, data: bytes, history: int) -> list[note.SignatureLine]:
        asked = opened(data)
        if self.lies:
            return [cosignature.cosign(asked, witness_signer(self.name), NOW_S)]
        proof: proofs.Proof = ()
        if 0 < self.seen.size < asked.size:
            proof = proofs.prove_consistency(HISTORIES[history], self.seen.size, asked.size)
        request = witness.AddCheckpoint(self.seen.size, proof, asked)
        answer = witness.step(party_of(self.name), self.seen, request, NOW_S)
        self.forks += [answer.fork] if answer.fork else []
        self.seen = answer.seen
        return [note.SignatureLine.parse(line) for line in answer.reply.split("\n")[:-1] if answer.status == 200]


def conflict(one: OpenedCheckpoint, other: OpenedCheckpoint) -> bool:
    """Whether no one tree has both; sizes up to the shared beginning are in both histories."""
    small, large = sorted((one, other), key=lambda each: each.size)
    books = [book for book in (BOOK, OTHER_BOOK) if book.root(large.size) == large.root]
    return all(book.root(small.size) != small.root for book in books)


ACTS = st.tuples(
    st.integers(0, 1),  # which history the owner shows
    st.integers(1, 60),  # the size
    st.lists(st.sampled_from(PARTIES), unique=True),  # to whom it gets; all else is dropped
    st.integers(0, 1),  # whether everything comes twice
)


@given(st.integers(1, 7), st.data(), st.lists(ACTS, min_size=1, max_size=25))
def test_no_fork_below_the_bound(
    operators: int, data: st.DataObject, acts: list[tuple[int, int, list[str], int]]
) -> None:
    """However a lying owner shows its log around, two conflicting checkpoints never both have a quorum."""
    needed = data.draw(st.integers(operators // 2 + 1, operators))
    liars = data.draw(st.integers(0, 2 * needed - operators - 1))
    peers = {name: Peer(name, number < liars) for number, name in enumerate(PARTIES[:operators])}
    policy = policy_of(list(peers), needed)
    gathered: dict[tuple[int, bytes], OpenedCheckpoint] = {}
    for history, size, reached, again in acts:
        shown = signed(size, (BOOK, OTHER_BOOK)[history].root(size))
        held = gathered.setdefault((size, opened(shown).root), opened(shown))
        for name in [*reached, *(reached if again else [])]:
            if name in peers:
                held = cosignature.with_cosignatures(
                    held, peers[name].cosign(shown, history), policy.witnesses.values()
                )
        gathered[size, held.root] = held
    agreed = [one for one in gathered.values() if quorum.judge(one, policy).witnessed]
    for one in agreed:
        assert not any(conflict(one, other) for other in agreed)
    for peer in peers.values():
        assert all(is_proof(fork) for fork in peer.forks)


def is_proof(fork: witness.Fork) -> bool:
    one, other = map(opened, fork.notes)
    return one.size == other.size == fork.size and one.root != other.root


@pytest.mark.parametrize("operators", [1, 2, 3, 4, 5, 6, 7])
def test_at_the_bound_liars_can_fork(operators: int) -> None:
    needed = quorum.default_quorum(operators)
    liars = 2 * needed - operators
    peers = [Peer(name, number < liars) for number, name in enumerate(PARTIES[:operators])]
    policy = policy_of([peer.name for peer in peers], needed)
    honest = peers[liars:]
    half = len(honest) // 2
    for history, group in ((0, peers[:liars] + honest[:half]), (1, peers[:liars] + honest[half:])):
        shown = signed(30, (BOOK, OTHER_BOOK)[history].root(30))
        lines = [line for peer in group for line in peer.cosign(shown, history)]
        held = cosignature.with_cosignatures(opened(shown), lines, policy.witnesses.values())
        assert quorum.judge(held, policy).witnessed


def test_a_split_view_leaves_two_signed_notes() -> None:
    shown = [signed(30, book.root(30)) for book in (BOOK, OTHER_BOOK)]
    honest = Peer("site-1", lies=False)
    assert honest.cosign(shown[0], 0)
    assert honest.cosign(shown[1], 1) == []
    assert [fork.notes for fork in honest.forks] == [tuple(shown)]


# --- who is told of what --------------------------------------------------------------------------------------


def test_a_log_proves_its_growth_from_each_size_that_somebody_last_cosigned() -> None:
    assert gossip.proofs_wanted(30, [0, 30, 12, 7, 12, 31]) == (7, 12)


def test_a_party_is_handed_what_it_has_not_cosigned_the_coordinators_first() -> None:
    newest = {"bern": 4, "coordinator": 9, "anna": 3, "chur": 5, "davos": 0}
    assert gossip.to_hand_over("chur", newest, {"anna": 3, "bern": 2}) == ("coordinator", "bern")
    assert gossip.to_hand_over("coordinator", newest, {}) == ("anna", "bern", "chur")
    assert gossip.to_hand_over("x", newest, newest) == ()


# --- after a start --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operators", range(1, 8))
def test_every_quorum_has_one_among_those_that_a_log_hears_after_a_start(operators: int) -> None:
    for needed in range(1, operators + 1):
        words = gossip.words_needed(operators, needed)
        assert words + needed > operators
        assert words - 1 + needed <= operators
    assert gossip.words_needed(operators, 0) == 0


def word(size: int, book: Book = BOOK) -> OpenedCheckpoint:
    return opened(cosigned(signed(size, book.root(size)), witness_signer("hungary")))


def test_a_log_signs_again_once_enough_have_told_what_they_last_cosigned() -> None:
    heard: dict[str, OpenedCheckpoint | None] = {}
    assert gossip.words_missing(30, BOOK.root, heard, 2) == 2
    heard["alps"] = None
    assert gossip.words_missing(30, BOOK.root, heard, 2) == 1
    heard["coordinator"] = word(30)
    assert gossip.words_missing(30, BOOK.root, heard, 2) == 0
    assert gossip.words_missing(30, BOOK.root, heard, 0) == 0


def test_a_log_that_was_restored_or_rewritten_learns_it_before_it_signs() -> None:
    with pytest.raises(LogBehind, match="alps cosigned 31 entries of this log, which has 30"):
        gossip.words_missing(30, BOOK.root, {"alps": word(31)}, 1)
    with pytest.raises(LogDamaged) as info:
        gossip.words_missing(30, BOOK.root, {"alps": word(20, OTHER_BOOK)}, 1)
    assert info.value.code == "CFD-A08"
    assert gossip.words_missing(30, BOOK.root, {"alps": word(SHARED, OTHER_BOOK)}, 1) == 0


def test_a_peer_cannot_make_a_log_believe_that_it_is_behind_without_its_signature() -> None:
    forged = signed(99, bytes(32), signer=note.Ed25519Signer(word(1).origin, bytes([9]) * 32))
    with pytest.raises(NoteRefused):
        opened(forged)


# --- the round gate -------------------------------------------------------------------------------------------

WRITER = note.Ed25519Signer("heart.example.org/cleveland/writer/daemon", bytes([2]) * 32)
PEERS = [witness_signer(name) for name in PARTIES[:3]]
POLICY = policy_of(PARTIES[:3], 2)


def carried(*cosigners: note.Signer, **event: object) -> ProofFile:
    """What the message that opens a round carries: an entry, proved under a checkpoint with these cosignatures."""
    body = {"decision": "allowed", "job": "heart-risk", "writer": WRITER.key.name, **event}
    leaf = write_leaf(ORIGIN, body, WRITER)
    tree = Grown([*BOOK.leaf_hashes[:9], leaf_hash(leaf), *BOOK.leaf_hashes[9:]])
    data = cosigned(signed(61, tree.edge.root()), *cosigners)
    return ProofFile(9, proofs.prove_inclusion(tree, 9, 61), parse(data), leaf)


@pytest.mark.parametrize(
    ("round_number", "event"),
    [
        (0, {"action": "job.submitted"}),
        (1, {"action": "round.released", "round": 0}),
        (5, {"action": "round.abandoned", "round": 4, "decision": "failed"}),
    ],
)
def test_a_round_opens_on_the_witnessed_end_of_the_one_before(round_number: int, event: dict[str, object]) -> None:
    proof = carried(*PEERS[:2], **event)
    assert check_round_gate(proof, POLICY, job="heart-risk", round_number=round_number).index == 9


@pytest.mark.parametrize(
    ("round_number", "event"),
    [
        (0, {"action": "job.validated"}),
        (0, {"action": "job.submitted", "job": "other"}),
        (0, {"action": "job.submitted", "decision": "refused"}),
        (1, {"action": "job.submitted"}),
        (2, {"action": "round.released", "round": 0}),
        (1, {"action": "round.released", "round": 0, "decision": "refused"}),
        (1, {"action": "round.opened", "round": 0}),
        (1, {"action": "round.released"}),
        (2, {"action": "round.released", "round": True}),
    ],
)
def test_another_entry_opens_no_round(round_number: int, event: dict[str, object]) -> None:
    with pytest.raises(ProofRefused) as info:
        check_round_gate(carried(*PEERS, **event), POLICY, job="heart-risk", round_number=round_number)
    assert info.value.code == "CFD-A28"


def test_withheld_gossip_stops_the_round() -> None:
    """A coordinator that shows its checkpoints to too few gets no quorum, and without one no round opens."""
    proof = carried(PEERS[0], action="job.submitted")
    with pytest.raises(ProofRefused, match="1 of 2 cosignatures, missing site-1, site-2") as info:
        check_round_gate(proof, POLICY, job="heart-risk", round_number=0)
    assert info.value.code == "CFD-A28"


# --- before a consent -----------------------------------------------------------------------------------------

ROSTER: dict[str, object] = {"action": "round.roster", "round": 3, "sum": "5" * 64, "roster": "a" * 64}


def roster_entry(proof: ProofFile) -> int:
    wanted = {"job": "heart-risk", "round_number": 3, "sum_id": "5" * 64, "roster": "a" * 64}
    return check_roster_entry(proof, POLICY, **wanted).index  # type: ignore[arg-type]


def test_a_roster_that_the_log_signed_needs_no_witness_yet() -> None:
    assert roster_entry(carried(**ROSTER)) == 9


@pytest.mark.parametrize(
    "changed",
    [
        {"roster": "b" * 64},
        {"sum": "6" * 64},
        {"round": 2},
        {"job": "other"},
        {"action": "round.opened"},
        {"decision": "failed"},
    ],
)
def test_no_consent_without_the_roster_entry(changed: dict[str, object]) -> None:
    with pytest.raises(ProofRefused, match="isn't of this roster") as info:
        roster_entry(carried(**{**ROSTER, **changed}))
    assert info.value.code == "CFD-A16"


def test_a_roster_under_a_tree_that_lacks_it_proves_nothing() -> None:
    proof = carried(**ROSTER)
    with pytest.raises(ProofRefused) as info:
        roster_entry(ProofFile(8, proof.path, proof.checkpoint, proof.leaf))
    assert info.value.code == "CFD-A28"
