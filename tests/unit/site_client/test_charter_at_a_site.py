from pathlib import Path

import pytest

from audit import events
from audit.note import Ed25519Signer
from audit.trust import parse_policy
from audit.trust_file import pin_another_log_key
from federation.edge.files import make_folder, write_whole
from federation.edge.homes import SiteHome
from federation.errors import ConfideError, ConfigurationWrong, NotAuthenticated, PeerMisbehaved
from federation.messages import MemberStatus
from site_client.charter_store import CharterStore
from tests.support.membership import FederationKeys, SiteKeys

DAEMON = events.Actor(kind="service", id="daemon")
ANNA, BERN = SiteKeys("st-anna"), SiteKeys("bern")


class Rig:
    def __init__(self, folder: Path, *, accept_all: bool = False) -> None:
        self.keys = FederationKeys()
        self.home = SiteHome(folder / "home")
        for place in self.home.folders():
            make_folder(place)
        write_whole(self.home.root_public_file, b"\xef\xbb\xbf" + self.keys.root.public.hex().encode() + b"\r\n")
        self.store = CharterStore(self.home, own_site="st-anna", accept_all=accept_all)
        self.recorded: list[events.Draft] = []

    def receive(self, epoch: tuple[bytes, bytes]) -> list[tuple[str, str]]:
        changes = self.store.receive(*epoch, record=self.recorded.extend, actor=DAEMON)
        return [(change.name, change.kind.value) for change in changes]

    def actions(self) -> list[str]:
        return [draft.action for draft in self.recorded]


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_each_epoch_is_recorded_kept_and_survives_a_restart(rig: Rig) -> None:
    assert rig.store.load() is None
    rig.receive(rig.keys.next_epoch(ANNA.member()))
    assert rig.receive(rig.keys.next_epoch(ANNA.member(), BERN.member())) == [("bern", "added")]
    rig.receive(rig.keys.next_epoch(ANNA.member(), BERN.member(status=MemberStatus.SUSPENDED)))
    assert rig.actions() == ["charter.changed", "charter.changed", "member.suspended", "charter.changed"]
    again = CharterStore(rig.home, own_site="st-anna", accept_all=False).loaded()
    assert again.charter.epoch == 3


def test_the_epoch_held_is_taken_again_without_a_trace(rig: Rig) -> None:
    first = rig.keys.next_epoch(ANNA.member())
    rig.receive(first)
    assert rig.receive(first) == []
    assert rig.actions() == ["charter.changed"]


def test_after_a_crash_between_log_and_file_the_same_entries_are_written_once(rig: Rig) -> None:
    first = rig.keys.next_epoch(ANNA.member())
    rig.receive(first)
    for path in rig.home.charter_folder.iterdir():
        path.unlink()
    rig.receive(first)
    assert rig.recorded[0].id == rig.recorded[1].id
    assert rig.recorded[0] == rig.recorded[1]


def test_an_epoch_without_its_signature_is_not_there(rig: Rig) -> None:
    rig.receive(rig.keys.next_epoch(ANNA.member()))
    rig.receive(rig.keys.next_epoch(ANNA.member(), BERN.member()))
    (rig.home.charter_folder / "2.signature").unlink()
    assert rig.store.loaded().charter.epoch == 1


def test_a_skipped_a_forked_and_a_forged_epoch_change_nothing(rig: Rig) -> None:
    first = rig.keys.next_epoch(ANNA.member())
    rig.receive(first)
    rig.keys.next_epoch(ANNA.member(), BERN.member())
    skipped = rig.keys.next_epoch(ANNA.member(), BERN.member(status=MemberStatus.REVOKED))
    with pytest.raises(NotAuthenticated):
        rig.receive(skipped)
    fork = FederationKeys(root=rig.keys.root, identity=rig.keys.identity, authority=rig.keys.authority)
    with pytest.raises(PeerMisbehaved):
        rig.receive(fork.next_epoch(ANNA.member(), BERN.member()))
    with pytest.raises(NotAuthenticated):
        rig.receive(FederationKeys().next_epoch(ANNA.member()))
    assert rig.store.loaded().body == first[0]
    assert [(entry.action, entry.decision) for entry in rig.recorded] == [
        ("charter.changed", "allowed"),
        ("charter.changed", "refused"),
        ("charter.changed", "refused"),
        ("charter.changed", "refused"),
    ]


def test_an_epoch_that_can_not_be_recorded_is_not_kept(rig: Rig) -> None:
    def full(drafts: list[events.Draft]) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        rig.store.receive(*rig.keys.next_epoch(ANNA.member()), record=full, actor=DAEMON)
    assert rig.store.load() is None


def test_an_altered_file_is_refused_by_its_name(rig: Rig) -> None:
    rig.receive(rig.keys.next_epoch(ANNA.member()))
    path = rig.home.charter_folder / "1.json"
    path.write_bytes(path.read_bytes().replace(b"active", b"revoke"))
    with pytest.raises(ConfigurationWrong, match=r"1\.json was altered"):
        rig.store.load()


def test_an_answer_is_kept_and_read_by_every_process(rig: Rig) -> None:
    rig.receive(rig.keys.next_epoch(ANNA.member(), BERN.member()))
    rig.store.answer("bern", accepted=True, by="alice")
    other = CharterStore(rig.home, own_site="st-anna", accept_all=False)
    assert other.loaded().accepts("bern")
    other.answer("bern", accepted=False, by="alice")
    assert rig.store.loaded().refused("bern")
    rig.home.charter_folder.joinpath("answers.json").write_bytes(b"{")
    with pytest.raises(ConfigurationWrong, match=r"answers\.json is damaged"):
        rig.store.load()


def trusted(rig: Rig, party: str) -> set[str]:
    return set(parse_policy((rig.home.trust / f"{party}.policy").read_text()).witnesses)


def test_only_accepted_members_become_witnesses(rig: Rig) -> None:
    rig.receive(rig.keys.next_epoch(ANNA.member(), BERN.member()))
    assert trusted(rig, "st-anna") == {"coordinator"}
    assert not (rig.home.trust / "bern.policy").exists()
    rig.store.answer("bern", accepted=True, by="alice")
    assert trusted(rig, "st-anna") == {"coordinator", "bern"}
    assert trusted(rig, "coordinator") == {"st-anna", "bern"}


def test_a_rewritten_policy_keeps_the_keys_of_the_logs_other_epochs(rig: Rig) -> None:
    """A new epoch of the own log is not yet in the charter; what an earlier charter pinned verifies earlier epochs."""
    rig.receive(rig.keys.next_epoch(ANNA.member(), BERN.member()))
    rig.store.answer("bern", accepted=True, by="alice")
    first = parse_policy((rig.home.trust / "st-anna.policy").read_text()).logs
    later = Ed25519Signer(first[0].name.removesuffix("1") + "2", bytes(32)).key
    pin_another_log_key(rig.home.trust, party="st-anna", log_key=str(later))
    rig.receive(rig.keys.next_epoch(ANNA.member(), BERN.member(), SiteKeys("chur").member()))
    kept = parse_policy((rig.home.trust / "st-anna.policy").read_text())
    assert (kept.logs, len(kept.witnesses)) == ((*first, later), 2)
    bern = parse_policy((rig.home.trust / "bern.policy").read_text())
    assert [key.name for key in bern.logs] == [first[0].name.replace("st-anna", "bern")]


def test_without_a_charter_nothing_can_be_answered(rig: Rig) -> None:
    with pytest.raises(ConfideError) as refused:
        rig.store.answer("bern", accepted=True, by="alice")
    assert refused.value.code == "CFD-E22"


def test_the_policys_line_accepts_all(tmp_path: Path) -> None:
    rig = Rig(tmp_path, accept_all=True)
    rig.receive(rig.keys.next_epoch(ANNA.member(), BERN.member()))
    assert rig.store.loaded().accepted_among(["st-anna", "bern"]) == 2
