"""Somebody with the disk but without the keys changes the log; somebody with the keys shortens it."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from audit import checkpoint, note, storage
from audit.errors import AuditError, LogBehind, LogDamaged, LogFrozen, LogUnreadable
from audit.history import Flaw
from audit.key_files import read_key
from audit.reading import find_log, find_policy, origin_of
from audit.verification import Reader, Verdict, Verification, verify
from tests.support.audit_logs import (
    ORIGIN,
    closed_home,
    create,
    draft,
    entries_file,
    killed_home,
    lines_of,
    rechained,
    reopen,
    rewrite,
)

Change = Callable[[list[bytes]], list[bytes]]


def verified(home: Path, *, complete: bool = False, against: dict[str, bytes] | None = None) -> Verification:
    log = find_log(home)
    policy, pinned_by = find_policy(log, origin_of(log), home / "trust" / "cleveland.policy")
    reader = Reader(policy, pinned_by, against or {}, complete)
    return verify(storage.read_lines(log.entries), log.checkpoint_bytes(), reader)


def found(result: Verification) -> list[tuple[str, str]]:
    return [(flaw.code, flaw.where) for flaw in result.flaws]


def alter(index: int) -> Change:
    def change(lines: list[bytes]) -> list[bytes]:
        lines[index] = lines[index].replace(b"data.retired", b"data.verified")
        return lines

    return change


def remove(index: int) -> Change:
    return lambda lines: lines[:index] + lines[index + 1 :]


def swap(index: int) -> Change:
    return lambda lines: [*lines[:index], lines[index + 1], lines[index], *lines[index + 2 :]]


def repeat(index: int) -> Change:
    return lambda lines: [*lines[: index + 1], lines[index], *lines[index + 1 :]]


def break_line(index: int) -> Change:
    def change(lines: list[bytes]) -> list[bytes]:
        lines[index] = b"x" + lines[index][1:]
        return lines

    return change


def join(index: int) -> Change:
    return lambda lines: [*lines[:index], lines[index][:-1] + b" " + lines[index + 1], *lines[index + 2 :]]


CHANGES = [
    pytest.param(alter(4), [("CFD-A01", "entry 4")], id="an entry altered"),
    pytest.param(remove(4), [("CFD-A02", "entry 4")], id="an entry removed"),
    pytest.param(swap(4), [("CFD-A02", "entry 4"), ("CFD-A01", "entry 4")], id="two entries swapped"),
    pytest.param(repeat(4), [("CFD-A01", "entry 4")], id="an entry repeated"),
    pytest.param(break_line(4), [("CFD-A01", "entry 4")], id="a line broken"),
    pytest.param(break_line(-1), [("CFD-A01", "entry 8")], id="the last line broken"),
    pytest.param(join(4), [("CFD-A01", "entry 4"), ("CFD-A02", "entry 5")], id="two lines joined"),
]


@pytest.mark.parametrize(("change", "flaws"), CHANGES)
def test_an_altered_entry_is_named_by_index(tmp_path: Path, change: Change, flaws: list[tuple[str, str]]) -> None:
    home = closed_home(tmp_path)
    rewrite(home, change(lines_of(home)))
    result = verified(home)
    assert found(result) == flaws
    assert result.verdict is Verdict.FLAWED


def test_an_altered_first_entry_is_one_flaw(tmp_path: Path) -> None:
    home = closed_home(tmp_path)
    lines = lines_of(home)
    rewrite(home, [lines[0].replace(b'quorum\\":0', b'quorum\\":1'), *lines[1:]])
    assert found(verified(home)) == [("CFD-A01", "entry 0")]


@pytest.mark.parametrize("change", [break_line(0), remove(0)])
def test_a_log_without_its_first_entry_is_not_judged_further(tmp_path: Path, change: Change) -> None:
    home = closed_home(tmp_path)
    rewrite(home, change(lines_of(home)))
    result = verified(home)
    assert {flaw.where for flaw in result.flaws} == {"entry 0"}
    assert result.verdict is Verdict.FLAWED


def test_an_untouched_log_is_verified(tmp_path: Path) -> None:
    result = verified(closed_home(tmp_path), complete=True)
    assert (result.flaws, result.notes, result.verdict) == ([], [], Verdict.VERIFIED)


@pytest.mark.parametrize("change", [case.values[0] for case in CHANGES])
@pytest.mark.parametrize("build", [closed_home, killed_home])
def test_a_changed_log_does_not_open(tmp_path: Path, build: Callable[[Path], Path], change: Change) -> None:
    home = build(tmp_path)
    rewrite(home, change(lines_of(home)))
    before = entries_file(home).read_bytes()
    with pytest.raises(LogDamaged) as refused:
        reopen(home)
    assert refused.value.exit_status == 78
    assert entries_file(home).read_bytes() == before


@pytest.mark.parametrize(
    ("change", "code"),
    [
        pytest.param(alter(4), "CFD-A10", id="altered"),
        pytest.param(remove(4), "CFD-A11", id="removed"),
        pytest.param(swap(4), "CFD-A11", id="swapped"),
        pytest.param(repeat(4), "CFD-A11", id="repeated"),
    ],
)
def test_a_chain_computed_anew_does_not_hide_the_change(tmp_path: Path, change: Change, code: str) -> None:
    home = killed_home(tmp_path)
    rewrite(home, rechained(change(lines_of(home))))
    assert code in [flaw.code for flaw in verified(home).flaws]
    with pytest.raises(LogDamaged) as refused:
        reopen(home)
    assert refused.value.code == code


def test_a_change_under_the_checkpoint_meets_the_signed_root(tmp_path: Path) -> None:
    home = closed_home(tmp_path, entries=400)  # entry 4 is far below those whose signatures opening checks
    rewrite(home, rechained(alter(4)(lines_of(home))))
    with pytest.raises(LogDamaged):
        reopen(home)
    assert ("CFD-A10", "entry 4") in found(verified(home))


def test_truncation_names_both_sizes(tmp_path: Path) -> None:
    home = closed_home(tmp_path)
    rewrite(home, lines_of(home)[:6])
    result = verified(home)
    assert result.flaws == [Flaw("CFD-A07", "file checkpoint", "truncated: 9 entries then, 6 now")]
    with pytest.raises(LogBehind) as refused:
        reopen(home)
    assert (refused.value.code, refused.value.exit_status) == ("CFD-A24", 78)


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
    rewrite(home, lines_of(home)[:1])
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
    home = closed_home(tmp_path)
    log = find_log(home)
    result = verify(storage.read_lines(log.entries), log.checkpoint_bytes(), Reader())
    assert (result.verdict, result.flaws) == (Verdict.UNPINNED, [])


def test_a_log_made_by_somebody_else_under_the_same_name_is_not_the_pinned_one(tmp_path: Path) -> None:
    home, other = closed_home(tmp_path / "home"), closed_home(tmp_path / "other")
    policy, name = find_policy(find_log(other), ORIGIN, home / "trust" / "cleveland.policy")
    log = find_log(other)
    result = verify(storage.read_lines(log.entries), log.checkpoint_bytes(), Reader(policy, name))
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
        b"{}\n",
        b"[" * 100_000 + b"\n",
        b'{"chain":"sha256:' + b"0" * 64 + b'","index":0,"leaf":""}\n',
        b'{"chain":"sha256:' + b"0" * 64 + b'","index":0,"leaf":"audit-entry/v1 x\\n{}\\n\\n"}\n',
        b'{"chain":5,"index":true,"leaf":[]}\n',
        b"\xff\xfe" * 40_000,
    ],
)
def test_no_bytes_end_in_a_traceback(tmp_path: Path, data: bytes) -> None:
    home = closed_home(tmp_path)
    entries_file(home).write_bytes(data)
    with pytest.raises(AuditError):
        reopen(home)
    try:
        assert verified(home).verdict is Verdict.FLAWED
    except LogUnreadable:
        assert data == b""
