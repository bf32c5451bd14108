"""What a log, a relay or some witnesses may try, so that a checkpoint or a proof seems to be more than it is."""

import hashlib

import pytest
from cryptography.hazmat.primitives.asymmetric import mldsa

from audit import checkpoint, cosignature, note, proof_file, proofs, quorum, trust, witness
from audit.cosignature import MLDSA44Signer
from audit.entry import write_leaf
from audit.errors import AuditError, EntryRefused, NoteRefused, ProofRefused
from audit.merkle import leaf_hash
from tests.support.rfc6962 import Book
from tests.support.witnessed_trees import (
    LOG,
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

BOOK = Book.counted(300)
OTHERS = ("coordinator", "hungary", "switzerland", "long-beach")
COORDINATOR, HUNGARY, SWITZERLAND, LONG_BEACH = map(witness_signer, OTHERS)
POLICY = policy_of(OTHERS, 3)
DATA = signed(300, BOOK.root(300))


# --- quorum ---------------------------------------------------------------------------------------------------


def test_only_a_quorum_of_others_counts() -> None:
    """One witness twice, the owner's own witness, a stranger, two of one operator, another tree: none adds a voice."""
    owner = witness_signer("cleveland")
    stranger = witness_signer("hungary", "lung.example.org")
    enough = quorum.require(opened(cosigned(DATA, COORDINATOR, HUNGARY, SWITZERLAND)), POLICY)
    assert (enough.heard, enough.missing, enough.needed) == (OTHERS[:3], ("long-beach",), 3)
    assert enough.witnessed
    two = cosigned(DATA, COORDINATOR, HUNGARY)
    for more in (owner, stranger, HUNGARY):
        found = quorum.judge(opened(cosigned(two, more, time_s=NOW_S + 9)), POLICY)
        assert (found.heard, found.met) == (("coordinator", "hungary"), False)
    with pytest.raises(NoteRefused, match="2 of 3 cosignatures, missing switzerland, long-beach") as info:
        quorum.require(opened(two), POLICY)
    assert info.value.code == "CFD-A06"


def test_sites_of_one_operator_are_one_voice() -> None:
    policy = policy_of(OTHERS, 3, {"alps": ["hungary", "switzerland"]})
    found = quorum.judge(opened(cosigned(DATA, COORDINATOR, HUNGARY, SWITZERLAND)), policy)
    assert (set(found.heard), found.missing, found.met) == ({"alps", "coordinator"}, ("long-beach",), False)
    assert quorum.judge(opened(cosigned(DATA, COORDINATOR, SWITZERLAND, LONG_BEACH)), policy).met


def test_a_cosignature_of_another_tree_refuses_the_note() -> None:
    other = cosigned(signed(299, BOOK.root(299)), HUNGARY)
    line = str(note.parse_note(other).signatures[-1]).encode()
    with pytest.raises(NoteRefused, match=r"the cosignature of .*hungary.* is wrong"):
        quorum.judge(opened(cosigned(DATA, COORDINATOR) + line), POLICY)


def test_a_policy_cannot_make_two_witnesses_of_one_key_or_a_witness_of_the_owner() -> None:
    twin = str(note.VerifierKey("heart.example.org/bern/witness", note.COSIGNATURE, HUNGARY.key.public))
    own = str(witness_signer("cleveland").key)
    loop = str(note.VerifierKey("heart.example.org/bern/witness", note.COSIGNATURE, LOG.key.public))
    for extra in (twin, own, loop):
        with pytest.raises(NoteRefused):
            trust.format_policy([str(LOG.key)], {"hungary": str(HUNGARY.key), "bern": extra}, {}, 2)


def test_without_a_quorum_nothing_is_witnessed() -> None:
    found = quorum.judge(opened(DATA), policy_of((), 0))
    assert (found.met, found.witnessed, found.time_s) == (True, False, None)


def test_one_lying_clock_does_not_move_the_time_of_a_checkpoint() -> None:
    data = cosigned(cosigned(DATA, COORDINATOR, time_s=100), HUNGARY, time_s=90)
    assert quorum.judge(opened(data), POLICY).time_s == 90
    data = cosigned(data, SWITZERLAND, time_s=2**63 - 1)
    assert quorum.judge(opened(data), POLICY).time_s == 100
    again = cosigned(data, COORDINATOR, time_s=95)
    assert quorum.judge(opened(again), POLICY).time_s == 95


# --- cosignatures ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("time_s", [0, -1, 1 << 63])
def test_nobody_cosigns_at_no_time(time_s: int) -> None:
    with pytest.raises(NoteRefused):
        cosignature.cosign(opened(DATA), HUNGARY, time_s)


def test_a_log_key_cosigns_nothing() -> None:
    with pytest.raises(NoteRefused, match="not a witness's"):
        cosignature.cosign(opened(DATA), LOG, NOW_S)
    line = note.SignatureLine(LOG.key.name, LOG.key.id, bytes(72))
    assert cosignature.cosignatures_of(checkpoint.parse(DATA + str(line).encode()), [LOG.key]) == ()


def test_a_witness_key_signs_no_checkpoint_of_its_own() -> None:
    own = note.Ed25519Signer(ORIGIN, bytes([9]) * 32, note.COSIGNATURE)
    with pytest.raises(NoteRefused, match="no known key"):
        checkpoint.open_checkpoint(signed(3, BOOK.root(3), signer=own), origin=ORIGIN, log_keys=[own.key])


def test_lines_from_a_relay_are_added_only_where_they_hold() -> None:
    good = [note.parse_note(cosigned(DATA, one)).signatures[-1] for one in (COORDINATOR, HUNGARY)]
    foreign = note.parse_note(cosigned(signed(9, BOOK.root(9)), SWITZERLAND)).signatures[-1]
    unknown = note.parse_note(cosigned(DATA, witness_signer("bern"))).signatures[-1]
    keys = POLICY.witnesses.values()
    found = cosignature.with_cosignatures(opened(DATA), [good[0], foreign, unknown, *good, good[1]], keys)
    assert bytes(found.signed) == cosigned(DATA, COORDINATOR, HUNGARY)
    assert opened(bytes(found.signed)) == found
    full = DATA + b"".join(str(note.SignatureLine(f"x/{n}", b"four", b"s")).encode() for n in range(127))
    assert cosignature.with_cosignatures(opened(full), good, keys) == opened(full)


def test_a_witness_may_sign_for_the_time_after_forgeable_keys() -> None:
    signer = MLDSA44Signer("heart.example.org/hungary/witness", bytes([5]) * 32)
    assert "hidden" in repr(signer)
    data = cosigned(DATA, HUNGARY, signer)
    both = {"hungary": str(HUNGARY.key), "hungary-later": str(signer.key)}
    policy = trust.parse_policy(trust.format_policy([str(LOG.key)], both, {"op": ["hungary", "hungary-later"]}, 1))
    found = quorum.require(opened(data), policy)
    assert (len(found.cosignatures), found.heard) == (2, ("op",))
    spoiled = note.SignatureLine(signer.key.name, signer.key.id, NOW_S.to_bytes(8, "big") + bytes(2420))
    with pytest.raises(NoteRefused, match="is wrong"):
        quorum.judge(opened(DATA + str(spoiled).encode()), policy)


def test_a_kind_that_cannot_be_checked_here_counts_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    signer = MLDSA44Signer("heart.example.org/hungary/witness", bytes([5]) * 32)
    data = cosigned(DATA, HUNGARY, signer)

    class Missing:
        @staticmethod
        def from_public_bytes(_: bytes) -> None:
            raise cosignature.UnsupportedAlgorithm("no ML-DSA here")

        from_seed_bytes = from_public_bytes

    monkeypatch.setattr(mldsa, "MLDSA44PublicKey", Missing)
    monkeypatch.setattr(mldsa, "MLDSA44PrivateKey", Missing)
    found = cosignature.cosignatures_of(opened(data), [HUNGARY.key, signer.key])
    assert [one.key for one in found] == [HUNGARY.key]
    with pytest.raises(NoteRefused, match="no ML-DSA-44"):
        MLDSA44Signer("heart.example.org/hungary/witness", bytes(32))


def test_a_log_of_a_name_too_long_for_the_later_kind_is_not_cosigned_by_it() -> None:
    signer = MLDSA44Signer("heart.example.org/hungary/witness", bytes([5]) * 32)
    long = checkpoint.parse(signed(1, BOOK.root(1), origin="x" * 256))
    with pytest.raises(NoteRefused, match="255 bytes"):
        cosignature.message_of(long, signer.key, NOW_S)


# --- a made-up log --------------------------------------------------------------------------------------------

WRITER = note.Ed25519Signer("heart.example.org/cleveland/writer/daemon", bytes([2]) * 32)


def entry(number: int, origin: str = ORIGIN) -> bytes:
    return write_leaf(origin, {"number": number, "writer": WRITER.key.name}, WRITER)


LEAVES = [entry(number) for number in range(20)]
TREE = Grown(leaf_hash(leaf) for leaf in LEAVES)
CHECKPOINT = cosigned(signed(20, TREE.edge.root()), COORDINATOR, HUNGARY, SWITZERLAND)


def proof_of(
    index: int, data: bytes = CHECKPOINT, tree: Grown = TREE, leaf: bytes | None = None
) -> proof_file.ProofFile:
    path = proofs.prove_inclusion(tree, index, tree.edge.size)
    return proof_file.ProofFile.parse(bytes(proof_file.ProofFile(index, path, checkpoint.parse(data), leaf)))


def refused(proof: proof_file.ProofFile, leaf: bytes | None = None) -> str:
    with pytest.raises(AuditError) as info:
        proof_file.check(proof, POLICY, leaf=leaf)
    return info.value.code


def test_a_proof_of_a_witnessed_log_needs_nothing_but_the_policy() -> None:
    found = proof_file.check(proof_of(7, leaf=LEAVES[7]), POLICY)
    assert (found.index, found.event["number"], found.writer_checked) == (7, 7, False)
    assert proof_file.check(proof_of(7), POLICY, leaf=LEAVES[7]).leaf_hash == leaf_hash(LEAVES[7])


def test_a_made_up_log_proves_nothing() -> None:
    """A self-made tree with its own proof; the right root with foreign signatures; another size; another entry."""
    made_up = Grown(leaf_hash(leaf) for leaf in [*LEAVES[:7], entry(99), *LEAVES[8:]])
    forger = note.Ed25519Signer(ORIGIN, bytes([66]) * 32)
    data = signed(20, made_up.edge.root(), signer=forger)
    assert refused(proof_of(7, data, made_up, entry(99))) == "CFD-A05"  # signed by another key of the same name
    lines = b"".join(str(line).encode() for line in note.parse_note(CHECKPOINT).signatures)
    grafted = checkpoint.text_of(ORIGIN, 20, made_up.edge.root()).encode() + b"\n" + lines
    assert refused(proof_of(7, grafted, made_up, entry(99))) == "CFD-A05"  # honest signatures under it
    resized = checkpoint.text_of(ORIGIN, 19, TREE.edge.root()).encode() + b"\n" + lines
    assert refused(proof_of(7, resized, leaf=LEAVES[7])) == "CFD-A05"
    owner = signed(20, made_up.edge.root())
    assert refused(proof_of(7, owner, made_up, entry(99))) == "CFD-A06"  # by the owner, but nobody else saw it
    foreign = signed(20, TREE.edge.root(), origin=ORIGIN.replace("/1", "/2"))
    assert refused(proof_of(7, foreign, leaf=LEAVES[7])) == "CFD-A05"
    assert refused(proof_of(7, leaf=entry(99))) == "CFD-A04"
    assert refused(proof_of(8, leaf=LEAVES[7])) == "CFD-A04"


def test_a_proof_is_of_one_entry() -> None:
    assert refused(proof_of(7)) == "CFD-A04"
    assert refused(proof_of(7, leaf=LEAVES[7]), LEAVES[8]) == "CFD-A04"


def test_an_entry_of_another_log_is_none_of_this() -> None:
    moved = entry(3, ORIGIN.replace("cleveland", "hungary"))
    tree = Grown([leaf_hash(moved)])
    data = cosigned(signed(1, tree.edge.root()), COORDINATOR, HUNGARY, SWITZERLAND)
    assert refused(proof_of(0, data, tree, moved)) == "CFD-A09"


def test_where_the_writers_key_is_known_its_signature_is_checked() -> None:
    def unknown(name: str, key_id: bytes) -> note.VerifierKey:
        raise EntryRefused(f"writer key {name} is not known", code="CFD-A10")

    with pytest.raises(EntryRefused):
        proof_file.check(proof_of(7, leaf=LEAVES[7]), POLICY, writer_key=unknown)


def test_growth_is_proved_between_checkpoints_of_one_log_only() -> None:
    tree = Grown(BOOK.leaf_hashes)
    proof = proofs.prove_consistency(tree, 200, 300)
    old, new = opened(signed(200, BOOK.root(200))), opened(DATA)
    proofs.check_consistency(old, new, proof)
    with pytest.raises(ProofRefused, match="doesn't show the old root"):
        proofs.check_consistency(opened(signed(200, bytes(32))), new, proof)
    other = note.Ed25519Signer(ORIGIN.replace("cleveland", "hungary"), bytes([1]) * 32)
    data = signed(300, BOOK.root(300), signer=other, origin=other.key.name)
    foreign = checkpoint.open_checkpoint(data, origin=other.key.name, log_keys=[other.key])
    with pytest.raises(ProofRefused, match="two logs"):
        proofs.check_consistency(old, foreign, proof)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"c2sp.org/tlog-proof@v1\n",
        b"c2sp.org/tlog-proof@v1\n\n" + CHECKPOINT,
        b"c2sp.org/tlog-proof@v1\nextra \nindex 1\n\n" + CHECKPOINT,
        b"c2sp.org/tlog-proof@v1\nextra YQ==\n\n" + CHECKPOINT,
        b"c2sp.org/tlog-proof@v1\nindex 1\nextra YQ==\n\n" + CHECKPOINT,
        b"c2sp.org/tlog-proof@v1\nindex 9223372036854775807\n\n" + CHECKPOINT,
        b"c2sp.org/tlog-proof@v1\nindex \xd9\xa1\n\n" + CHECKPOINT,
        b"c2sp.org/tlog-proof@v1\nindex 1\n\n" + CHECKPOINT + bytes(proof_file.MAX_BYTES),
    ],
)
def test_a_malformed_proof_file_is_refused(data: bytes) -> None:
    with pytest.raises(NoteRefused):
        proof_file.ProofFile.parse(data)


# --- what a witness answers -----------------------------------------------------------------------------------


def request(old_size: int, data: bytes, proof: proofs.Proof = ()) -> witness.AddCheckpoint:
    return witness.AddCheckpoint.parse(bytes(witness.AddCheckpoint(old_size, proof, checkpoint.parse(data))))


def test_two_histories_are_kept_as_proof_whatever_the_answer_was() -> None:
    party = party_of("hungary")
    first = witness.step(party, witness.Seen(), request(0, DATA), NOW_S)
    assert (first.status, first.seen.size, first.fork) == (witness.Status.COSIGNED, 300, None)
    other = signed(300, hashlib.sha256(b"another history").digest())
    for old_size, status in ((300, 422), (0, 409), (301, 400)):
        answer = witness.step(party, first.seen, request(old_size, other), NOW_S)
        assert (answer.status, answer.seen) == (status, first.seen)
        assert answer.fork == witness.Fork(ORIGIN, 300, (DATA, other))
    longer = witness.step(party, first.seen, request(300, signed(301, bytes(32)), (bytes(32),)), NOW_S)
    assert (longer.status, longer.fork) == (witness.Status.CONTRADICTED, None)  # a suspicion only


def test_two_keys_that_sign_two_roots_are_no_proof_against_either() -> None:
    second = note.Ed25519Signer(ORIGIN, bytes([77]) * 32)
    party = witness.Witness({ORIGIN: (LOG.key, second.key)}, (HUNGARY,))
    other = signed(300, bytes(32), signer=second)
    seen = witness.Seen(300, BOOK.root(300), DATA)
    assert witness.step(party, seen, request(300, other), NOW_S).fork is None
    gone = witness.Witness({ORIGIN: (second.key,)}, (HUNGARY,))
    answer = witness.step(gone, seen, request(300, other), NOW_S)
    assert (answer.status, answer.fork) == (witness.Status.CONTRADICTED, None)


def test_an_empty_log_may_be_cosigned_and_has_one_root() -> None:
    party = party_of("hungary")
    empty = witness.step(party, witness.Seen(), request(0, signed(0, BOOK.root(0))), NOW_S)
    assert (empty.status, empty.seen.size) == (200, 0)
    assert witness.step(party, empty.seen, request(0, DATA), NOW_S).seen.size == 300
    assert witness.step(party, witness.Seen(), request(0, signed(0, bytes(32))), NOW_S).status == 422
    assert witness.step(party, witness.Seen(), request(0, DATA, (bytes(32),)), NOW_S).status == 422


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"old 0\n" + DATA,
        b"old 00\n\n" + DATA,
        b"old -1\n\n" + DATA,
        b"old 9223372036854775808\n\n" + DATA,
        b"old 0 \n\n" + DATA,
        b"old \xd9\xa1\n\n" + DATA,
        b"old 0\nYQ==\n\n" + DATA,
        b"old 0\n\n",
        b"old 0\n\n" + DATA + bytes(witness.MAX_REQUEST_BYTES),
    ],
)
def test_a_malformed_request_is_refused(body: bytes) -> None:
    with pytest.raises(NoteRefused):
        witness.AddCheckpoint.parse(body)
