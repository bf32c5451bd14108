"""Opening leaves in other processes: the same verdict, whatever becomes of those."""

import io
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from audit import tiles
from audit.events import KeyAdded, KeyRevoked
from audit.findings import Verdict, Verification
from audit.keyring import Keyring
from audit.note import Ed25519Signer
from audit.openers import WORTH_ENTRIES, OpenerProcess, open_leaves, open_processes
from audit.reading import find_log, find_policy, origin_of
from audit.verification import Reader, verify
from audit.walk import Opener
from tests.support.audit_logs import DAEMON, ORIGIN, PARTY, alter, create, draft, event_id, leaves_of, sql

ENTRIES = 1100
SEED = bytes(range(32))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of more tiles than there are processes, in which a key is added and revoked."""
    home = tmp_path_factory.mktemp("home")
    key = str(Ed25519Signer(f"{ORIGIN.rpartition('/audit')[0]}/writer/other", SEED).key)
    with create(home) as log:
        for kind in ("added", "revoked"):
            for done in [log.submit(draft(dataset_id=f"d{number}")) for number in range(ENTRIES // 2)]:
                done.result()
            fields = {"id": event_id(), "decision": "allowed", "actor": DAEMON, "role": "writer", "vkey": key}
            log.append(KeyAdded(**fields) if kind == "added" else KeyRevoked(**fields, reason="rotated"))
    return home


def found(home: Path, openers: list[Opener]) -> Verification:
    log = find_log(home)
    policy, pinned_by = find_policy(log, origin_of(log), home / "trust" / f"{PARTY}.policy")
    with log.moment() as (snapshot, signed):
        return verify(snapshot, signed, Reader(policy, pinned_by, complete=True), openers=openers)


@pytest.fixture
def processes() -> Iterator[list[OpenerProcess]]:
    with ExitStack() as stack:
        yield [stack.enter_context(OpenerProcess()) for _ in range(2)]


@pytest.mark.process
def test_with_other_processes_a_log_is_verified_alike(home: Path, processes: list[OpenerProcess]) -> None:
    result = found(home, [*processes])
    assert result == found(home, [])
    assert (result.verdict, result.size) == (Verdict.VERIFIED, ENTRIES + 5)


@pytest.mark.process
def test_what_is_wrong_is_named_alike(home: Path, tmp_path: Path, processes: list[OpenerProcess]) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(home, copy)
    alter(copy, 300, row_too=True)
    alter(copy, 700)
    sql(copy, "DELETE FROM entry WHERE idx = 900")
    sql(copy, "UPDATE event SET dataset = 'other' WHERE idx = 1000")
    result = found(copy, [*processes])
    assert result == found(copy, [])
    named = {flaw.where for flaw in result.flaws}
    assert named >= {"entry 300", "entry 700", "entry 900", "entry 1000"}


@pytest.mark.process
def test_a_process_that_ends_early_changes_no_verdict(home: Path, processes: list[OpenerProcess]) -> None:
    processes[0]._process.kill()
    assert found(home, [*processes]) == found(home, [])


def test_a_process_says_yes_only_to_entries_of_this_log_by_a_key_in_force(home: Path) -> None:
    leaves = leaves_of(home)[:4]
    bent = [leaves[0], leaves[1].replace(b"cleveland", b"cleveland2"), leaves[2][:-9] + b"AAAAAAA=\n", leaves[3]]
    keyring = Keyring.opened(json.loads(leaves[0].split(b"\n")[1]))
    intervals = [(str(one.key), one.first, 2) for known in keyring.writers.values() for one in known]
    header = json.dumps({"origin": ORIGIN, "writers": intervals, "indices": [0, 1, 2, 3]}).encode()
    bundle = tiles.encode_entries(bent)
    asked = b"".join(len(part).to_bytes(4, "big") + part for part in (header, bundle))
    answered = io.BytesIO()
    open_leaves(io.BytesIO(asked * 2), answered)
    assert answered.getvalue() == b"1---" * 2


def test_a_short_log_is_worth_no_process() -> None:
    with open_processes(WORTH_ENTRIES - 1) as none:
        assert none == []


@pytest.mark.process
def test_a_long_log_is_opened_by_two_processes_or_more() -> None:
    with open_processes(WORTH_ENTRIES) as several:
        assert len(several) >= 2
