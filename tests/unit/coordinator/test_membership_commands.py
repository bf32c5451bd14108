"""The commands about members, each as a person runs it, in a home of its own."""

import json
import shlex
import stat
from pathlib import Path
from typing import Any

import pytest

from coordinator.job_command import VERBS as JOB_VERBS
from coordinator.membership_command import VERBS
from coordinator.membership_home import load
from federation import tokens
from federation.certificates import names_of
from federation.edge.homes import CoordinatorHome
from federation.errors import ConfideError, ConfigurationWrong, InvalidInput
from tests.support.membership import decided


class Coordinator:
    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.home = CoordinatorHome(path)
        self._capsys = capsys

    def run(self, verb: str, *arguments: str) -> str:
        """Run one command and return its standard output."""
        self._capsys.readouterr()
        assert VERBS[verb]([*arguments, "--home", str(self.home.path)]) == 0
        done = self._capsys.readouterr()
        self.said = done.err
        return done.out

    def json(self, verb: str, *arguments: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.run(verb, *arguments, "--format", "json"))
        return document


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "coordinator"
    arguments = ["--name", "heart.example.org", "--address", "coordinator.example.org:9443", "--home", str(path)]
    assert VERBS["init"](arguments) == 0
    return path


@pytest.fixture
def coordinator(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Coordinator:
    import shutil

    shutil.copytree(made, tmp_path / "coordinator")
    return Coordinator(CoordinatorHome(tmp_path / "coordinator").path, capsys)


def test_init_makes_a_complete_private_home(coordinator: Coordinator) -> None:
    home = coordinator.home
    configuration = load(home)
    assert (configuration.federation, configuration.address) == ("heart.example.org", "coordinator.example.org:9443")
    assert names_of(home.certificate()) == ["coordinator.example.org"]
    assert home.credentials().authority
    for path in home.path.rglob("*"):
        assert stat.S_IMODE(path.lstat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    assert decided(home.audit) == [("charter.changed", "allowed")]
    assert (home.trust / "coordinator.policy").exists()


def test_init_leaves_a_home_that_is_there_alone(coordinator: Coordinator) -> None:
    before = {path: path.read_bytes() for path in coordinator.home.path.rglob("*") if path.is_file()}
    with pytest.raises(InvalidInput) as refused:
        coordinator.run("init", "--name", "x", "--address", "y:1")
    assert refused.value.code == "CFD-E21"
    assert {path: path.read_bytes() for path in coordinator.home.path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    "arguments",
    [
        ("--name", "Heart Federation", "--address", "a:1"),
        ("--name", "x", "--address", "http://a:1"),
        ("--name", "x", "--address", "a:99999"),
        ("--name", "x"),
        ("--name", "x", "--address", "a:1", "--operator", "two\nlines"),
    ],
)
def test_init_refuses_what_can_not_be_and_makes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    with pytest.raises(ConfideError) as refused:
        Coordinator(tmp_path / "c", capsys).run("init", *arguments)
    assert refused.value.exit_status == 2
    assert not (tmp_path / "c").exists()


def test_a_token_goes_to_the_screen_or_to_a_private_file(coordinator: Coordinator, tmp_path: Path) -> None:
    token = tokens.decode(coordinator.run("invite", "st-anna", "--operator", "St. Anna", "--expires", "12h"))
    assert (token.site, token.address) == ("st-anna", "coordinator.example.org:9443")
    assert token.root_public == coordinator.home.root_public()
    out = tmp_path / "token"
    assert coordinator.run("invite", "bern", "--operator", "Bern", "--out", str(out)) == ""
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert tokens.decode(out.read_text()).site == "bern"
    rows = coordinator.json("sites")["rows"]
    assert [(row["site"], row["operator"], row["status"]) for row in rows] == [
        ("bern", "Bern", "invited"),
        ("st-anna", "St. Anna", "invited"),
    ]
    assert decided(coordinator.home.audit)[-2:] == [("member.invited", "allowed")] * 2


def test_neither_log_nor_database_holds_a_secret(coordinator: Coordinator) -> None:
    token = tokens.decode(coordinator.run("invite", "st-anna", "--operator", "St. Anna"))
    coordinator.run("user", "add", "alice", "--role", "viewer")
    api_token = coordinator.home.token_file("alice").read_bytes().strip()
    for path in coordinator.home.path.rglob("*"):
        if path.is_file() and path.parent.name not in ("tokens", "people"):
            content = path.read_bytes()
            assert token.secret not in content
            assert token.secret.hex().encode() not in content
            assert api_token not in content


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("invite", "St Anna", "--operator", "x"), 2),
        (("invite", "coordinator", "--operator", "x"), 2),
        (("invite", "st-anna"), 2),
        (("invite", "st-anna", "--operator", "x", "--expires", "1y"), 2),
        (("invite", "st-anna", "--operator", "x", "--expires", "91d"), 2),
        (("invite", "st-anna", "--operator", "x\u202ey"), 2),
        (("sites", "show", "nobody"), 2),
        (("sites", "fly", "st-anna"), 2),
        (("sites", "revoke", "nobody"), 2),
        (("sites", "confirm", "nobody", "--words", "acid"), 2),
        (("user", "add", "no spaces", "--role", "viewer"), 2),
        (("user", "add", "alice", "--role", "root"), 2),
        (("user", "remove", "nobody"), 2),
        (("user", "fly"), 2),
        (("charter", "fly"), 2),
    ],
)
def test_what_is_refused_ends_with_its_status_and_leaves_no_entry(
    coordinator: Coordinator, arguments: tuple[str, ...], status: int
) -> None:
    before = decided(coordinator.home.audit)
    with pytest.raises(ConfideError) as refused:
        coordinator.run(*arguments)
    assert refused.value.exit_status == status
    assert decided(coordinator.home.audit) == before


def test_an_invitation_is_withdrawn_by_revoke_and_can_be_made_again(coordinator: Coordinator) -> None:
    coordinator.run("invite", "st-anna", "--operator", "St. Anna")
    coordinator.run("sites", "revoke", "st-anna")
    assert coordinator.json("sites", "show", "st-anna")["status"] == "withdrawn"
    coordinator.run("invite", "st-anna", "--operator", "St. Anna")
    assert coordinator.json("sites", "show", "st-anna")["status"] == "invited"


def test_a_person_gets_a_key_a_token_and_a_place_in_the_charter(coordinator: Coordinator) -> None:
    shown = coordinator.json("user", "add", "alice@example.org", "--role", "coordinator")
    for name in ("key_file", "token_file"):
        assert stat.S_IMODE(Path(shown[name]).stat().st_mode) == 0o600
    charter = coordinator.json("charter", "show")
    assert charter["epoch"] == 2
    assert [one["name"] for one in charter["charter"]["people"]] == ["alice@example.org"]
    with pytest.raises(InvalidInput):
        coordinator.run("user", "add", "alice@example.org", "--role", "viewer")
    coordinator.run("user", "remove", "alice@example.org")
    assert not Path(shown["token_file"]).exists()
    assert coordinator.json("charter", "show")["charter"]["people"] == []
    actions = [action for action, _ in decided(coordinator.home.audit)]
    assert actions[1:] == ["user.added", "charter.changed", "user.removed", "charter.changed"]


def test_without_the_root_key_a_change_waits_and_says_how_to_sign_it(coordinator: Coordinator, tmp_path: Path) -> None:
    offline = tmp_path / "safe.key"
    coordinator.home.root_file.rename(offline)
    coordinator.run("user", "add", "alice", "--role", "coordinator")
    assert "charter sign --root-key FILE" in coordinator.said
    shown = coordinator.json("charter", "show")
    assert (shown["epoch"], shown["proposed"]) == (1, [{"what": "person", "name": "alice", "change": "added"}])
    assert coordinator.json("user", "list")["rows"][0]["in_force"] is False
    with pytest.raises(InvalidInput) as refused:
        coordinator.run("charter", "sign")
    assert refused.value.code == "CFD-E20"
    coordinator.run("charter", "sign", "--root-key", str(offline))
    assert coordinator.json("charter", "show")["epoch"] == 2
    coordinator.run("charter", "sign")
    assert "nothing to sign" in coordinator.said


def test_another_key_is_not_taken_for_the_root_key(coordinator: Coordinator, tmp_path: Path) -> None:
    coordinator.home.root_file.rename(tmp_path / "safe.key")
    coordinator.run("user", "add", "alice", "--role", "coordinator")
    with pytest.raises(ConfideError) as refused:
        coordinator.run("charter", "sign", "--root-key", str(coordinator.home.person_key_file("alice")))
    assert refused.value.code == "CFD-E17"
    (tmp_path / "safe.key").chmod(0o644)
    with pytest.raises(ConfigurationWrong) as too_open:
        coordinator.run("charter", "sign", "--root-key", str(tmp_path / "safe.key"))
    assert too_open.value.code == "CFD-C05"
    assert coordinator.json("charter", "show")["epoch"] == 1


def test_the_certificate_is_issued_anew_for_the_names_in_the_configuration(coordinator: Coordinator) -> None:
    path = coordinator.home.configuration_file
    path.write_text(path.read_text() + "\n" + "link: {names: [10.0.0.7, other.example.org], listen: '0.0.0.0:9443'}\n")
    shown = coordinator.json("certificate", "renew")
    assert shown["names"] == ["coordinator.example.org", "10.0.0.7", "other.example.org"]
    assert coordinator.json("certificate", "show")["renewal_due"] is False


def test_a_key_that_others_may_read_stops_every_command(coordinator: Coordinator) -> None:
    coordinator.home.identity_file.chmod(0o640)
    with pytest.raises(ConfigurationWrong) as refused:
        coordinator.run("sites")
    assert (refused.value.code, refused.value.exit_status) == ("CFD-C05", 78)


def test_without_a_home_the_command_says_what_to_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigurationWrong) as refused:
        Coordinator(tmp_path / "none", capsys).run("sites")
    assert "coordinator init" in refused.value.hint


def test_charter_and_lists_are_shown_as_tables(coordinator: Coordinator) -> None:
    coordinator.run("user", "add", "alice", "--role", "viewer")
    coordinator.run("invite", "st-anna", "--operator", "St. Anna")
    assert "alice" in coordinator.run("charter")
    assert "alice" in coordinator.run("user")
    assert "invited" in coordinator.run("sites")
    assert "coordinator.example.org" in coordinator.run("certificate")


def test_the_last_lines_of_init_are_commands_that_work_and_a_submitter_without_a_person_is_told_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = str(tmp_path / "our coordinator")
    assert VERBS["init"](["--name", "heart.example.org", "--address", "127.0.0.1:9443", "--home", home]) == 0
    next_steps = [shlex.split(line) for line in capsys.readouterr().err.splitlines()[-3:]]
    assert [step[:3] for step in next_steps] == [
        ["confide", "coordinator", "user"],
        ["confide", "coordinator", "serve"],
        ["confide", "coordinator", "invite"],
    ]
    assert all(step[-2:] == ["--home", home] for step in next_steps)
    assert JOB_VERBS["init"]([]) == 0
    plan = tmp_path / "job.yaml"
    plan.write_text(capsys.readouterr().out)
    with pytest.raises(InvalidInput) as nobody:
        JOB_VERBS["submit"]([str(plan), "--home", home])
    assert nobody.value.code == "CFD-J24"
    assert shlex.split(nobody.value.hint) == next_steps[0]
    named = [word.replace("NAME", "alice") for word in next_steps[0][3:]]
    assert VERBS["user"](named) == 0
    assert (tmp_path / "our coordinator" / "tokens" / "alice.token").exists()
