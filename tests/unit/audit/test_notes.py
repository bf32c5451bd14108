"""Notes, names and checkpoints that are refused for their form, and private keys that don't show themselves."""

import pytest

from audit import checkpoint, note
from audit.errors import EntryRefused, NoteRefused
from audit.names import Origin

SIGNER = note.Ed25519Signer("heart.example.org/cleveland/audit/1", bytes([1]) * 32)
SIGNED = note.sign_note("text\n", SIGNER)


def line(encoded: str, name: str = "a") -> bytes:
    return f"text\n\n\u2014 {name} {encoded}\n".encode()


@pytest.mark.parametrize(
    "data",
    [
        SIGNED + bytes(note.MAX_NOTE_BYTES),
        b"\xff\n\n" + SIGNED,
        b"\x0b" + SIGNED,
        b"text\n",
        SIGNED[:-1],
        b"text\n\n",
        b"text\n\n- a AAAAAAA=\n",
        line("AAAAAAA=", name="b@d"),
        line("AAAAAA=="),
        line("AAAAAAB="),
        line("AAAAAAA"),
        line("AAAAAAAA\u00e4"),
        b"text\n\n" + b"\xe2\x80\x94 a AAAAAAA=\n" * 129,
    ],
)
def test_a_note_of_another_form_is_refused(data: bytes) -> None:
    with pytest.raises(NoteRefused):
        note.parse_note(data)


def test_a_note_that_nobody_known_signed_proves_nothing() -> None:
    signed = note.parse_note(SIGNED)
    assert note.signers_of(signed, [SIGNER.key]) == (SIGNER.key,)
    with pytest.raises(NoteRefused, match="no known key"):
        note.signers_of(signed, [])
    twin = note.SignatureLine(SIGNER.key.name, SIGNER.key.id, bytes(64))
    with pytest.raises(NoteRefused, match="is wrong"):
        note.signers_of(note.Note(signed.text, (*signed.signatures, twin)), [SIGNER.key])


@pytest.mark.parametrize("text", ["a\n1\n", "\n1\nx\n", "a\n01\nx\n", "a\n9223372036854775808\nx\n", "a\n1\nAAAA\n"])
def test_a_checkpoint_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(NoteRefused):
        checkpoint.parse(note.sign_note(text, SIGNER))


def test_a_private_key_does_not_show_itself() -> None:
    assert "hidden" in repr(SIGNER)
    assert bytes([1]).hex() * 32 not in repr(SIGNER)


@pytest.mark.parametrize("vkey", ["", "a", "a+b", "a+00000000+", "a+00000000+AQ=="])
def test_a_verifier_key_of_another_form_is_refused(vkey: str) -> None:
    with pytest.raises(NoteRefused):
        note.VerifierKey.parse(vkey)


@pytest.mark.parametrize(("federation", "party", "epoch"), [("Heart", "a", 1), ("heart", "A", 1), ("heart", "a", 0)])
def test_a_log_has_a_plain_name(federation: str, party: str, epoch: int) -> None:
    with pytest.raises(EntryRefused):
        Origin(federation, party, epoch)


def test_a_writing_process_has_a_plain_name() -> None:
    assert Origin("heart", "a").writer("cli") == "heart/a/writer/cli"
    with pytest.raises(EntryRefused):
        Origin("heart", "a").writer("Cli")
