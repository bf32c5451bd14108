"""Bundles that somebody altered, cut short, or made to harm whoever opens them."""

import hashlib
import io
import os
import re
import shutil
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from audit.canonical import encode
from audit.command import main
from audit.errors import LogUnreadable
from audit.export import bundle
from audit.export.bundle import FileSum, Manifest
from audit.export.bundle_check import BundleReader, check_files
from audit.export.container import open_files
from audit.findings import Verdict, Verification
from audit.trust import parse_policy
from tests.support.audit_logs import PARTY, create, draft, no_home_of_the_machine, opening

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _no_home_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    no_home_of_the_machine(monkeypatch, tmp_path)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home of 300 entries with a complete bundle and a selection of the same rows beside it, as folders."""
    folder = tmp_path_factory.mktemp("made")
    home = folder / "home"
    with create(home) as log:
        for number in range(290):
            entry = opening(round=number) if number % 10 == 0 else draft(dataset_id=f"d{number}")
            log.append(entry)
    copied = folder / "copy"
    shutil.copytree(home, copied)
    wanted = ["--action", "data.opened"]
    assert main(["export", str(copied), *wanted, "--complete", "--out", str(folder / "complete")]) == 0
    assert main(["export", str(copied), *wanted, "--out", str(folder / "selection")]) == 0
    assert main(["export", str(copied), "--as", "tiles", "--out", str(folder / "tiles")]) == 0
    return folder


def checked(path: Path, made: Path, **more: object) -> Verification:
    policy = parse_policy((made / "home" / "trust" / f"{PARTY}.policy").read_text())
    with open_files(path) as files:
        return check_files(files, BundleReader(policy, "pinned", **more))  # type: ignore[arg-type]


def altered(path: Path, to: Path, name: str, change: Callable[[bytes], bytes] | None, *, resum: bool) -> Path:
    """A copy with one file changed or removed, and the manifest made to agree if `resum`."""
    shutil.copytree(path, to)
    target = to / name
    if change is None:
        target.unlink()
    else:
        target.write_bytes(change(target.read_bytes()))
    if resum and (to / bundle.MANIFEST).exists():
        manifest = Manifest.parse((to / bundle.MANIFEST).read_bytes())
        sums = {
            one.path: FileSum(
                one.path,
                (to / one.path).stat().st_size,
                "sha256:" + hashlib.sha256((to / one.path).read_bytes()).hexdigest(),
            )
            for one in manifest.files.values()
            if (to / one.path).exists()
        }
        changed = Manifest(
            manifest.origin,
            manifest.size,
            manifest.root,
            manifest.complete,
            manifest.first,
            manifest.end,
            manifest.filters,
            sums,
        )
        (to / bundle.MANIFEST).write_bytes(bytes(changed))
    return to


def flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


LOADED = """
import runpy, sys, pathlib
module = runpy.run_path(sys.argv[1])["load"]()
for path in sys.argv[3:]:
    status = module.main([path, "--trust", sys.argv[2], "--json"], pathlib.Path(path))
    print("status", status, flush=True)
"""


def standalone(paths: list[Path], made: Path) -> list[tuple[int, str]]:
    """What the `verify.py` of an unaltered bundle says of each path; Python alone, nothing of ours to import."""
    policy = made / "home" / "trust" / f"{PARTY}.policy"
    command = [sys.executable, "-I", "-c", LOADED, str(made / "complete" / "verify.py"), str(policy), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd="/")
    assert done.stderr == ""
    said = [part.rpartition("status ") for part in re.split(r"(?<=status \d)\n", done.stdout) if part]
    return [(int(status), text.strip()) for text, _, status in said]


PROVED_FILES = [
    ("complete", "log/checkpoint"),
    ("complete", "log/tile/0/000"),
    ("complete", "log/tile/0/001.p/37"),
    ("complete", "log/tile/1/000.p/1"),
    ("complete", "log/tile/entries/000"),
    ("complete", "log/tile/entries/001.p/37"),
    ("complete", "trail/0.entry"),
    ("complete", "trail/0.tlog-proof"),
    ("complete", "rows.jsonl"),
    ("selection", "entries/2.entry"),
    ("selection", "proofs/2.tlog-proof"),
    ("selection", "rows.jsonl"),
    ("selection", "trail/0.entry"),
    ("tiles", "checkpoint"),
    ("tiles", "tile/0/000"),
    ("tiles", "tile/entries/001.p/37"),
    ("tiles", "trail/0.entry"),
]


def test_the_made_bundles_are_verified(made: Path) -> None:
    for name in ("complete", "selection", "tiles"):
        found = checked(made / name, made)
        assert found.flaws == []
        assert found.verdict is Verdict.VERIFIED
    policy = str(made / "home" / "trust" / f"{PARTY}.policy")
    command = [sys.executable, "-I", str(made / "complete" / "verify.py"), "--trust", policy, "--complete"]
    assert subprocess.run(command, capture_output=True, timeout=60, cwd="/").stdout.endswith(b"verified\n")
    assert "these 29 are all" in checked(made / "complete", made, complete=True).proved[0]
    assert [flaw.code for flaw in checked(made / "selection", made, complete=True).flaws] == ["CFD-A18"]


@pytest.mark.parametrize("resum", [False, True], ids=["as it is", "with a new manifest"])
@pytest.mark.parametrize(("which", "name"), PROVED_FILES)
def test_an_altered_or_missing_file_of_a_bundle_is_a_flaw(
    made: Path, tmp_path: Path, which: str, name: str, resum: bool
) -> None:
    changes = (flipped, lambda data: data[:-1], lambda data: data + b"\n", None) if resum else (flipped,)
    for number, change in enumerate(changes):
        path = altered(made / which, tmp_path / str(number), name, change, resum=resum)
        if change is None and name == "checkpoint":  # then nothing says that these are tiles
            with pytest.raises(LogUnreadable):
                checked(path, made)
        else:
            assert checked(path, made).verdict is Verdict.FLAWED, number


def test_verify_py_and_verify_say_the_same_of_every_altered_copy(made: Path, tmp_path: Path, capsys: Captured) -> None:
    policy = made / "home" / "trust" / f"{PARTY}.policy"
    paths = [
        altered(made / which, tmp_path / str(number), name, flipped, resum=number % 2 == 0)
        for number, (which, name) in enumerate(PROVED_FILES)
    ]
    ours = []
    for path in [*paths, made / "complete", made / "selection", made / "tiles"]:
        status = main(["verify", str(path), "--trust", str(policy), "--format", "json"])
        ours.append((status, capsys.readouterr().out.strip()))
    assert [status for status, _ in ours] == [1] * len(paths) + [0, 0, 0]
    assert ours == standalone([*paths, made / "complete", made / "selection", made / "tiles"], made)


def test_an_altered_entry_of_a_bundle_is_named_by_index(made: Path, tmp_path: Path) -> None:
    path = altered(made / "selection", tmp_path / "one", "entries/12.entry", flipped, resum=True)
    assert ("CFD-A01", "entry 12") in {(flaw.code, flaw.where) for flaw in checked(path, made).flaws}

    def without_a_round(data: bytes) -> bytes:
        return data.replace(b'"round":10', b'"round":11', 1)

    path = altered(made / "complete", tmp_path / "two", "log/tile/entries/000", without_a_round, resum=True)
    assert ("CFD-A01", "entry 12") in {(flaw.code, flaw.where) for flaw in checked(path, made).flaws}


def test_a_complete_bundle_leaves_nothing_out(made: Path, tmp_path: Path) -> None:
    def without_the_third(data: bytes) -> bytes:
        lines = data.splitlines(keepends=True)
        return b"".join(lines[:2] + lines[3:])

    path = altered(made / "complete", tmp_path / "row", "rows.jsonl", without_the_third, resum=True)
    assert {flaw.code for flaw in checked(path, made).flaws} == {"CFD-A14"}

    manifest = Manifest.parse((made / "complete" / bundle.MANIFEST).read_bytes())
    for first, end in ((5, manifest.end), (0, manifest.end - 5)):
        cut = tmp_path / f"cut{first}"
        shutil.copytree(made / "complete", cut)
        shorter = Manifest(
            manifest.origin, manifest.size, manifest.root, True, first, end, manifest.filters, manifest.files
        )
        (cut / bundle.MANIFEST).write_bytes(bytes(shorter))
        assert "CFD-A18" in {flaw.code for flaw in checked(cut, made).flaws}


def test_a_bundle_of_a_time_has_its_fences(tmp_path: Path, capsys: Captured) -> None:
    from tests.support.audit_logs import HandClock

    clock = HandClock()
    home = tmp_path / "home"
    log = create(home, clock)
    for number in range(20):
        clock.pass_s(86_400)
        log.append(opening(round=number))
    log.close()
    copied = tmp_path / "copy"
    shutil.copytree(home, copied)
    times = ["--since", "2026-01-05", "--until", "2026-01-10"]
    assert main(["export", str(copied), *times, "--complete", "--out", str(tmp_path / "b.zip")]) == 0
    with zipfile.ZipFile(tmp_path / "b.zip") as archive:
        manifest = Manifest.parse(archive.read(bundle.MANIFEST))
        rows = archive.read(bundle.ROWS).splitlines()
    policy = str(home / "trust" / f"{PARTY}.policy")
    assert len(rows) == 5
    assert manifest.end - manifest.first == 7
    assert main(["verify", str(tmp_path / "b.zip"), "--trust", policy, "--complete"]) == 0
    capsys.readouterr()
    with zipfile.ZipFile(tmp_path / "b.zip") as archive:
        archive.extractall(tmp_path / "b")
    for first, end in ((manifest.first + 1, manifest.end), (manifest.first, manifest.end - 1)):
        shorter = Manifest(
            manifest.origin, manifest.size, manifest.root, True, first, end, manifest.filters, manifest.files
        )
        (tmp_path / "b" / bundle.MANIFEST).write_bytes(bytes(shorter))
        assert main(["verify", str(tmp_path / "b"), "--trust", policy]) == 1
        assert "CFD-A18" in capsys.readouterr().out


def test_a_bundle_of_somebody_elses_keys_is_unpinned_or_refused(made: Path, tmp_path: Path, capsys: Captured) -> None:
    assert main(["verify", str(made / "complete")]) == 3
    other = tmp_path / "other"
    create(other).close()
    assert main(["verify", str(made / "complete"), "--trust", str(other / "trust" / f"{PARTY}.policy")]) == 1
    assert "CFD-A05" in capsys.readouterr().out


def test_too_few_cosignatures_are_a_flaw_for_whoever_asks_for_them(made: Path) -> None:
    from tests.support.witnessed_trees import witness_signer

    text = (made / "home" / "trust" / f"{PARTY}.policy").read_text().replace("quorum none", "")
    text += f"witness hungary {witness_signer('hungary').key}\nquorum hungary\n"
    with open_files(made / "complete") as files:
        found = check_files(files, BundleReader(parse_policy(text), "pinned"))
    assert [(flaw.code, "not yet witnessed" in flaw.what) for flaw in found.flaws] == [("CFD-A06", True)]


# --- containers -------------------------------------------------------------------------------------------------


def zip_of(path: Path, members: list[tuple[str | zipfile.ZipInfo, bytes]]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return path


def link_member() -> zipfile.ZipInfo:
    member = zipfile.ZipInfo("policy")
    member.external_attr = (stat.S_IFLNK | 0o777) << 16
    return member


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    "members",
    [
        [("manifest.json", b"{}"), ("rows.jsonl", bytes(40 << 20))],
        [("../manifest.json", b"{}")],
        [("/etc/passwd", b"x")],
        [("log/../../x", b"x")],
        [(link_member(), b"/etc/passwd")],
        [("policy", b"a"), ("policy", b"b")],
        [("policy", b"a"), ("Policy", b"b")],
        [("pol\u0131cy", b"a")],
        [("a\\b", b"a")],
        [(".hidden", b"a")],
        [("manifest.json", b"{}")],
        [("manifest.json", encode({"schema": bundle.SCHEMA}) + b"\n")],
        [],
    ],
    ids=[
        "bomb",
        "upwards",
        "absolute",
        "inside",
        "link",
        "twice",
        "case",
        "letters",
        "backslash",
        "hidden",
        "bare",
        "half",
        "empty",
    ],
)
def test_a_hostile_bundle_is_unreadable(
    tmp_path: Path, members: list[tuple[str | zipfile.ZipInfo, bytes]], capsys: Captured
) -> None:
    path = zip_of(tmp_path / "b.zip", members)
    with pytest.raises(LogUnreadable) as refused:
        main(["verify", str(path)])
    assert (refused.value.code, refused.value.exit_status) == ("CFD-A19", 2)
    assert list(tmp_path.iterdir()) == [path]
    assert capsys.readouterr().out == ""


def test_members_that_overlap_are_unreadable(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", os.urandom(5000))
        first = archive.infolist()[0]
        for number in range(50):
            twin = zipfile.ZipInfo(f"a{number}")
            for name in ("header_offset", "CRC", "compress_size", "file_size", "compress_type"):
                setattr(twin, name, getattr(first, name))
            archive.filelist.append(twin)
            archive.NameToInfo[twin.filename] = twin
        archive._didModify = True  # type: ignore[attr-defined]
    (tmp_path / "b.zip").write_bytes(buffer.getvalue())
    with pytest.raises(LogUnreadable, match="overlap"):
        main(["verify", str(tmp_path / "b.zip")])


def test_a_link_in_a_folder_is_unreadable(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "selection", tmp_path / "b")
    (tmp_path / "b" / "policy").unlink()
    (tmp_path / "b" / "policy").symlink_to("/etc/passwd")
    with pytest.raises(LogUnreadable, match="link"):
        main(["verify", str(tmp_path / "b")])


def test_a_torn_zip_is_unreadable_or_flawed_and_never_a_traceback(made: Path, tmp_path: Path) -> None:
    whole = tmp_path / "b.zip"
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted((made / "selection").rglob("*")):
            if path.is_file():
                archive.write(path, path.relative_to(made / "selection").as_posix())
    data = whole.read_bytes()
    for place in range(1, len(data), len(data) // 40):
        for torn in (data[:place], flipped_at(data, place)):
            whole.write_bytes(torn)
            try:
                assert checked(whole, made).verdict in (Verdict.FLAWED, Verdict.VERIFIED)
            except LogUnreadable:
                continue


def flipped_at(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 0x20]) + data[place + 1 :]
