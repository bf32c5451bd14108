"""Who holds no key of a log, or another log's key, writes no entry of it; who holds its keys leaves no gap unseen."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from audit import canonical, note
from audit.command import main
from audit.entry import write_leaf
from audit.errors import AuditError, EntryRefused
from audit.events import Actor, DataRetired, Dataset
from audit.findings import Verification
from audit.frame import HEADER, hash_text, read_frame
from audit.key_files import read_key
from audit.merkle import leaf_hash
from audit.reading import find_log, read_rows
from audit.recording import record
from tests.support.audit_logs import (
    DAEMON,
    FEDERATION,
    HASH,
    ORIGIN,
    PARTY,
    HandClock,
    closed_home,
    create,
    draft,
    event_id,
    killed_home,
    leaves_of,
    no_home_of_the_machine,
    resigned,
    set_leaf,
    verified,
)

Forge = Callable[[Path, bytes], bytes]
ACTION = b',"action":"data.retired"}'
DAEMON_KEY, CLI_KEY = f"{FEDERATION}/{PARTY}/writer/daemon", f"{FEDERATION}/{PARTY}/writer/cli"


@pytest.fixture(autouse=True)
def _no_home_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    no_home_of_the_machine(monkeypatch, tmp_path)


def signer(home: Path, process: str = "daemon") -> note.Ed25519Signer:
    return read_key(home / "audit" / "keys" / f"writer-{process}.key", f"{FEDERATION}/{PARTY}/writer/{process}")


def event_of(leaf: bytes) -> dict[str, Any]:
    return dict(read_frame(leaf, origin=None)[0])


def signed_by_hand(line: bytes, key: note.Ed25519Signer, *, origin: str = ORIGIN) -> bytes:
    """A leaf whose second line is any bytes, as who holds a writer's key could make."""
    return note.sign_note(f"{HEADER}{origin}\n{line.decode()}\n", key)


def another_writers_field(home: Path, leaf: bytes) -> bytes:
    event = event_of(leaf)
    event["writer"] = CLI_KEY
    return signed_by_hand(canonical.encode(event), signer(home))


def second_signature(home: Path, leaf: bytes) -> bytes:
    again = note.sign_note(leaf.decode().split("\n\n")[0] + "\n", signer(home, "cli"))
    return leaf + again.split(b"\n\n")[1]


FORGED: list[tuple[str, Forge, str]] = [
    (
        "a key of the forger's own, under the writer's name",
        lambda home, leaf: write_leaf(ORIGIN, event_of(leaf), note.Ed25519Signer(DAEMON_KEY, bytes(32))),
        "CFD-A10",
    ),
    (
        "a key of the forger's own, under a name of its own",
        lambda home, leaf: write_leaf(
            ORIGIN,
            {**event_of(leaf), "writer": f"{FEDERATION}/{PARTY}/writer/other"},
            note.Ed25519Signer(f"{FEDERATION}/{PARTY}/writer/other", bytes(32)),
        ),
        "CFD-A10",
    ),
    ("the writer's key id over another signature", lambda home, leaf: leaf[:-10] + b"AAAAAAAA=\n", "CFD-A10"),
    ("another writer named in the entry", another_writers_field, "CFD-A09"),
    (
        "an entry of another log of the same writer",
        lambda home, leaf: write_leaf(ORIGIN.replace("/1", "/2"), event_of(leaf), signer(home)),
        "CFD-A09",
    ),
    ("a checkpoint", lambda home, leaf: (home / "audit" / "1" / "checkpoint").read_bytes(), "CFD-A09"),
    ("a second signature", second_signature, "CFD-A09"),
    ("no signature", lambda home, leaf: leaf.split(b"\n\n")[0] + b"\n\n", "CFD-A09"),
    ("a cut entry", lambda home, leaf: leaf[: len(leaf) // 2], "CFD-A09"),
    ("an entry longer than any", lambda home, leaf: leaf + b"x" * 70_000, "CFD-A09"),
    (
        "fields in another order",
        lambda home, leaf: signed_by_hand(
            b"{" + canonical.encode(event_of(leaf)).removeprefix(b'{"action":"data.retired",')[:-1] + ACTION,
            signer(home),
        ),
        "CFD-A09",
    ),
]


def tail_replaced(home: Path, leaf: bytes) -> Verification:
    """What a log proves whose last entry, which nobody signed a checkpoint over yet, is exchanged."""
    set_leaf(home, len(leaves_of(home)) - 1, leaf, row_too=True)
    return verified(home)


@pytest.mark.parametrize(("forge", "code"), [case[1:] for case in FORGED], ids=[case[0] for case in FORGED])
def test_a_leaf_has_one_writer_and_one_log(tmp_path: Path, forge: Forge, code: str) -> None:
    home = killed_home(tmp_path)
    last = len(leaves_of(home)) - 1
    result = tail_replaced(home, forge(home, leaves_of(home)[last]))
    assert (code, f"entry {last}") in [(flaw.code, flaw.where) for flaw in result.flaws]
    with pytest.raises(AuditError):
        list(read_rows(find_log(home)))


@pytest.mark.parametrize("dropped", [2, 4, 7])
def test_writer_chains_have_no_gap(tmp_path: Path, dropped: int) -> None:
    """An entry is gone from a tree that the log's own key signed anew: its writer's next one misses it."""
    home = closed_home(tmp_path)
    leaves = leaves_of(home)
    del leaves[dropped]
    resigned(home, leaves)
    assert [(flaw.code, flaw.where) for flaw in verified(home).flaws] == [("CFD-A11", f"entry {dropped}")]


def test_an_id_that_comes_again_in_a_tree_signed_anew_is_named(tmp_path: Path) -> None:
    home = closed_home(tmp_path)
    leaves = leaves_of(home)
    last = event_of(leaves[-1])
    again = {**event_of(leaves[4]), "seq": last["seq"] + 1, "prev": hash_text(leaf_hash(leaves[-1]))}
    leaves.append(write_leaf(ORIGIN, {**again, "t_us": last["t_us"], "mono_us": last["mono_us"]}, signer(home)))
    resigned(home, leaves)
    named = {flaw.where for flaw in verified(home).flaws if flaw.code in ("CFD-A01", "CFD-A12")}
    assert named == {f"entry {len(leaves) - 1}"}


HOSTILE = [
    pytest.param("heart\n— f/p/writer/daemon AAAA", id="a new line with a signature"),
    pytest.param("heart\r", id="a carriage return"),
    pytest.param("heart\x00", id="NUL"),
    pytest.param("heart\x1b[2J", id="a terminal's code"),
    pytest.param("\u202etraeh", id="text that runs backwards"),
    pytest.param("he\u0430rt", id="a letter of another script"),
    pytest.param("heart\u2028", id="a line separator"),
    pytest.param("heart\ud800", id="half a character"),
    pytest.param("he\u200bart", id="a letter without width"),
    pytest.param("h" * 100_000, id="100 kB"),
    pytest.param("'; DROP TABLE entry; --", id="SQL"),
    pytest.param("=HYPERLINK(1)", id="a formula"),
    pytest.param("<script>", id="a tag"),
    pytest.param("../../etc/passwd", id="a path upwards"),
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_no_token_and_enters_no_leaf(tmp_path: Path, text: str) -> None:
    """Neither a caller, nor a local process over the socket, nor who holds the writer's key gets it into a log."""
    with pytest.raises(ValidationError):
        Dataset(id=text, version=HASH)
    with create(tmp_path, serve_socket=True) as log:
        unchecked = draft().body() | {"dataset": {"id": text, "version": HASH}}
        with pytest.raises((AuditError, UnicodeEncodeError)):
            record(tmp_path / "audit", _Unchecked(unchecked), clock=HandClock())  # type: ignore[arg-type]
        log.append(draft())
        size = log.size
    assert len(leaves_of(tmp_path)) == size + 1
    assert all(text.encode("utf-8", "surrogatepass") not in leaf for leaf in leaves_of(tmp_path))


class _Unchecked:
    """A draft that a hostile process made without our models."""

    def __init__(self, body: dict[str, Any]) -> None:
        self._body = body

    def body(self) -> dict[str, Any]:
        return self._body


@pytest.mark.parametrize("text", [case for case in HOSTILE if case.id != "half a character"])
def test_hostile_text_that_the_writers_own_key_signed_is_named_and_never_shown(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    home = killed_home(tmp_path / "home")
    last = len(leaves_of(home)) - 1
    event = event_of(leaves_of(home)[last])
    event["dataset"] = {"id": text, "version": HASH}
    result = tail_replaced(home, signed_by_hand(canonical.encode(event), signer(home)))
    assert {flaw.code for flaw in result.flaws if flaw.where == f"entry {last}"} == {"CFD-A09"}
    with pytest.raises(AuditError):
        main(["show", str(home), str(last)])
    assert capsys.readouterr().out == ""


def test_the_committer_signs_under_its_own_name_whatever_a_draft_says(tmp_path: Path) -> None:
    """A caller can't name writer, place in the chain or time: those are the committer's alone."""
    with create(tmp_path) as log:
        for name, value in (("writer", CLI_KEY), ("seq", 7), ("prev", HASH), ("t_us", 1), ("boot", "0" * 32), ("v", 2)):
            with pytest.raises(EntryRefused):
                log.append_body({**draft().body(), name: value})
        receipt = log.append(
            DataRetired(
                id=event_id(),
                decision="allowed",
                actor=Actor(kind="service", id="daemon"),
                dataset=Dataset(id="heart", version=HASH),
            )
        )
    assert receipt.event["writer"] == DAEMON_KEY
    assert receipt.event["actor"]["id"] == DAEMON.id
