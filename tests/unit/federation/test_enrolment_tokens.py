import base64
from datetime import timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from federation import canonical, tokens
from federation.certificates import certificate_to_der
from federation.errors import InvalidInput
from federation.identity import IdentityKey
from tests.support.membership import FEDERATION, NOON, authority

# The library warns of a serial number that isn't positive; a changed byte makes one now and then.
pytestmark = pytest.mark.filterwarnings("ignore:Parsed a serial number")

AUTHORITY = certificate_to_der(authority().certificate)
TOKEN = tokens.EnrolToken(
    federation=FEDERATION,
    site="st-anna",
    address="coordinator.example.org:9443",
    authority_der=AUTHORITY,
    root_public=IdentityKey.generate().public,
    secret=b"s" * 32,
    expires=NOON + timedelta(days=7),
)
TEXT = tokens.encode(TOKEN)


def test_a_token_reads_back_as_it_was_made() -> None:
    assert tokens.decode(TEXT) == TOKEN
    assert TEXT.startswith("cfd1.")
    assert "\n" not in TEXT


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: f"{text}\r\n",
        lambda text: f"\ufeff{text}\n",
        lambda text: f"  {text}\t",
        lambda text: "\r\n".join(text[at : at + 76] for at in range(0, len(text), 76)),
    ],
)
def test_what_mail_and_windows_add_is_ignored(spoil) -> None:  # type: ignore[no-untyped-def]
    assert tokens.decode(spoil(TEXT)) == TOKEN


@given(st.integers(min_value=5, max_value=len(TEXT) - 1), st.sampled_from("ABCxyz019-_"))
@example(place=112, letter="x")  # a certificate of a version that doesn't exist
def test_a_token_with_a_character_changed_is_another_token_or_none(place: int, letter: str) -> None:
    changed = TEXT[:place] + letter + TEXT[place + 1 :]
    try:
        found = tokens.decode(changed)
    except InvalidInput:
        return
    assert changed == TEXT or found != TOKEN


@pytest.mark.parametrize(
    "text",
    ["", "cfd1.", "cfd2." + TEXT[5:], TEXT[:-1], TEXT[:100], TEXT + "A", TEXT + "=", "cfd1.é", "cfd1." + "A" * 20_000],
    ids=["empty", "no body", "version", "one less", "cut", "one more", "padding", "not ASCII", "too long"],
)
def test_a_token_that_was_cut_or_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        tokens.decode(text)
    assert (refused.value.code, refused.value.exit_status) == ("CFD-E05", 2)


def forged(**changes: object) -> str:
    content = canonical.decode(base64.urlsafe_b64decode(TEXT[5:] + "=" * (-len(TEXT[5:]) % 4)))
    data = canonical.encode({**content, **changes})
    return "cfd1." + base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@pytest.mark.parametrize(
    "changes",
    [
        {"authority": certificate_to_der(authority().certificate).hex()},
        {"authority_sha256": "0" * 64},
        {"authority": "00"},
        {"root": "01" + "00" * 31},
        {"site": "St Anna"},
        {"federation": "-"},
        {"secret": "00"},
        {"expires": -1},
        {"more": 1},
    ],
)
def test_a_token_that_contradicts_itself_is_refused(changes: dict[str, object]) -> None:
    assert tokens.decode(forged()) == TOKEN
    with pytest.raises(InvalidInput) as refused:
        tokens.decode(forged(**changes))
    assert refused.value.code == "CFD-E05"


def test_the_secret_is_kept_as_a_digest_and_never_shown() -> None:
    digest = tokens.secret_digest(TOKEN.secret)
    assert TOKEN.secret.hex() not in digest
    assert tokens.secret_matches(TOKEN.secret, digest)
    assert not tokens.secret_matches(b"t" * 32, digest)
    assert TOKEN.secret.hex() not in repr(TOKEN)
    assert repr(TOKEN.secret) not in repr(TOKEN)
