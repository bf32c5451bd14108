import getpass
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from federation.edge.files import HomeLock, make_folder, read_secret, write_whole
from federation.errors import ConfigurationWrong


def as_another_account(act: Callable[[], object]) -> str:
    """Return what `act` says in a process that may not write: another account, or this one where that can't be had."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        message = "nothing was refused"
        try:
            if os.geteuid() == 0:
                os.setgid(12345)
                os.setuid(12345)
            act()
        except ConfigurationWrong as problem:
            message = f"{problem.exit_status} {problem.message}"
        finally:
            os.write(writing, message.encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        found = pipe.read().decode()
    os.waitpid(child, 0)
    return found


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """A mounted volume that belongs to the account of the tests and that nobody else may write."""
    for place in (tmp_path, *tmp_path.parents):
        if place.owner() == getpass.getuser() and place.is_relative_to(tempfile.gettempdir()):
            place.chmod(place.stat().st_mode | 0o055)
    made = tmp_path / "data"
    made.mkdir()
    made.chmod(0o555)
    return made


@pytest.mark.parametrize(
    "act",
    [
        lambda volume: make_folder(volume / "home"),
        lambda volume: write_whole(volume / "file", b""),
        lambda volume: HomeLock(volume).acquire(),
    ],
)
def test_an_account_that_may_not_write_is_told_so_once_with_both_accounts(
    volume: Path, act: Callable[[Path], object]
) -> None:
    said = as_another_account(lambda: act(volume))
    uid = 12345 if os.geteuid() == 0 else os.geteuid()
    assert said.startswith(f"78 cannot write {volume}")
    assert f"(uid {uid}, owner " in said


def test_an_account_that_may_not_read_is_told_so(volume: Path) -> None:
    volume.chmod(0o755)
    write_whole(volume / "a.key", b"secret")
    if os.geteuid() != 0:
        (volume / "a.key").chmod(0o000)
    said = as_another_account(lambda: read_secret(volume / "a.key"))
    assert said.startswith(f"78 cannot read {volume / 'a.key'} (uid ")
