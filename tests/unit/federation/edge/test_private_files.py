import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from federation.edge.files import (
    HomeLock,
    cannot_write,
    make_folder,
    read_bytes,
    read_secret,
    write_whole,
)
from federation.errors import ConfigurationWrong, InvalidInput


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_folders_and_files_are_private_from_the_start_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = make_folder(tmp_path / "home" / "keys")
        write_whole(folder / "a.key", b"secret")
    finally:
        os.umask(before)
    assert (mode(folder.parent), mode(folder), mode(folder / "a.key")) == (0o700, 0o700, 0o600)


def test_a_file_is_replaced_whole_and_nothing_else_is_left(tmp_path: Path) -> None:
    write_whole(tmp_path / "a", b"old")
    write_whole(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["a"]


def test_an_existing_file_is_not_overwritten_where_that_was_not_asked_for(tmp_path: Path) -> None:
    write_whole(tmp_path / "a", b"old", replace=False)
    with pytest.raises(InvalidInput) as refused:
        write_whole(tmp_path / "a", b"new", replace=False)
    assert refused.value.code == "CFD-C08"
    assert (tmp_path / "a").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("open_to", [0o640, 0o604, 0o660, 0o644, 0o610])
def test_a_secret_that_others_may_touch_is_refused_with_its_mode(tmp_path: Path, open_to: int) -> None:
    path = tmp_path / "a.key"
    write_whole(path, b"secret")
    path.chmod(open_to)
    with pytest.raises(ConfigurationWrong) as refused:
        read_secret(path)
    assert refused.value.code == "CFD-C05"
    assert refused.value.exit_status == 78
    assert f"{open_to:04o}" in refused.value.message
    assert "chmod 600" in refused.value.hint
    path.chmod(0o600)
    assert read_secret(path) == b"secret"


def test_what_can_not_be_written_is_said_with_the_account_that_tried_and_the_owner(tmp_path: Path) -> None:
    problem = cannot_write(tmp_path / "none" / "file", PermissionError(13, "Permission denied"))
    assert f"cannot write {tmp_path}/none/file (uid {os.geteuid()}, owner " in problem.message
    assert problem.exit_status == 78


def test_a_read_only_home_is_named_as_such(tmp_path: Path) -> None:
    problem = cannot_write(tmp_path, OSError(30, "Read-only file system"))
    assert "read-only file system" in problem.message


def test_a_file_in_the_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "home").write_bytes(b"")
    with pytest.raises(ConfigurationWrong, match=r"a file stands in the way|Not a directory"):
        make_folder(tmp_path / "home" / "keys")
    with pytest.raises(ConfigurationWrong, match="a file stands in the way"):
        make_folder(tmp_path / "home")


def test_a_missing_file_is_said_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationWrong, match=r"cannot read .*none"):
        read_bytes(tmp_path / "none")


def test_a_file_over_its_limit_is_refused(tmp_path: Path) -> None:
    write_whole(tmp_path / "a", b"12345")
    assert read_bytes(tmp_path / "a", limit_bytes=5) == b"12345"
    with pytest.raises(ConfigurationWrong, match="larger than 4 bytes"):
        read_bytes(tmp_path / "a", limit_bytes=4)


def test_a_second_holder_of_a_home_is_refused_with_the_first_ones_process_id(tmp_path: Path) -> None:
    with HomeLock(tmp_path), pytest.raises(ConfigurationWrong) as refused:
        HomeLock(tmp_path).acquire()
    assert refused.value.code == "CFD-G03"
    assert f"process {os.getpid()} already uses {tmp_path}" in refused.value.message
    HomeLock(tmp_path).acquire().release()


def test_two_homes_are_independent(tmp_path: Path) -> None:
    with HomeLock(tmp_path / "one"), HomeLock(tmp_path / "two"):
        pass


HOLD = """
import sys, time
from pathlib import Path
from federation.edge.files import HomeLock
lock = HomeLock(Path(sys.argv[1])).acquire()
print("held", flush=True)
time.sleep(60)
"""


@pytest.mark.process
def test_a_killed_process_leaves_no_lock_behind(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[4]
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(root)}
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(ConfigurationWrong, match=f"process {holder.pid} already uses"):
            HomeLock(tmp_path).acquire()
        holder.kill()
    HomeLock(tmp_path).acquire().release()


def test_a_lock_given_back_twice_is_harmless(tmp_path: Path) -> None:
    lock = HomeLock(tmp_path).acquire()
    assert lock.acquire() is lock
    lock.release()
    lock.release()
