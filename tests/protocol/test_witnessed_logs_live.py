"""Real logs that witness each other in one process: what a witness remembers, what a split view leaves behind."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from audit import cosignature, note
from audit.checkpoint import OpenedCheckpoint, open_checkpoint, parse
from audit.cosigned_log import Cosigned, CosignedLog
from audit.errors import LogBehind, LogDamaged, LogFrozen, NoteRefused
from audit.events import Actor, AuditCosigned, WitnessAcknowledged
from audit.log import AuditLog
from audit.trust_file import TrustFolder, write_trust_policy
from audit.witness import AddCheckpoint, Status
from audit.witness_office import WitnessOffice
from federation.edge.audit_trail import begin_log, witness_signer
from federation.edge.clock import SystemClock
from tests.support.rfc6962 import Book
from tests.support.witnessed_trees import Grown

FEDERATION = "heart.example.org"
PARTIES = ("coordinator", "alps", "bern")
BOOK = Book.counted(60)
OTHER_BOOK = Book([*BOOK.leaf_hashes[:5], *(bytes([n]) * 32 for n in range(55))])


def origin_of(party: str) -> str:
    return f"{FEDERATION}/{party}/audit/1"


class Party:
    """One party's home, opened: its log, its witness, and its log before its witnesses."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder / name, name
        self.alarms: list[str] = []
        self.keys = begin_log(self.folder / "audit", federation=FEDERATION, party=name, clock=SystemClock())
        self.log: AuditLog

    def open(self) -> None:
        audit, trust = self.folder / "audit", TrustFolder(self.folder / "trust")
        self.log = AuditLog.open(audit, clock=SystemClock())
        signer = witness_signer(audit, federation=FEDERATION, party=self.name)
        self.office = WitnessOffice(
            self.log, trust, signer, SystemClock(), alarm=lambda _origin, text: self.alarms.append(text)
        )
        self.own = CosignedLog(self.log, trust, SystemClock(), stale_after_s=3600.0, alarm=self.alarms.append)

    def actions(self) -> list[str]:
        from audit.witness_office import events_of

        return [
            action
            for action in ("witness.cosigned", "witness.refused", "audit.cosigned", "witness.stale")
            for _ in self.log.read(lambda snapshot, action=action: events_of(snapshot, action))  # type: ignore[misc]
        ]


@pytest.fixture
def parties(tmp_path: Path) -> Iterator[dict[str, Party]]:
    made = {name: Party(tmp_path, name) for name in PARTIES}
    for party in made.values():
        for name, other in made.items():
            write_trust_policy(
                party.folder / "trust",
                party=name,
                log_keys=[other.keys.log],
                witnesses={one: made[one].keys.witness for one in PARTIES if one != name},
                quorum=2,
            )
        party.open()
    yield made
    for party in made.values():
        party.log.close()


def log_key(party: Party) -> note.Ed25519Signer:
    from audit.key_files import read_key

    return read_key(party.folder / "audit" / "keys" / "log-1.key", origin_of(party.name))


def forged(party: Party, size: int, book: Book) -> bytes:
    """A checkpoint of another tree, by the party's own log key."""
    from audit.checkpoint import sign

    return sign(origin_of(party.name), size, book.root(size), log_key(party))


def first(checkpoint: bytes) -> AddCheckpoint:
    return AddCheckpoint(0, (), parse(checkpoint))


def published(party: Party, about: str | None = None) -> OpenedCheckpoint:
    found = party.own.publish(about=about)
    assert found is not None
    return found


def cosign_all(owner: Party, others: list[Party], about: str | None = None) -> OpenedCheckpoint:
    """Show the owner's newest checkpoint to others, and hand their lines back."""
    shown = published(owner, about)
    for other in others:
        old = other.office.seen(shown.origin).size
        proof = owner.own.growth(shown.size, [old]).get(old, ())
        answer = other.office.answer(AddCheckpoint(old, proof, shown), about=about)
        assert answer.status is Status.COSIGNED
        line = note.SignatureLine.parse(answer.reply.rstrip("\n"))
        owner.own.add([Cosigned(shown.size, shown.root, line)])
    return shown


def hear_all(parties: dict[str, Party]) -> None:
    for party in parties.values():
        party.own.hear({name: b"" for name in PARTIES if name != party.name})


# --- cosigning --------------------------------------------------------------------------------------------------


def test_a_quorum_of_others_makes_a_checkpoint_witnessed_and_it_survives_a_restart(parties: dict[str, Party]) -> None:
    hear_all(parties)
    owner = parties["alps"]
    shown = cosign_all(owner, [parties["coordinator"]], "job/0")
    assert owner.own.newest() is None
    assert owner.own.lacking() == "1 of 2 cosignatures, missing bern"
    cosign_all(owner, [parties["bern"]], "job/0")
    newest = owner.own.newest()
    assert newest is not None
    assert newest.size == shown.size
    assert owner.actions() == ["audit.cosigned"]
    assert parties["bern"].actions() == ["witness.cosigned"]
    owner.log.close()
    owner.open()
    again = owner.own.newest()
    assert again is not None
    assert bytes(again.signed) == bytes(newest.signed)


def test_a_cosignature_is_recorded_once_for_each_log_and_round(parties: dict[str, Party]) -> None:
    hear_all(parties)
    owner, witness = parties["alps"], parties["bern"]
    for about in ("job/0", "job/0", "job/1", None):
        cosign_all(owner, [witness], about)
        owner.log.append(
            AuditCosigned(
                id=owner.log.new_id(),
                decision="allowed",
                actor=Actor(kind="service", id="daemon"),
                size=1,
                root=f"sha256:{'0' * 64}",
                witnesses=[],
            )
        )
    assert witness.actions() == ["witness.cosigned"] * 2


def test_a_lying_relay_adds_no_cosignature(parties: dict[str, Party]) -> None:
    hear_all(parties)
    owner = parties["alps"]
    shown = published(owner)
    stranger = note.Ed25519Signer(f"{FEDERATION}/bern/witness", bytes([7]) * 32, note.COSIGNATURE)
    owner.own.add([Cosigned(shown.size, shown.root, cosignature.cosign(shown, stranger, 1))])
    real = witness_signer(parties["bern"].folder / "audit", federation=FEDERATION, party="bern")
    line = cosignature.cosign(shown, real, 1)
    spoiled = note.SignatureLine(line.name, line.key_id, line.signature[:-1] + b"\0")
    owner.own.add([Cosigned(shown.size, shown.root, spoiled), Cosigned(shown.size + 1, shown.root, line)])
    assert owner.own.lacking() == "0 of 2 cosignatures, missing coordinator, bern"


# --- what a witness remembers -----------------------------------------------------------------------------------


def test_a_witness_remembers_before_it_answers(parties: dict[str, Party]) -> None:
    """Restarted, it knows what it cosigned; a smaller and another tree get nothing."""
    liar, witness = parties["alps"], parties["bern"]
    assert witness.office.answer(first(forged(liar, 30, BOOK))).status is Status.COSIGNED
    witness.log.close()  # whatever the process had in memory is gone
    witness.open()
    assert witness.office.seen(origin_of("alps")).size == 30
    smaller = witness.office.answer(first(forged(liar, 20, BOOK)))
    assert (smaller.status, smaller.reply) == (Status.OTHER_SIZE, "30\n")
    proof = __import__("audit.proofs", fromlist=["proofs"]).prove_consistency(Grown(OTHER_BOOK.leaf_hashes), 30, 40)
    other = witness.office.answer(AddCheckpoint(30, proof, parse(forged(liar, 40, OTHER_BOOK))))
    assert other.status is Status.CONTRADICTED
    assert witness.office.seen(origin_of("alps")).size == 30


def test_forty_racing_first_checkpoints_get_one_history_cosigned(parties: dict[str, Party]) -> None:
    liar, witness = parties["alps"], parties["bern"]
    books = [Book([bytes([number]) * 32] * 7) for number in range(40)]
    answers: list[Status] = []
    start = threading.Barrier(40)

    def ask(book: Book) -> None:
        request = first(forged(liar, 7, book))
        start.wait()
        answers.append(witness.office.answer(request).status)

    threads = [threading.Thread(target=ask, args=(book,)) for book in books]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers.count(Status.COSIGNED) == 1
    assert len(answers) == 40
    assert witness.office.is_forked(origin_of("alps"))


def test_an_asker_that_missed_the_reply_gets_a_cosignature_of_the_same_tree_again(parties: dict[str, Party]) -> None:
    hear_all(parties)
    shown = cosign_all(parties["alps"], [parties["bern"]])
    again = parties["bern"].office.answer(AddCheckpoint(0, (), shown))
    assert again.status is Status.COSIGNED
    last = parties["bern"].office.line_of(shown.origin)
    assert last is not None
    assert last[0].size == shown.size


# --- forks ------------------------------------------------------------------------------------------------------


def test_a_split_view_leaves_two_signed_notes(parties: dict[str, Party]) -> None:
    """Both notes are kept for ever, recorded and said, and stop work with the owner until a person takes note."""
    liar, witness = parties["coordinator"], parties["bern"]
    shown = [forged(liar, 30, BOOK), forged(liar, 30, OTHER_BOOK)]
    witness.office.answer(first(shown[0]))
    refused = witness.office.answer(AddCheckpoint(30, (), parse(shown[1])))
    assert refused.status is Status.CONTRADICTED
    (pair,) = witness.office.forks()
    assert [open_checkpoint(one, origin=pair.origin, log_keys=[log_key(liar).key]).root for one in pair.notes] == [
        BOOK.root(30),
        OTHER_BOOK.root(30),
    ]
    assert witness.alarms == [f"the log {pair.origin} has two histories"]
    assert witness.actions() == ["witness.cosigned"] * 0 + ["witness.refused"]
    witness.log.close()
    witness.open()
    assert witness.office.forks() == (pair,)
    assert witness.office.is_forked(pair.origin)
    witness.log.append(
        WitnessAcknowledged(
            id=witness.log.new_id(),
            decision="allowed",
            actor=Actor(kind="person", id=witness.log.private.pseudonym("alice")),
            log=pair.origin,
            evidence=[pair.digest],
        )
    )
    assert not witness.office.is_forked(pair.origin)
    assert witness.office.forks() == (pair,)


def test_a_signed_checkpoint_beside_the_protocol_proves_a_fork_too(parties: dict[str, Party]) -> None:
    liar, witness = parties["coordinator"], parties["bern"]
    witness.office.answer(first(forged(liar, 30, BOOK)))
    other = open_checkpoint(forged(liar, 30, OTHER_BOOK), origin=origin_of("coordinator"), log_keys=[log_key(liar).key])
    with pytest.raises(NoteRefused) as info:
        witness.office.check_same(other)
    assert info.value.code == "CFD-A08"
    assert witness.office.is_forked(other.origin)


def test_a_proof_that_fails_once_is_a_suspicion_and_twice_a_refusal(parties: dict[str, Party]) -> None:
    liar, witness = parties["alps"], parties["bern"]
    witness.office.answer(first(forged(liar, 30, BOOK)))
    spoiled = AddCheckpoint(30, (bytes(32),), parse(forged(liar, 40, BOOK)))
    assert witness.office.answer(spoiled).status is Status.CONTRADICTED
    assert witness.actions() == []
    witness.office.answer(spoiled)
    assert witness.actions() == ["witness.refused"]
    assert witness.alarms == [f"the log {origin_of('alps')} doesn't show that it only grew"]
    assert not witness.office.is_forked(origin_of("alps"))


# --- after a start ----------------------------------------------------------------------------------------------


def test_a_log_publishes_nothing_before_enough_others_were_heard(parties: dict[str, Party]) -> None:
    owner = parties["alps"]
    assert owner.own.words_missing == 1
    assert owner.own.publish() is None
    owner.own.hear({"stranger": b"", "coordinator": b""})
    assert owner.own.publish() is not None


def test_a_restored_log_learns_it_from_a_peer_and_freezes(parties: dict[str, Party]) -> None:
    owner = parties["alps"]
    longer = forged(owner, 40, BOOK)
    with pytest.raises(LogBehind, match="coordinator cosigned 40 entries"):
        owner.own.hear({"coordinator": longer})
    with pytest.raises(LogFrozen):
        owner.open()
    assert (owner.folder / "audit" / "1" / "checkpoint").read_bytes() == longer


def test_a_rewritten_log_learns_it_from_a_peer_and_freezes(parties: dict[str, Party]) -> None:
    owner = parties["alps"]
    with pytest.raises(LogDamaged) as info:
        owner.own.hear({"coordinator": forged(owner, 2, BOOK)})
    assert info.value.code == "CFD-A08"
    with pytest.raises(LogFrozen):
        owner.open()


def test_a_log_without_quorum_for_too_long_says_so_once(parties: dict[str, Party]) -> None:
    hear_all(parties)
    owner = parties["alps"]
    published(owner)
    owner.own._stale_after_s = -1.0
    owner.own.look()
    owner.own.look()
    assert owner.actions() == ["witness.stale"]
    assert len(owner.alarms) == 1
