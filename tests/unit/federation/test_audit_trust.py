from audit.trust import format_policy, parse_policy
from federation.audit_trust import LogTrust, log_trusts, operator_token
from federation.charter import Charter
from federation.messages import MemberStatus
from tests.support.membership import FederationKeys, SiteKeys

ANNA, BERN, CHUR, DAVOS = (SiteKeys(name) for name in ("st-anna", "bern", "chur", "davos"))


def by_party(charter: Charter, *unknown: str) -> dict[str, LogTrust]:
    return {one.party: one for one in log_trusts(charter, accepts=lambda site: site not in unknown)}


def test_witnesses_are_the_other_parties_and_more_than_half_of_their_operators_must_agree() -> None:
    found = by_party(FederationKeys().charter(ANNA.member(), BERN.member(), CHUR.member()))
    assert set(found["st-anna"].witnesses) == {"coordinator", "bern", "chur"}
    assert found["st-anna"].quorum == 2
    assert set(found["coordinator"].witnesses) == {"st-anna", "bern", "chur"}


def test_an_operator_with_several_sites_has_one_voice_and_none_about_its_own_logs() -> None:
    charter = FederationKeys().charter(ANNA.member(), BERN.member(operator="Alps AG"), CHUR.member(operator="Alps AG"))
    found = by_party(charter)
    assert found["st-anna"].operators == {operator_token("Alps AG"): ["bern", "chur"]}
    assert found["st-anna"].quorum == 2
    assert set(found["bern"].witnesses) == {"coordinator", "st-anna"}
    assert found["bern"].operators == {}


def test_a_coordinator_alone_has_no_witnesses_and_no_quorum() -> None:
    (only,) = log_trusts(FederationKeys().charter(), accepts=lambda _: True)
    assert (only.party, only.witnesses, only.quorum) == ("coordinator", {}, 0)


def test_members_that_are_not_accepted_or_not_active_never_witness() -> None:
    charter = FederationKeys().charter(
        ANNA.member(), BERN.member(), CHUR.member(), DAVOS.member(status=MemberStatus.SUSPENDED)
    )
    found = by_party(charter, "bern")
    assert set(found) == {"coordinator", "st-anna", "chur"}
    assert set(found["st-anna"].witnesses) == {"coordinator", "chur"}


def test_each_result_is_a_valid_policy_file() -> None:
    charter = FederationKeys().charter(
        ANNA.member(), BERN.member(operator="Älps & Co"), CHUR.member(operator="Älps & Co")
    )
    for one in log_trusts(charter, accepts=lambda _: True):
        policy = parse_policy(format_policy([one.log_key], one.witnesses, one.operators, one.quorum))
        assert policy.needed() == one.quorum


def test_two_organisations_have_two_names_however_alike_they_are_written() -> None:
    assert operator_token("St. Anna") != operator_token("St Anna")
