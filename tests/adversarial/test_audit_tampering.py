"""Somebody with the disk but without the keys changes the log; somebody with the keys shortens it."""

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from audit import checkpoint, note
from audit.errors import AuditError, LogBehind, LogDamaged, LogFrozen, LogUnreadable
from audit.findings import Flaw, Verdict, Verification
from audit.key_files import read_key
from audit.reading import find_entry, find_log, find_policy, read_rows
from audit.verification import Reader, verify
from tests.support.audit_logs import (
    ORIGIN,
    alter,
    closed_home,
    create,
    draft,
    files_of,
    killed_home,
    leaves_of,
    log_file,
    reopen,
    rewrite,
    set_leaf,
    sql,
    verified,
)

Change = Callable[[Path], object]


def found(result: Verification) -> list[tuple[str, str]]:
    return [(flaw.code, flaw.where) for flaw in result.flaws]


def swap(home: Path, index: int) -> None:
    """Exchange two rows, with their hashes and ids."""
    rows = sql(home, "SELECT leaf, leaf_hash, event_id FROM entry WHERE idx IN (?, ?)", index, index + 1)
    sql(home, "DELETE FROM entry WHERE idx IN (?, ?)", index, index + 1)
    for at, row in ((index, rows[1]), (index + 1, rows[0])):
        sql(home, "INSERT INTO entry VALUES (?, ?, ?, ?)", at, *row)


def copy_row(home: Path, source: int, target: int) -> None:
    leaf, hashed = sql(home, "SELECT leaf, leaf_hash FROM entry WHERE idx = ?", source)[0]
    sql(home, "UPDATE entry SET leaf = ?, leaf_hash = ? WHERE idx = ?", leaf, hashed, target)


def flip(home: Path, table: str, column: str, where: str) -> None:
    value = sql(home, f"SELECT {column} FROM {table} WHERE {where}")[0][0]  # noqa: S608
    sql(home, f"UPDATE {table} SET {column} = ? WHERE {where}", bytes([value[0] ^ 1]) + value[1:])  # noqa: S608


ROOTS = [("CFD-A04", "the head"), ("CFD-A04", "file checkpoint")]
# What each change of the last rows, which have no tile yet, is found as: the entry first, then the roots.
CHANGES = [
    pytest.param(lambda home: alter(home, 4), [("CFD-A01", "entry 4")], id="a leaf altered"),
    pytest.param(lambda home: flip(home, "entry", "leaf_hash", "idx = 4"), [("CFD-A01", "entry 4")], id="a hash"),
    pytest.param(
        lambda home: alter(home, 4, row_too=True), [("CFD-A10", "entry 4"), *ROOTS], id="a leaf and its hash altered"
    ),
    pytest.param(
        lambda home: sql(home, "DELETE FROM entry WHERE idx = 4"), [("CFD-A02", "entry 4")], id="an entry removed"
    ),
    pytest.param(
        lambda home: swap(home, 4), [("CFD-A11", "entry 4"), ("CFD-A11", "entry 5"), ("CFD-A11", "entry 6"), *ROOTS],
        id="two entries swapped",
    ),
    pytest.param(
        lambda home: copy_row(home, 4, 5),
        [("CFD-A11", "entry 5"), ("CFD-A01", "entry 5"), ("CFD-A11", "entry 6"), *ROOTS],
        id="an entry repeated over another",
    ),
    pytest.param(lambda home: set_leaf(home, 4, b""), [("CFD-A02", "entry 4")], id="an entry blanked"),
    pytest.param(lambda home: set_leaf(home, 8, b"x" * 900), [("CFD-A01", "entry 8")], id="the last entry altered"),
    pytest.param(
        lambda home: sql(home, "UPDATE entry SET leaf = 'text' WHERE idx = 4"), [("CFD-A02", "entry 4")], id="a text"
    ),
    pytest.param(
        lambda home: sql(home, "UPDATE entry SET event_id = x'00' WHERE idx = 4"), [("CFD-A01", "entry 4")], id="an id"
    ),
    pytest.param(
        lambda home: sql(home, "INSERT INTO entry SELECT 9, leaf, leaf_hash, x'01' FROM entry WHERE idx = 8"),
        [("CFD-A01", "entry 9")],
        id="an entry added behind the end",
    ),
    pytest.param(lambda home: flip(home, "head", "root", "id = 1"), [("CFD-A04", "the head")], id="the head's root"),
    pytest.param(
        lambda home: sql(home, "UPDATE head SET size = 12"), [("CFD-A02", "entries 9 to 11")], id="the head's size"
    ),
    pytest.param(lambda home: sql(home, "DELETE FROM head"), [("CFD-A02", "the head")], id="no head"),
    pytest.param(
        lambda home: sql(home, "UPDATE writer SET next_seq = 3, last_idx = 2"),
        [("CFD-A14", "writer heart.example.org/cleveland/writer/daemon")],
        id="a writer's row",
    ),
    pytest.param(lambda home: sql(home, "DELETE FROM trail"), [("CFD-A14", "entry 0")], id="no trail"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "flaws"), CHANGES)
def test_an_altered_entry_is_named_by_index(tmp_path: Path, change: Change, flaws: list[tuple[str, str]]) -> None:
    home = closed_home(tmp_path)
    change(home)
    result = verified(home)
    assert found(result) == flaws
    assert result.verdict is Verdict.FLAWED


@pytest.mark.parametrize("change", [case.values[0] for case in CHANGES])
@pytest.mark.parametrize("build", [closed_home, killed_home])
def test_a_changed_log_does_not_open(tmp_path: Path, build: Callable[..., Path], change: Change) -> None:
    home = build(tmp_path, entries=6 if build is closed_home else 7)  # nine entries, all signed or only the first
    change(home)
    before = files_of(home)
    with pytest.raises(LogDamaged) as refused:
        reopen(home)
    assert refused.value.exit_status == 78
    assert files_of(home) == before


DEEP = [
    pytest.param(lambda home: alter(home, 100), [("CFD-A01", "entry 100")], id="a leaf"),
    pytest.param(lambda home: flip(home, "entry", "leaf_hash", "idx = 100"), [("CFD-A01", "entry 100")], id="a hash"),
    pytest.param(lambda home: alter(home, 100, row_too=True), [("CFD-A01", "entry 100")], id="a leaf and its hash"),
    pytest.param(
        lambda home: flip(home, "tile", "hashes", "level = 0 AND n = 0"), [("CFD-A03", "tile/0/000")], id="a tile"
    ),
    pytest.param(
        lambda home: flip(home, "tile", "hashes", "level = 1"), [("CFD-A03", "tile/1/000.p/2")], id="an upper tile"
    ),
    pytest.param(
        lambda home: sql(home, "DELETE FROM tile WHERE level = 0 AND n = 1"), [("CFD-A03", "tile/0/001")], id="no tile"
    ),
    pytest.param(
        lambda home: sql(home, "DELETE FROM entry WHERE idx = 100"), [("CFD-A02", "entry 100")], id="a row removed"
    ),
    pytest.param(
        lambda home: sql(home, "DELETE FROM entry WHERE idx BETWEEN 100 AND 300"),
        [("CFD-A02", f"entry {index}") for index in range(100, 301)],
        id="many rows removed",
    ),
    pytest.param(
        lambda home: sql(home, "DELETE FROM entry WHERE idx BETWEEN 100 AND 512"),
        [
            *[("CFD-A02", f"entry {index}") for index in range(100, 256)],
            ("CFD-A02", "entries 256 to 511"),
            ("CFD-A02", "entry 512"),
        ],
        id="a whole tile of rows removed",
    ),
]


@pytest.fixture(scope="module")
def long_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed log of 603 entries: two full tiles of level 0, and a part of a third."""
    return closed_home(tmp_path_factory.mktemp("long"), entries=600)


@pytest.mark.parametrize(("change", "flaws"), DEEP)
def test_a_change_far_from_the_end_is_named_and_is_all_that_is_wrong(
    tmp_path: Path, long_home: Path, change: Change, flaws: list[tuple[str, str]]
) -> None:
    home = tmp_path / "home"
    shutil.copytree(long_home, home)
    change(home)
    assert found(verified(home)) == flaws


@pytest.mark.parametrize("row_too", [False, True])
def test_an_entry_altered_far_from_the_end_is_never_shown(tmp_path: Path, long_home: Path, row_too: bool) -> None:
    home = tmp_path / "home"
    shutil.copytree(long_home, home)
    alter(home, 100, row_too=row_too)
    log = find_log(home)
    assert find_entry(log, "99").index == 99
    with pytest.raises(AuditError) as refused:
        find_entry(log, "100")
    assert (refused.value.code, refused.value.exit_status) == ("CFD-A01", 1)
    with pytest.raises(AuditError):
        list(read_rows(log))


def test_a_tree_computed_anew_over_an_altered_entry_meets_the_signed_root(tmp_path: Path, long_home: Path) -> None:
    home = tmp_path / "home"
    shutil.copytree(long_home, home)
    leaves = leaves_of(home)
    leaves[100] = leaves[100].replace(b"data.retired", b"data.verified")
    rewrite(home, leaves)
    with pytest.raises(LogDamaged) as refused:
        reopen(home)
    assert refused.value.code == "CFD-A08"
    with pytest.raises(AuditError) as unread:
        find_entry(find_log(home), "5")
    assert unread.value.code == "CFD-A04"
    assert found(verified(home)) == [("CFD-A10", "entry 100"), ("CFD-A04", "file checkpoint")]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        pytest.param(lambda leaves: leaves[4].replace(b"data.retired", b"data.verified"), "CFD-A10", id="altered"),
        pytest.param(lambda leaves: leaves.pop(4) and b"", "CFD-A11", id="removed"),
        pytest.param(lambda leaves: leaves[3], "CFD-A11", id="repeated"),
    ],
)
def test_a_tree_computed_anew_over_what_nobody_signed_yet_does_not_hide_the_change(
    tmp_path: Path, change: Callable[[list[bytes]], bytes], code: str
) -> None:
    home = killed_home(tmp_path)
    leaves = leaves_of(home)
    leaf = change(leaves)
    if leaf:
        leaves[4] = leaf
    rewrite(home, leaves)
    assert code in [flaw.code for flaw in verified(home).flaws]
    with pytest.raises(LogDamaged) as refused:
        reopen(home)
    assert refused.value.code in (code, "CFD-A01")
    with pytest.raises(AuditError):
        list(read_rows(find_log(home)))


def test_an_altered_first_entry_is_one_flaw(tmp_path: Path) -> None:
    home = closed_home(tmp_path)
    set_leaf(home, 0, leaves_of(home)[0].replace(b'"quorum":0', b'"quorum":1'))
    assert found(verified(home)) == [("CFD-A01", "entry 0")]


def test_a_log_without_its_first_entry_and_its_copy_is_not_judged_further(tmp_path: Path) -> None:
    home = closed_home(tmp_path)
    sql(home, "DELETE FROM trail")
    sql(home, "DELETE FROM entry WHERE idx = 0")
    result = verified(home)
    assert {flaw.where for flaw in result.flaws} == {"entry 0"}
    assert result.verdict is Verdict.FLAWED


def test_an_untouched_log_is_verified(tmp_path: Path) -> None:
    result = verified(closed_home(tmp_path), complete=True)
    assert (result.flaws, result.notes, result.verdict) == ([], [], Verdict.VERIFIED)


@pytest.mark.parametrize(
    ("change", "flaws"),
    [
        ("DELETE FROM event WHERE idx = 4", [("CFD-A14", "entry 4")]),
        ("UPDATE event SET dataset = 'lungs' WHERE idx = 4", [("CFD-A14", "entry 4")]),
        ("UPDATE event SET t_us = t_us + 1 WHERE idx = 4", [("CFD-A14", "entry 4")]),
    ],
)
def test_everything_shown_is_covered_or_marked(tmp_path: Path, change: str, flaws: list[tuple[str, str]]) -> None:
    home = closed_home(tmp_path)
    sql(home, change)
    assert verified(home).flaws == []
    assert found(verified(home, complete=True)) == flaws
    if change.startswith("UPDATE"):
        from audit.filters import Filters

        with find_log(home).checked() as checked, pytest.raises(AuditError) as refused:
            list(checked.matching(Filters(action="data")))
        assert refused.value.code == "CFD-A14"


def test_truncation_names_both_sizes(tmp_path: Path) -> None:
    home = closed_home(tmp_path)
    rewrite(home, leaves_of(home)[:6])
    result = verified(home)
    assert result.flaws == [Flaw("CFD-A07", "file checkpoint", "truncated: 9 entries then, 6 now")]
    with pytest.raises(LogBehind) as refused:
        reopen(home)
    assert (refused.value.code, refused.value.exit_status) == ("CFD-A24", 78)
    assert "9 entries" in refused.value.message
    assert "6 here" in refused.value.message
    with pytest.raises(AuditError, match="truncated: 9 entries then, 6 now"):
        list(read_rows(find_log(home)))


def test_a_restored_backup_is_found_by_a_checkpoint_that_the_reader_kept(tmp_path: Path) -> None:
    home = tmp_path / "home"
    log = create(home)
    log.append(draft())
    log.checkpoint()
    shutil.copytree(home, tmp_path / "backup")
    log.append(draft())
    kept = log.checkpoint()
    log.close()
    assert found(verified(tmp_path / "backup")) == []
    result = verified(tmp_path / "backup", against={"october.checkpoint": kept})
    assert result.flaws == [Flaw("CFD-A07", "october.checkpoint", "truncated: 4 entries then, 3 now")]
    grown = verified(home, against={"october.checkpoint": kept})
    assert "extends the checkpoint of 4 entries in october.checkpoint" in grown.proved


def test_a_log_rewritten_with_its_own_keys_contradicts_a_kept_checkpoint(tmp_path: Path) -> None:
    home = killed_home(tmp_path / "home")
    with reopen(home) as log:
        kept = log.checkpoint()
    rewrite(home, leaves_of(home)[:1])
    (home / "audit" / "1" / "checkpoint").unlink()
    with reopen(home) as log:  # one entry without a checkpoint looks like a log that is just being made
        for number in range(20):
            log.append(draft(dataset_id=f"other{number}"))
    assert verified(home).verdict is Verdict.VERIFIED
    result = verified(home, against={"kept": kept})
    assert [(flaw.code, flaw.where) for flaw in result.flaws] == [("CFD-A08", "kept")]


@pytest.mark.parametrize("what", ["removed", "garbage", "of another key", "of another log", "of another root"])
def test_a_checkpoint_that_is_not_this_logs_is_a_flaw_and_stops_the_start(tmp_path: Path, what: str) -> None:
    home = closed_home(tmp_path / "home")
    path = home / "audit" / "1" / "checkpoint"
    size = checkpoint.parse(path.read_bytes()).size
    own = read_key(home / "audit" / "keys" / "log-1.key", ORIGIN)
    match what:
        case "removed":
            path.unlink()
        case "garbage":
            path.write_bytes(b"garbage")
        case "of another key":
            root = checkpoint.parse(path.read_bytes()).root
            path.write_bytes(checkpoint.sign(ORIGIN, size, root, note.Ed25519Signer(ORIGIN, bytes(32))))
        case "of another log":
            path.write_bytes((closed_home(tmp_path / "other") / "audit" / "1" / "checkpoint").read_bytes())
        case _:
            path.write_bytes(checkpoint.sign(ORIGIN, size, bytes(32), own))
    result = verified(home)
    assert [flaw.where for flaw in result.flaws] == ["file checkpoint"]
    assert result.flaws[0].code in ("CFD-A05", "CFD-A04")
    with pytest.raises(LogDamaged):
        reopen(home)


def test_a_whole_log_without_a_pinned_key_is_anybodys(tmp_path: Path) -> None:
    with find_log(closed_home(tmp_path)).moment() as (snapshot, signed):
        result = verify(snapshot, signed, Reader())
    assert (result.verdict, result.flaws) == (Verdict.UNPINNED, [])


def test_a_log_made_by_somebody_else_under_the_same_name_is_not_the_pinned_one(tmp_path: Path) -> None:
    home, other = closed_home(tmp_path / "home"), closed_home(tmp_path / "other")
    policy, name = find_policy(find_log(other), ORIGIN, home / "trust" / "cleveland.policy")
    with find_log(other).moment() as (snapshot, signed):
        result = verify(snapshot, signed, Reader(policy, name))
    assert [(flaw.code, flaw.where) for flaw in result.flaws] == [("CFD-A05", "file checkpoint")]


def test_a_frozen_epoch_takes_nothing(tmp_path: Path) -> None:
    home = closed_home(tmp_path)
    (home / "audit" / "1" / "frozen").touch()
    with pytest.raises(LogFrozen):
        reopen(home)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"\x00" * 5000,
        b"SQLite format 3\x00" + b"\x00" * 5000,
        b"SQLite format 3\x00" + b"\xff" * 5000,
        b"\xff\xfe" * 40_000,
    ],
)
def test_no_bytes_end_in_a_traceback(tmp_path: Path, data: bytes) -> None:
    home = closed_home(tmp_path)
    log_file(home).write_bytes(data)
    with pytest.raises(AuditError):
        reopen(home)
    with pytest.raises(AuditError):
        list(read_rows(find_log(home)))
    with contextlib.suppress(LogUnreadable, LogDamaged):
        assert verified(home).verdict is Verdict.FLAWED


@pytest.mark.parametrize("at", range(0, 200, 7))
def test_a_damaged_page_of_the_file_is_an_error_or_a_flaw(tmp_path: Path, long_home: Path, at: int) -> None:
    home = tmp_path / "home"
    shutil.copytree(long_home, home)
    data = bytearray(log_file(home).read_bytes())
    pages = len(data) // 4096
    offset = (at % pages) * 4096
    data[offset : offset + 512] = bytes(byte ^ 0xFF for byte in data[offset : offset + 512])
    log_file(home).write_bytes(data)
    try:
        result = verified(home, complete=True)
        complete = result.verdict is Verdict.VERIFIED
    except (LogUnreadable, LogDamaged):
        complete = False
    try:
        rows = list(read_rows(find_log(home)))
    except AuditError:
        rows = []
    assert not complete or len(rows) == 603  # a page that nothing needs, such as an index of the projection
