"""`confide site policy edit`: in force only once it reads well, and never over somebody else's change."""

import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from federation.errors import CheckFailed, ConfideError, InvalidInput
from site_client import policy_command, policy_editing

POLICY = "apiVersion: confide/v1\nkind: SitePolicy\ndefault: ask\n"
STRICTER = POLICY.replace("ask", "refuse")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "site.yaml").write_text("site: mercy\n")
    (tmp_path / "policy.yaml").write_text(POLICY)
    return tmp_path


def edit(home: Path, *arguments: str) -> int:
    return policy_command.main(["edit", *arguments, "--home", str(home), "--format", "json"])


def in_a_terminal(home: Path, editor: str) -> tuple[int, str]:
    """Run the command with `editor` on a terminal of its own; return its exit status and what was on the terminal."""
    near, far = pty.openpty()
    command = [sys.executable, "-m", "confide_cli", "site", "policy", "edit", "--home", str(home)]
    environment = {**os.environ, "EDITOR": editor, "NO_COLOR": "1"}
    environment.pop("VISUAL", None)
    running = subprocess.Popen(command, stdin=far, stdout=far, stderr=far, env=environment)
    os.close(far)
    shown = b""
    while True:
        try:
            piece = os.read(near, 4096)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        shown += piece
    os.close(near)
    return running.wait(60), shown.decode()


def test_a_file_that_reads_well_takes_the_policys_place(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "new.yaml").write_text(STRICTER)
    assert edit(home, "--from", str(home / "new.yaml")) == 0
    assert json.loads(capsys.readouterr().out)["policy"] == "written; the daemon takes it over when it starts"
    assert (home / "policy.yaml").read_text() == STRICTER
    assert (home / "policy.yaml").stat().st_mode & 0o777 == 0o600


def test_a_file_that_reads_badly_changes_nothing(home: Path) -> None:
    (home / "new.yaml").write_text(POLICY + "defualt: allow\n")
    with pytest.raises(ConfideError, match="the policy in force stays"):
        edit(home, "--from", str(home / "new.yaml"))
    assert (home / "policy.yaml").read_text() == POLICY


def test_without_a_terminal_nobody_waits_for_an_editor(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(InvalidInput) as refused:
        edit(home)
    assert "--from" in refused.value.hint


def test_an_editor_changes_the_policy(home: Path) -> None:
    status, shown = in_a_terminal(home, "sed -i s/ask/refuse/")
    assert (status, (home / "policy.yaml").read_text()) == (0, STRICTER)
    assert "written" in shown
    assert not (home / policy_editing.DRAFT).exists()


def test_what_an_editor_left_wrong_is_kept_for_the_next_try(home: Path) -> None:
    status, shown = in_a_terminal(home, "sed -i s/ask/perhaps/")
    assert (status, (home / "policy.yaml").read_text()) == (78, POLICY)
    assert "CFD-S01" in shown
    assert "perhaps" in (home / policy_editing.DRAFT).read_text()
    assert in_a_terminal(home, "sed -i s/perhaps/refuse/")[0] == 0
    assert (home / "policy.yaml").read_text() == STRICTER


def test_an_editor_that_fails_or_isnt_there_changes_nothing(home: Path) -> None:
    for editor in ("false", "/no/such/editor"):
        status, shown = in_a_terminal(home, editor)
        assert (status, "CFD-S14" in shown, "Traceback" in shown) == (1, True, False)
    assert (home / "policy.yaml").read_text() == POLICY


def test_a_change_by_somebody_else_meanwhile_is_not_overwritten(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = POLICY.replace("ask", "allow")

    def edited(*_: object) -> bytes:
        (home / "policy.yaml").write_text(other)
        return STRICTER.encode()

    monkeypatch.setattr(policy_editing, "_edited", edited)
    with pytest.raises(CheckFailed) as refused:
        edit(home)
    assert refused.value.code == "CFD-S13"
    assert (home / "policy.yaml").read_text() == other
