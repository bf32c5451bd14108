"""What `verify` says of witnesses, of a reader's own checkpoints, and of key entries that can't be."""

from pathlib import Path
from typing import Any

import pytest

from audit import checkpoint, key_files, note
from audit.findings import Flaw, Verdict, Verification
from audit.reading import find_log
from audit.trust import parse_policy
from audit.trust_file import write_trust_policy
from audit.verification import Reader, verify
from tests.support.audit_logs import ORIGIN, closed_home, create, draft, sql

HUNGARY = note.Ed25519Signer("heart.example.org/hungary/witness", bytes([4]) * 32, note.COSIGNATURE)
COORDINATOR = note.Ed25519Signer("heart.example.org/coordinator/witness", bytes([3]) * 32, note.COSIGNATURE)


def cosigned(data: bytes, signer: note.Ed25519Signer, time_s: int = 1_767_225_610) -> bytes:
    text = note.parse_note(data).text
    signature = signer.sign(f"cosignature/v1\ntime {time_s}\n{text}".encode())
    line = note.SignatureLine(signer.key.name, signer.key.id, time_s.to_bytes(8, "big") + signature)
    return data + str(line).encode()


def verified(home: Path, data: bytes, **reader: Any) -> Verification:
    vkey = str(key_files.read_key(home / "audit" / "keys" / "log-1.key", ORIGIN).key)
    witnesses = {"hungary": str(HUNGARY.key), "coordinator": str(COORDINATOR.key)}
    path = write_trust_policy(home / "pinned", party="cleveland", log_keys=[vkey], witnesses=witnesses, quorum=2)
    policy = parse_policy(path.read_text(encoding="utf-8"))
    with find_log(home).moment() as (snapshot, _):
        return verify(snapshot, data, Reader(policy, str(path), **reader))


def test_a_quorum_of_witnesses_is_proved(tmp_path: Path) -> None:
    home = closed_home(tmp_path)
    data = cosigned(cosigned(find_log(home).checkpoint_bytes(), HUNGARY), COORDINATOR)
    result = verified(home, data)
    assert (result.verdict, result.cosigned, result.quorum, result.notes) == (Verdict.VERIFIED, 9, 2, [])
    assert "cosigned up to 9 (quorum 2)" in result.proved[0]


def grown_home(home: Path) -> bytes:
    """A log whose first checkpoint on demand was cosigned by a quorum, kept, and which grew since; return that."""
    with create(home) as log:
        log.append(draft())
        kept = cosigned(cosigned(log.checkpoint(), HUNGARY), COORDINATOR)
        log.keep_cosigned(checkpoint.parse(kept).size, kept, quorum=True)
        for _ in range(3):
            log.append(draft())
    return kept


def test_entries_behind_the_newest_quorum_are_said_to_be_not_yet_cosigned(tmp_path: Path) -> None:
    grown_home(tmp_path)
    result = verified(tmp_path, find_log(tmp_path).checkpoint_bytes())
    assert (result.verdict, result.cosigned, result.size) == (Verdict.VERIFIED, 3, 7)
    assert result.proved[0].startswith("7 entries, cosigned up to 3 (quorum 2); all bytes")
    what = "signed, and not yet cosigned by a quorum of 2"
    assert result.notes == [Flaw("CFD-A45", "entries 3 to 6", what)]


@pytest.mark.parametrize(
    ("what", "code"), [("garbage", "CFD-A05"), ("another root", "CFD-A04"), ("more entries", "CFD-A07")]
)
def test_a_kept_checkpoint_that_the_entries_contradict_is_a_flaw(tmp_path: Path, what: str, code: str) -> None:
    kept = checkpoint.parse(grown_home(tmp_path))
    signer = key_files.read_key(tmp_path / "audit" / "keys" / "log-1.key", ORIGIN)
    size = 3 if what == "another root" else 30
    note_ = b"garbage" if what == "garbage" else checkpoint.sign(ORIGIN, size, bytes(32), signer)
    sql(tmp_path, "UPDATE checkpoint SET note = ?, size = ?", note_, max(size, kept.size))
    result = verified(tmp_path, find_log(tmp_path).checkpoint_bytes())
    assert [(flaw.code, flaw.where) for flaw in result.flaws] == [(code, "cosigned checkpoint")]


def test_too_few_witnesses_are_not_yet_a_quorum(tmp_path: Path) -> None:
    home = closed_home(tmp_path)
    twice = cosigned(cosigned(find_log(home).checkpoint_bytes(), HUNGARY), HUNGARY, time_s=1_767_225_700)
    result = verified(home, twice)
    assert (result.verdict, result.cosigned) == (Verdict.VERIFIED, 0)
    assert result.notes == [Flaw("CFD-A45", "file checkpoint", "not yet witnessed: 1 of 2 cosignatures")]


def test_a_wrong_cosignature_counts_for_nothing(tmp_path: Path) -> None:
    home = closed_home(tmp_path)
    data = cosigned(find_log(home).checkpoint_bytes(), HUNGARY, time_s=0)
    result = verified(home, data)
    assert result.cosigned == 0
    assert result.notes[0].code == "CFD-A45"


@pytest.mark.parametrize("data", [b"garbage", b""])
def test_a_readers_checkpoint_that_is_none_is_a_flaw(tmp_path: Path, data: bytes) -> None:
    home = closed_home(tmp_path)
    result = verified(home, find_log(home).checkpoint_bytes(), against={"kept": data})
    assert [(flaw.code, flaw.where) for flaw in result.flaws] == [("CFD-A05", "kept")]


def test_a_readers_checkpoint_of_another_root_proves_a_fork(tmp_path: Path) -> None:
    home = closed_home(tmp_path)
    signer = key_files.read_key(home / "audit" / "keys" / "log-1.key", ORIGIN)
    other = checkpoint.sign(ORIGIN, 4, bytes(32), signer)
    result = verified(home, find_log(home).checkpoint_bytes(), against={"kept": other})
    assert [(flaw.code, flaw.where) for flaw in result.flaws] == [("CFD-A08", "kept")]


def test_growing_entry_by_entry_keeps_every_checkpoint_consistent(tmp_path: Path) -> None:
    kept = {}
    with create(tmp_path) as log:
        for number in range(12):
            log.append(draft())
            kept[f"kept{number}"] = log.checkpoint()
    result = verified(tmp_path, find_log(tmp_path).checkpoint_bytes(), against=kept)
    assert result.flaws == []
    assert len(result.proved) == 13


def test_a_checkpoint_by_a_log_key_that_the_log_does_not_declare_is_a_flaw(tmp_path: Path) -> None:
    """A key that a reader pinned by mistake, or that was revoked before, signs nothing of this log."""
    home = closed_home(tmp_path)
    stranger = note.Ed25519Signer(ORIGIN, bytes([9]) * 32)
    newest = checkpoint.parse(find_log(home).checkpoint_bytes())
    policy = parse_policy(f"log {stranger.key}\nquorum none\n")
    data = checkpoint.sign(ORIGIN, newest.size, newest.root, stranger)
    with find_log(home).moment() as (snapshot, _):
        result = verify(snapshot, data, Reader(policy, "pinned"))
    assert [(flaw.code, flaw.where) for flaw in result.flaws] == [("CFD-A10", "file checkpoint")]
    kept = {"kept": data}
    both = parse_policy(f"log {stranger.key}\nlog {newest_key(home)}\nquorum none\n")
    with find_log(home).moment() as (snapshot, signed):
        result = verify(snapshot, signed, Reader(both, "pinned", against=kept))
    assert [(flaw.code, flaw.where) for flaw in result.flaws] == [("CFD-A10", "kept")]


def newest_key(home: Path) -> note.VerifierKey:
    return key_files.read_key(home / "audit" / "keys" / "log-1.key", ORIGIN).key
