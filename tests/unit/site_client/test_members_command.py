import io
import json
from pathlib import Path
from typing import Any

import pytest

from federation.edge.audit_trail import begin_log
from federation.edge.clock import SystemClock
from federation.edge.files import make_folder, write_whole
from federation.edge.homes import SiteHome
from federation.errors import ConfideError, ConfigurationWrong
from site_client.charter_store import CharterStore
from site_client.enrolment import POLICY
from site_client.membership_command import VERBS
from tests.support.membership import FEDERATION, FederationKeys, SiteKeys, decided


class Site:
    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.home = SiteHome(path)
        self._capsys = capsys
        keys = FederationKeys()
        for folder in self.home.folders():
            make_folder(folder)
        write_whole(self.home.root_public_file, keys.root.public.hex().encode())
        write_whole(self.home.policy_file, POLICY.encode())
        write_whole(self.home.configuration_file, b"site: st-anna\ncoordinator: {address: 'a:1'}\n")
        begin_log(self.home.audit, federation=FEDERATION, party="st-anna", clock=SystemClock())
        epoch = keys.next_epoch(SiteKeys("st-anna").member(), SiteKeys("bern").member(), SiteKeys("chur").member())
        self.store = CharterStore(self.home, own_site="st-anna", accept_all=False)
        from audit.events import Actor

        self.store.receive(*epoch, record=lambda _: None, actor=Actor(kind="service", id="daemon"))

    def run(self, *arguments: str) -> str:
        self._capsys.readouterr()
        assert VERBS["members"]([*arguments, "--home", str(self.home.path)]) == 0
        done = self._capsys.readouterr()
        self.said = done.err
        return done.out

    def accepted(self) -> dict[str, str]:
        rows: list[dict[str, Any]] = json.loads(self.run("list", "--format", "json"))["rows"]
        return {row["site"]: row["accepted"] for row in rows}


@pytest.fixture
def site(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Site:
    return Site(tmp_path / "home", capsys)


def test_members_wait_until_the_operator_has_answered(site: Site) -> None:
    assert site.accepted() == {"st-anna": "this site", "bern": "no", "chur": "no"}
    assert "counted as colluding: bern, chur" in site.said
    site.run("accept", "bern", "--yes")
    assert "Operator of bern" in site.said
    site.run("refuse", "chur")
    assert site.accepted() == {"st-anna": "this site", "bern": "yes", "chur": "refused"}
    assert decided(site.home.audit) == [("member.enrolled", "allowed"), ("member.enrolled", "refused")]


def test_nobody_is_accepted_unasked_where_nobody_can_answer(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))  # no terminal
    with pytest.raises(ConfideError, match="compared") as refused:
        site.run("accept", "bern")
    assert refused.value.hint == "add --yes"
    assert site.accepted()["bern"] == "no"
    assert decided(site.home.audit) == []


def test_the_policys_line_is_read_at_each_command(site: Site) -> None:
    site.home.policy_file.write_text(POLICY.replace("members: ask", "members: accept"))
    assert site.accepted() == {"st-anna": "this site", "bern": "yes", "chur": "yes"}


def test_an_unknown_member_is_refused_and_not_recorded(site: Site) -> None:
    with pytest.raises(ConfideError) as refused:
        site.run("accept", "nobody")
    assert refused.value.code == "CFD-E26"
    assert decided(site.home.audit) == []


def test_an_answer_keeps_the_sites_own_number_of_witnesses(site: Site) -> None:
    settings = site.home.configuration_file.read_bytes() + b"audit: {witness_quorum: 1}\n"
    write_whole(site.home.configuration_file, settings)
    for member in ("bern", "chur"):
        site.run("accept", member, "--yes")
    assert "group others 1 " in (site.home.trust / "coordinator.policy").read_text()
    assert "group others 1 " in (site.home.trust / "st-anna.policy").read_text()


@pytest.mark.parametrize("arguments", [("fly",), ("accept",), ("list", "--format", "xml")])
def test_a_wrong_command_line_ends_with_an_example_that_works(site: Site, arguments: tuple[str, ...]) -> None:
    with pytest.raises(ConfideError) as refused:
        site.run(*arguments)
    assert refused.value.exit_status == 2


def test_help_needs_no_home(capsys: pytest.CaptureFixture[str]) -> None:
    assert VERBS["members"](["--help"]) == 0
    assert VERBS["enrol"](["--help"]) == 0
    assert "Example:" in capsys.readouterr().out


def test_a_home_that_is_not_enrolled_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationWrong) as refused:
        VERBS["members"](["list", "--home", str(tmp_path)])
    assert "confide site enrol" in refused.value.hint


@pytest.mark.parametrize("tokens", [(), ("--token", "a", "--token-file", "b")])
def test_enrol_takes_exactly_one_token(tmp_path: Path, tokens: tuple[str, ...]) -> None:
    with pytest.raises(ConfideError) as refused:
        VERBS["enrol"](["https://a:1", *tokens, "--home", str(tmp_path / "h")])
    assert refused.value.exit_status == 2
    assert "--token-file" in refused.value.hint
