"""The audit log's known answers: what must come out, byte for byte, and what must be refused."""

import enum  # noqa: F401 (named by expressions of the vectors)
import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from audit import (
    canonical,
    checkpoint,
    commitments,
    cosignature,
    merkle,
    note,
    proof_file,
    proofs,
    quorum,
    rendering,
    tiles,
    trust,
    witness,
)
from audit.entry import draft_digest, draft_from, draft_of, open_leaf, write_leaf
from audit.errors import EntryRefused, NotCanonical, NoteRefused, ProofRefused
from audit.frame import hash_text
from audit.history import History
from audit.keyring import Keyring
from audit.tiles import Edge

KNOWN: dict[str, Any] = json.loads(Path(__file__).with_name("audit_kat.json").read_text(encoding="utf-8"))
ORIGIN = KNOWN["entries"]["origin"]
WRITER = note.VerifierKey.parse(KNOWN["entries"]["writer_vkey"])
LOG_KEY = note.VerifierKey.parse(KNOWN["keys"]["log"]["vkey"])


def named(group: list[dict[str, Any]]) -> list[Any]:
    return [pytest.param(case, id=case["name"]) for case in group]


def bytes_of(case: dict[str, Any]) -> bytes:
    # The expressions are those of the vectors file beside this test.
    return bytes.fromhex(case["hex"]) if "hex" in case else str(eval(case["build"])).encode()  # noqa: S307


@pytest.mark.parametrize("case", named(KNOWN["canonical"]["accept"]))
def test_a_value_has_its_one_canonical_form(case: dict[str, Any]) -> None:
    encoded = canonical.encode(case["value"])
    assert encoded == case["canonical"].encode()
    assert hashlib.sha256(encoded).hexdigest() == case["sha256"]
    assert canonical.decode(encoded) == case["value"]


@pytest.mark.parametrize("case", named(KNOWN["canonical"]["refuse"]))
def test_bytes_that_are_not_canonical_are_refused(case: dict[str, Any]) -> None:
    with pytest.raises(NotCanonical):
        canonical.decode(bytes_of(case))


@pytest.mark.parametrize("case", named(KNOWN["canonical"]["refuse_values"]))
def test_values_outside_the_subset_are_refused(case: dict[str, Any]) -> None:
    with pytest.raises(NotCanonical):
        canonical.encode(eval(case["python"]))  # noqa: S307


@pytest.mark.parametrize("role", ["log", "writer", "witness_coordinator", "witness_hungary"])
def test_a_key_has_its_id_and_its_text_form(role: str) -> None:
    known = KNOWN["keys"][role]
    key = note.VerifierKey(known["name"], known["type"], bytes.fromhex(known["public"]))
    assert key.id.hex() == known["key_id"]
    assert str(key) == known["vkey"]
    assert note.VerifierKey.parse(known["vkey"]) == key
    if known["type"] == note.ED25519:
        assert note.Ed25519Signer(known["name"], bytes([known["seed_byte"]]) * 32).key == key


def test_a_key_of_the_later_kind_is_read_by_its_text_form() -> None:
    known = KNOWN["keys"]["witness_switzerland_mldsa44"]
    key = note.VerifierKey.parse(known["vkey"])
    assert (key.kind, key.id.hex(), str(key)) == (note.MLDSA44, known["key_id"], known["vkey"])


def test_the_example_note_of_the_format_opens() -> None:
    example = KNOWN["keys"]["c2sp_example"]
    key = note.VerifierKey.parse(example["vkey"])
    signed = note.parse_note(example["note"].encode())
    assert note.signers_of(signed, [key]) == (key,)
    assert bytes(signed) == example["note"].encode()


@pytest.mark.parametrize("case", named(KNOWN["keys"]["refuse_vkeys"]))
def test_a_malformed_verifier_key_is_refused(case: dict[str, Any]) -> None:
    with pytest.raises(NoteRefused):
        note.VerifierKey.parse(case["vkey"])


def test_a_pseudonym_is_keyed_by_the_person() -> None:
    known = KNOWN["pseudonym"]
    assert commitments.pseudonym_of(bytes.fromhex(known["k_subject"]), known["id"]) == known["pseudonym"]


@pytest.mark.parametrize("case", KNOWN["commitment"]["cases"])
def test_a_commitment_is_salted_and_names_its_field(case: dict[str, str]) -> None:
    value = bytes.fromhex(case["value_hex"])
    assert commitments.commitment_of(bytes.fromhex(case["salt"]), case["field"], value) == case["commitment"]


def writer_key(name: str, key_id: bytes) -> note.VerifierKey:
    return Keyring.opened(KNOWN["entries"]["log"][0]["event"]).writer(name, key_id, 0)


@pytest.mark.parametrize("case", KNOWN["entries"]["log"], ids=lambda case: str(case["index"]))
def test_a_draft_becomes_its_leaf_and_the_leaf_its_draft(case: dict[str, Any]) -> None:
    assert draft_from(case["draft"]).body() == case["draft"]
    assert draft_digest(case["draft"]) == case["draft_digest"]
    assert canonical.encode(case["event"]) == case["body"].encode()
    signer = note.Ed25519Signer(WRITER.name, bytes([2]) * 32)
    leaf = write_leaf(ORIGIN, case["event"], signer)
    assert leaf == case["leaf"].encode()
    assert len(leaf) == case["leaf_bytes"]
    assert hashlib.sha256(leaf).hexdigest() == case["leaf_sha256"]
    assert merkle.leaf_hash(leaf).hex() == case["leaf_hash"]
    opened = open_leaf(leaf, origin=ORIGIN, writer_key=writer_key)
    assert opened.event == case["event"]
    assert opened.interpreted
    assert draft_of(opened.event) == case["draft"]


def test_the_five_entries_are_one_log() -> None:
    history, edge = History(ORIGIN), Edge()
    for case in KNOWN["entries"]["log"]:
        opened = history.open_next(case["leaf"].encode())
        assert history.flaws_of(opened.event) == []
        history = history.after(opened.event, opened.leaf_hash)
        edge = edge.grow([opened.leaf_hash]).edge
    assert history.size == edge.size == KNOWN["checkpoint"]["size"]
    assert edge.root().hex() == KNOWN["checkpoint"]["root"]


@pytest.mark.parametrize("case", named(KNOWN["entries"]["refuse"]))
def test_a_leaf_that_is_not_an_entry_of_this_log_is_refused(case: dict[str, Any]) -> None:
    with pytest.raises(EntryRefused):
        open_leaf(case["leaf"].encode(), origin=ORIGIN, writer_key=writer_key)


def test_roots_of_counted_leaves() -> None:
    wanted = {case["size"]: case["root"] for case in KNOWN["merkle_roots"]["roots"]}
    frontier = merkle.Frontier()
    for size in range(max(wanted) + 1):
        if size in wanted:
            assert frontier.root().hex() == wanted[size], size
        frontier = frontier.add(merkle.leaf_hash(str(size).encode()))


def test_roots_of_the_certificate_transparency_leaves() -> None:
    leaves = [bytes.fromhex(leaf) for leaf in KNOWN["rfc6962_vector"]["leaves_hex"]]
    for case in KNOWN["rfc6962_vector"]["roots"]:
        assert merkle.root_of(leaves[: case["size"]]).hex() == case["root"]


@cache
def counted_tiles(size: int) -> dict[str, bytes]:
    """The tiles of the tree whose leaf i is the decimal of i, by their paths."""
    grown = tiles.Edge().grow(merkle.leaf_hash(str(index).encode()) for index in range(size)).tiles
    return {tiles.tile_path(tile.level, tile.n, tile.width): tile.hashes for tile in grown}


class Folder:
    """A reader of tiles by their paths."""

    def __init__(self, held: dict[str, bytes], size: int) -> None:
        self.held = held
        self.size = size

    def tile(self, level: int, n: int, width: int) -> bytes:
        path = tiles.tile_path(level, n, tiles.tile_width(level, n, self.size))
        return self.held[path][: 32 * width]


@pytest.mark.parametrize("case", KNOWN["tiles"]["paths"], ids=lambda case: str(case["path"]))
def test_a_tile_has_its_path(case: dict[str, Any]) -> None:
    level = None if case["level"] == "entries" else case["level"]
    path = tiles.entries_path(case["n"], case["width"]) if level is None else tiles.tile_path(level, *place(case))
    assert path == case["path"]
    assert tiles.TilePath.parse(path) == (level, *place(case))


def place(case: dict[str, Any]) -> tuple[int, int]:
    return case["n"], case["width"]


@pytest.mark.parametrize("case", KNOWN["tiles"]["layout"], ids=lambda case: str(case["size"]))
def test_a_tree_has_these_tiles(case: dict[str, Any]) -> None:
    assert tiles.partial_widths(case["size"]) == tuple(level["partial_width"] for level in case["levels"])
    for level in case["levels"]:
        assert (case["size"] >> 8 * level["level"]) // 256 == level["full"]
        assert tiles.tile_width(level["level"], level["full"], case["size"]) == level["partial_width"]
    wanted = sum(level["full"] + (level["partial_width"] > 0) for level in case["levels"])
    assert len(counted_tiles(case["size"])) == wanted


@pytest.mark.parametrize("case", KNOWN["tiles"]["hashes"], ids=lambda case: str(case["path"]))
def test_a_tile_holds_these_hashes(case: dict[str, Any]) -> None:
    assert hashlib.sha256(counted_tiles(70_000)[case["path"]]).hexdigest() == case["sha256"]


def test_the_five_entries_are_one_bundle() -> None:
    known = KNOWN["tiles"]["entry_bundle"]
    leaves = [case["leaf"].encode() for case in KNOWN["entries"]["log"]]
    bundle = tiles.encode_entries(leaves)
    assert tiles.entries_path(0, len(leaves)) == known["path"]
    assert (len(bundle), hashlib.sha256(bundle).hexdigest()) == (known["bytes"], known["sha256"])
    assert tiles.decode_entries(bundle, len(leaves)) == tuple(leaves)


@pytest.mark.parametrize("case", KNOWN["tiles"]["forged"], ids=lambda case: f"{case['size']} {case['tile']}")
def test_a_forged_tile_is_refused(case: dict[str, Any]) -> None:
    size = case["size"]
    honest = counted_tiles(size)
    forged = honest[case["tile"]]
    held = {**honest, case["tile"]: forged[:-1] + bytes([forged[-1] ^ 1])}
    root = tiles.root_from_partial_tiles(Folder(honest, size), size)
    level, n, width = tiles.TilePath.parse(case["tile"])
    assert level is not None
    with pytest.raises(ProofRefused):
        tiles.TrustedTiles(Folder(held, size), size, root).tile(level, n, width)


def test_a_checkpoint_is_signed_and_opened() -> None:
    known = KNOWN["checkpoint"]
    root = bytes.fromhex(known["root"])
    assert checkpoint.text_of(ORIGIN, known["size"], root) == known["text"]
    signer = note.Ed25519Signer(LOG_KEY.name, bytes([1]) * 32)
    assert checkpoint.sign(ORIGIN, known["size"], root, signer) == known["note"].encode()
    opened = checkpoint.open_checkpoint(known["note"].encode(), origin=ORIGIN, log_keys=[LOG_KEY])
    assert (opened.origin, opened.size, opened.root) == (ORIGIN, known["size"], root)
    assert hash_text(opened.root) == "sha256:" + known["root"]


@pytest.mark.parametrize("case", named(KNOWN["checkpoint"]["refuse"]))
def test_a_checkpoint_that_is_not_this_logs_is_refused(case: dict[str, Any]) -> None:
    with pytest.raises(NoteRefused):
        checkpoint.open_checkpoint(case["note"].encode(), origin=ORIGIN, log_keys=[LOG_KEY])


WITNESSES = {"coordinator": 3, "hungary": 4}


def opened(data: str) -> checkpoint.OpenedCheckpoint:
    return checkpoint.open_checkpoint(data.encode(), origin=ORIGIN, log_keys=[LOG_KEY])


def test_witnesses_cosign_a_checkpoint() -> None:
    known = KNOWN["cosignature"]
    data = KNOWN["checkpoint"]["note"]
    for party, seed in WITNESSES.items():
        signer = note.Ed25519Signer(KNOWN["keys"][f"witness_{party}"]["name"], bytes([seed]) * 32, note.COSIGNATURE)
        assert str(signer.key) == KNOWN["keys"][f"witness_{party}"]["vkey"]
        line = cosignature.cosign(opened(data), signer, known[f"time_{party}"])
        assert str(line) == known[f"line_{party}"]
    assert data + known["line_coordinator"] + known["line_hungary"] == known["note_cosigned"]
    key = trust.parse_policy(known["policy"]).witnesses["coordinator"]
    message = cosignature.message_of(opened(data), key, known["time_coordinator"])
    assert message == known["message_coordinator"].encode()


@pytest.mark.parametrize("case", named(KNOWN["cosignature"]["quorum"]))
def test_cosignatures_of_the_policys_witnesses_make_a_quorum(case: dict[str, Any]) -> None:
    known = KNOWN["cosignature"]
    policy = trust.parse_policy(known["policy"])
    lines = {
        2: known["line_coordinator"] + known["line_hungary"],
        1: known["line_coordinator"],
        "coordinator, coordinator": known["line_coordinator"] * 2,
    }
    cosigned = opened(KNOWN["checkpoint"]["note"] + lines[case["lines"]])
    assert quorum.judge(cosigned, policy).met == case["met"]


@pytest.mark.parametrize("case", named(KNOWN["cosignature"]["refuse_lines"]))
def test_a_wrong_cosignature_refuses_the_note(case: dict[str, Any]) -> None:
    policy = trust.parse_policy(KNOWN["cosignature"]["policy"])
    cosigned = opened(KNOWN["checkpoint"]["note"] + case["line"])
    with pytest.raises(NoteRefused):
        cosignature.cosignatures_of(cosigned, policy.witnesses.values())
    with pytest.raises(NoteRefused):
        quorum.judge(cosigned, policy)


def test_a_cosignature_of_the_later_kind_is_checked() -> None:
    known = KNOWN["cosignature_mldsa44"]
    key = note.VerifierKey.parse(KNOWN["keys"]["witness_switzerland_mldsa44"]["vkey"])
    cosigned = opened(KNOWN["checkpoint"]["note"] + known["line"])
    assert cosignature.message_of(cosigned, key, known["time"]).hex() == known["message_hex"]
    assert cosignature.cosignatures_of(cosigned, [key]) == (cosignature.Cosignature(key, known["time"]),)


@pytest.mark.parametrize("case", KNOWN["default_quorum"]["cases"], ids=lambda case: str(case["others"]))
def test_more_than_half_of_the_others_are_the_default_quorum(case: dict[str, int]) -> None:
    assert quorum.default_quorum(case["others"]) == case["quorum"]


def hashes(texts: list[str]) -> list[bytes]:
    return [bytes.fromhex(text) for text in texts]


def checkpoint_of(size: int, root: str) -> checkpoint.OpenedCheckpoint:
    signer = note.Ed25519Signer(LOG_KEY.name, bytes([1]) * 32)
    return opened(checkpoint.sign(ORIGIN, size, bytes.fromhex(root), signer).decode())


@pytest.mark.parametrize("case", KNOWN["inclusion"]["prove"], ids=lambda case: f"{case['index']} of {case['size']}")
def test_an_entry_is_proved(case: dict[str, Any]) -> None:
    size, proof = case["size"], tuple(hashes(case["proof"]))
    folder = Folder(counted_tiles(size), size)
    assert proofs.prove_inclusion(folder, case["index"], size) == proof
    assert proofs.root_at(folder, size).hex() == case["root"]
    leaf_hash = bytes.fromhex(case["leaf_hash"])
    proofs.check_inclusion(leaf_hash, case["index"], proof, checkpoint_of(size, case["root"]))


@pytest.mark.parametrize("case", named(KNOWN["inclusion"]["refuse"]))
def test_what_does_not_prove_an_entry_is_refused(case: dict[str, Any]) -> None:
    leaf_hash, proof = bytes.fromhex(case["leaf_hash"]), hashes(case["proof"])
    with pytest.raises(ProofRefused):
        proofs.check_inclusion(leaf_hash, case["index"], proof, checkpoint_of(case["size"], case["root"]))


@pytest.mark.parametrize(
    "case", KNOWN["consistency"]["prove"], ids=lambda case: f"{case['old_size']} to {case['size']}"
)
def test_growth_is_proved(case: dict[str, Any]) -> None:
    old_size, size, proof = case["old_size"], case["size"], tuple(hashes(case["proof"]))
    folder = Folder(counted_tiles(size), size)
    assert proofs.prove_consistency(folder, old_size, size) == proof
    old, new = checkpoint_of(old_size, case["old_root"]), checkpoint_of(size, case["root"])
    proofs.check_consistency(old, new, proof)


@pytest.mark.parametrize("case", named(KNOWN["consistency"]["refuse"]))
def test_what_does_not_prove_growth_is_refused(case: dict[str, Any]) -> None:
    old, new = checkpoint_of(case["old_size"], case["old_root"]), checkpoint_of(case["size"], case["root"])
    with pytest.raises(ProofRefused):
        proofs.check_consistency(old, new, hashes(case["proof"]))


@pytest.mark.parametrize("form", ["proof", "with_leaf"])
def test_a_proof_file_proves_its_entry(form: str) -> None:
    known, entry = KNOWN["tlog_proof"], KNOWN["entries"]["log"][KNOWN["tlog_proof"]["leaf_index"]]
    leaf = entry["leaf"].encode()
    parsed = proof_file.ProofFile.parse(known[form].encode())
    assert bytes(parsed) == known[form].encode()
    policy = trust.parse_policy(KNOWN["cosignature"]["policy"])
    found = proof_file.check(parsed, policy, leaf=None if form == "with_leaf" else leaf, writer_key=writer_key)
    assert (found.index, found.leaf_hash.hex(), found.event) == (2, entry["leaf_hash"], entry["event"])
    assert (found.quorum.witnessed, found.writer_checked) == (True, True)


@pytest.mark.parametrize("case", named(KNOWN["tlog_proof"]["refuse"]))
def test_a_proof_file_that_proves_nothing_is_refused(case: dict[str, Any]) -> None:
    leaf = KNOWN["entries"]["log"][KNOWN["tlog_proof"]["leaf_index"]]["leaf"].encode()
    policy = trust.parse_policy(KNOWN["cosignature"]["policy"])
    with pytest.raises((NoteRefused, ProofRefused)):
        proof_file.check(proof_file.ProofFile.parse(case["proof"].encode()), policy, leaf=leaf)


def test_a_witness_answers_by_its_rule() -> None:
    known = KNOWN["keys"]["witness_coordinator"]
    signer = note.Ed25519Signer(known["name"], bytes([3]) * 32, note.COSIGNATURE)
    party = witness.Witness({ORIGIN: (LOG_KEY,)}, (signer,))
    seen = witness.Seen()
    for case in KNOWN["add_checkpoint"]["steps"]:
        try:
            request = witness.AddCheckpoint.parse(case["body"].encode())
        except NoteRefused:
            assert case["status"] == witness.Status.UNREADABLE, case["name"]
            continue
        assert bytes(request) == case["body"].encode()
        answer = witness.step(party, seen, request, 1_767_225_610)
        seen = answer.seen
        assert (answer.status, seen.size) == (case["status"], case["stored_size_after"]), case["name"]
        assert answer.reply == case.get("reply", answer.reply if answer.status == 200 else "")
        assert (answer.fork is not None) == ("a fork" in case["name"])
        if answer.status == witness.Status.COSIGNED:
            cosigned = opened(bytes(request.checkpoint.signed).decode() + answer.reply)
            assert len(cosignature.cosignatures_of(cosigned, [signer.key])) == 1


@pytest.mark.parametrize("case", KNOWN["csv_cells"]["cases"], ids=lambda case: repr(case["text"]))
def test_a_csv_cell_is_no_formula_and_gives_its_text_back(case: dict[str, str]) -> None:
    cell = rendering.csv_cell(case["text"])
    assert cell == case["cell"]
    assert cell.removeprefix("'") == case["text"] or cell == case["text"]
