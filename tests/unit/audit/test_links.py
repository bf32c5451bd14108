"""`verify --peer`: a coordinator's log and a site's, side by side; who deletes in one contradicts the other."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from audit.command import main
from audit.errors import LogUnreadable
from audit.events import Actor, Egress, JobAccepted, ModelAccepted, ModelReleased, Peer, UpdateReceived, UpdateSent
from audit.findings import Verification
from audit.frame import hash_text
from audit.links import Links
from audit.peers import check_peers
from audit.proofs import root_at
from audit.reading import find_log, origin_of
from audit.receipt import Receipt
from tests.support.audit_logs import (
    DAEMON,
    HASH,
    HEART,
    PARTY,
    closed_home,
    create,
    event_id,
    leaves_of,
    no_home_of_the_machine,
    reopen,
    resigned,
)

Captured = pytest.CaptureFixture[str]
JOB: dict[str, Any] = {"job": "heart-risk-7f3a91"}
SITE = Actor(kind="party", id=PARTY)


@pytest.fixture(autouse=True)
def _no_home_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    no_home_of_the_machine(monkeypatch, tmp_path)


def egress(size: int) -> Egress:
    return Egress(what="update", hash=HASH, bytes=size, to="coordinator", encrypted=True)


def peer_of(home: Path, receipt: Receipt) -> Peer:
    """What one log says of an entry of another: its place under a tree that has it."""
    with find_log(home).checked() as log:
        root = hash_text(root_at(log.tree, receipt.index + 1))
    return Peer(
        origin=receipt.origin,
        leaf_hash=receipt.leaf_hash_text,
        index=receipt.index,
        size=receipt.index + 1,
        root=root,
    )


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """A site that sent two updates, and a coordinator that received them and released a model, with all links."""
    site, coordinator = tmp_path / "site", tmp_path / "coordinator"
    create(site).close()
    with reopen(site) as log:
        sent = [
            log.append(
                UpdateSent(
                    id=event_id(), decision="allowed", actor=DAEMON, round=number, egress=egress(10 + number), **JOB
                )
            )
            for number in range(2)
        ]
        log.checkpoint()
    with create(coordinator, party="coordinator") as log:
        for number, receipt in enumerate(sent):
            log.append(
                UpdateReceived(
                    id=event_id(), decision="allowed", actor=SITE, site=PARTY, round=number,
                    egress=egress(10 + number), peer=peer_of(site, receipt), **JOB,
                )
            )  # fmt: skip
        made: dict[str, Any] = {
            "model": "b" * 64,
            "previous": "c" * 64,
            "sum_digest": "d" * 64,
            "strategy": "FedAvg",
            "round": 1,
            **JOB,
        }
        released = log.append(ModelReleased(id=event_id(), decision="allowed", actor=DAEMON, **made))
        log.checkpoint()
    with reopen(site) as log:
        there = peer_of(coordinator, released)
        log.append(ModelAccepted(id=event_id(), decision="allowed", actor=DAEMON, peer=there, **made))
    return site, coordinator


def compared(one: Path, *others: Path) -> Verification:
    result = Verification(origin=origin_of(find_log(one)))
    check_peers(find_log(one), others, None, result)
    return result


def flaws(result: Verification) -> list[tuple[str, str]]:
    return [(flaw.code, flaw.where) for flaw in result.flaws]


def test_two_logs_that_agree_prove_their_links_from_either_side(
    pair: tuple[Path, Path], tmp_path: Path, capsys: Captured
) -> None:
    site, coordinator = pair
    for one, other in (pair, (coordinator, site)):
        assert main(["verify", str(one), "--peer", str(other), "--format", "json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (
            f"3 links with {origin_of(find_log(other))}, both ways: each names an entry that says the same"
            in (found["proved"])
        )
    # …of a bundle, too, under keys that the reader pins
    shutil.copytree(coordinator / "trust", tmp_path / "pinned")
    shutil.copy(site / "trust" / f"{PARTY}.policy", tmp_path / "pinned")
    assert main(["export", str(coordinator), "--complete", "--out", str(tmp_path / "all.zip")]) == 0
    arguments = [str(tmp_path / "all.zip"), "--peer", str(site), "--trust", str(tmp_path / "pinned")]
    assert main(["verify", *arguments]) == 0
    assert "3 links" in (said := capsys.readouterr().out)
    assert "CFD-A20" not in said


@pytest.mark.parametrize("which", ["site", "coordinator"])
def test_an_entry_deleted_in_one_log_and_all_signed_anew_contradicts_the_other(
    pair: tuple[Path, Path], which: str
) -> None:
    """The party holds all its keys: it chains and signs everything anew, and its own log alone verifies."""
    site, coordinator = pair
    home, action = (site, b"update.sent") if which == "site" else (coordinator, b"model.released")
    forged = without(home, action)
    resigned(home, forged)
    assert main(["verify", str(home)]) == 0
    for one, other in (pair, (coordinator, site)):
        found = compared(one, other)
        assert "CFD-A16" in {flaw.code for flaw in found.flaws}
        named = {flaw.where.rpartition(", ")[2] for flaw in found.flaws}
        wanted = index_of(
            coordinator if which == "site" else site, b"update.received" if which == "site" else b"model.acc"
        )
        assert f"entry {wanted}" in named


def index_of(home: Path, action: bytes) -> int:
    return next(index for index, leaf in enumerate(leaves_of(home)) if b'"action":"' + action in leaf)


def without(home: Path, action: bytes) -> list[bytes]:
    """The leaves of a log without its first entry of that action, the writer's chain signed anew behind it."""
    from audit.entry import write_leaf
    from audit.frame import read_frame
    from audit.key_files import read_key
    from audit.merkle import leaf_hash

    gone, leaves = index_of(home, action), leaves_of(home)
    kept = leaves[:gone]
    for leaf in leaves[gone + 1 :]:
        event = dict(read_frame(leaf, origin=None)[0])
        event |= {"seq": event["seq"] - 1, "prev": hash_text(leaf_hash(kept[-1]))}
        key = read_key(home / "audit" / "keys" / "writer-daemon.key", event["writer"])
        kept.append(write_leaf(origin_of(find_log(home)), event, key))
    return kept


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"index": 3}, "CFD-A16"),
        ({"root": HASH}, "CFD-A08"),
        ({"leaf_hash": HASH}, "CFD-A16"),
        ({"leaf_hash": HASH, "index": None, "size": None, "root": None}, "CFD-A16"),
    ],
)
def test_a_bent_link_is_named(pair: tuple[Path, Path], changed: dict[str, Any], code: str) -> None:
    site, coordinator = pair
    with find_log(site).checked() as log:
        row = next(row for row in log.rows() if row.event["action"] == "update.sent")
        root = hash_text(root_at(log.tree, row.index + 1))
    fields = {"leaf_hash": row.leaf_hash, "index": row.index, "size": row.index + 1, "root": root, **changed}
    bent = Peer(origin=row.origin, **{name: value for name, value in fields.items() if value is not None})
    with reopen(coordinator) as log:
        receipt = log.append(
            UpdateReceived(
                id=event_id(), decision="allowed", actor=SITE, site=PARTY, round=0, egress=egress(10), peer=bent, **JOB
            )
        )
    assert flaws(compared(coordinator, site)) == [(code, f"entry {receipt.index}")]


def test_a_link_to_an_entry_that_says_otherwise_is_named(pair: tuple[Path, Path]) -> None:
    site, coordinator = pair
    with find_log(site).checked() as log:
        rows = {row.event["action"]: row for row in log.rows()}
    with reopen(coordinator) as log:
        sent = Peer(origin=rows["update.sent"].origin, leaf_hash=rows["update.sent"].leaf_hash)
        other = log.append(
            UpdateReceived(
                id=event_id(), decision="allowed", actor=SITE, site=PARTY, round=1, egress=egress(99), peer=sent, **JOB
            )
        )
        kind = log.append(
            JobAccepted(id=event_id(), decision="allowed", actor=SITE, site=PARTY, plan=HASH, dataset=HEART,
                        purpose={"code": "DUO:0000007"}, policy=HASH, rule="rules/0", peer=sent, **JOB)
        )  # fmt: skip
    found = compared(coordinator, site)
    assert flaws(found) == [("CFD-A16", f"entry {other.index}"), ("CFD-A16", f"entry {kind.index}")]
    assert "which is no job.accepted" in found.flaws[1].what


def test_links_behind_the_end_of_an_older_copy_are_a_note(pair: tuple[Path, Path], tmp_path: Path) -> None:
    site, coordinator = pair
    shutil.copytree(coordinator, tmp_path / "older")
    with reopen(site) as log:
        receipt = log.append(
            UpdateSent(id=event_id(), decision="allowed", actor=DAEMON, round=2, egress=egress(12), **JOB)
        )
        log.checkpoint()
    shutil.copytree(site, tmp_path / "newer")
    with reopen(coordinator) as log:
        log.append(
            UpdateReceived(
                id=event_id(), decision="allowed", actor=SITE, site=PARTY, round=2, egress=egress(12),
                peer=peer_of(site, receipt), **JOB,
            )
        )  # fmt: skip
    resigned(site, leaves_of(site)[: receipt.index])  # as it was before it sent that
    found = compared(coordinator, site)
    assert found.flaws == []
    assert [(note.code, note.what) for note in found.notes if note.code == "CFD-A45"] == [
        ("CFD-A45", "1 links lead to entries that what is here of the other log doesn't have")
    ]


def test_a_damaged_log_of_a_peer_is_a_flaw_and_this_very_log_is_no_peer(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    site, coordinator = pair
    with pytest.raises(LogUnreadable, match="this log"):
        compared(site, site)
    resigned(site, leaves_of(site)[:-1])
    leaves = leaves_of(coordinator)
    leaves[3] = leaves[3].replace(b'"round":1', b'"round":0')
    from tests.support.audit_logs import set_leaf

    set_leaf(coordinator, 3, leaves[3])
    found = compared(site, coordinator)
    assert [flaw.where for flaw in found.flaws] == ["heart.example.org/coordinator/audit/1"]
    assert found.proved == []
    assert closed_home(tmp_path / "other").is_dir()


def test_an_entry_that_was_redacted_is_still_there_by_its_hash() -> None:
    event = {"action": "job.accepted", "decision": "allowed", "job": "j", "plan": HASH}
    for blank, codes in (({HASH}, []), (set(), ["CFD-A16"])):
        links = Links("f/p/audit/1")
        links.gather("entry 1", {**event, "peer": {"origin": "f/p/audit/1", "leaf_hash": HASH}})
        links.gather("entry 2", {**event, "peer": {"origin": "f/q/audit/1", "leaf_hash": HASH}})
        assert [flaw.code for flaw in links.finish({}, begin=0, size=9, blank=blank)] == codes
