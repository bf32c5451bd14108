import pickle  # only to show that a secret key refuses it

import pytest
from hypothesis import given
from hypothesis import strategies as st

from federation.certificates import new_tls_key, tls_key_to_pem
from federation.errors import ConfigurationWrong, InvalidInput, NotAuthenticated
from federation.identity import IdentityKey, check_public_key, check_signature


def test_a_signature_is_for_one_key_one_kind_and_one_body() -> None:
    key, other = IdentityKey.generate(), IdentityKey.generate()
    signature = key.sign("hello", b"{}")
    check_signature(key.public, "hello", b"{}", signature)
    for public, kind, body, shown in [
        (other.public, "hello", b"{}", signature),
        (key.public, "answer", b"{}", signature),
        (key.public, "hello", b"{ }", signature),
        (key.public, "hello", b"{}", signature[:-1] + bytes([signature[-1] ^ 1])),
        (key.public, "hello", b"{}", b""),
        (key.public[:-1], "hello", b"{}", signature),
    ]:
        with pytest.raises(NotAuthenticated) as refused:
            check_signature(public, kind, body, shown)
        assert (refused.value.code, refused.value.exit_status) == ("CFD-E01", 3)


def test_a_secret_key_shows_nothing_of_itself() -> None:
    key = IdentityKey.generate()
    secret = key.to_pem().decode().splitlines()[1]
    assert secret not in repr(key) + str(key)
    with pytest.raises(TypeError, match="not serialised"):
        pickle.dumps(key)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda pem: pem,
        lambda pem: pem.replace(b"\n", b"\r\n"),
        lambda pem: b"\xef\xbb\xbf" + pem,
        lambda pem: b"\xef\xbb\xbf\r\n" + pem.replace(b"\n", b"  \r\n") + b"\r\n\r\n",
        lambda pem: pem.replace(b"\n", b"\r"),
    ],
)
def test_a_key_file_that_windows_touched_is_still_the_key(spoil) -> None:  # type: ignore[no-untyped-def]
    key = IdentityKey.generate()
    assert IdentityKey.from_pem(spoil(key.to_pem()), name="a").public == key.public


@pytest.mark.parametrize(
    "content",
    [b"", b"not PEM", tls_key_to_pem(new_tls_key()), IdentityKey.generate().to_pem()[:60]],
    ids=["empty", "not PEM", "another kind", "cut"],
)
def test_a_file_without_such_a_key_is_named(content: bytes) -> None:
    with pytest.raises(ConfigurationWrong, match=r"keys/identity\.key holds") as refused:
        IdentityKey.from_pem(content, name="keys/identity.key")
    assert refused.value.exit_status == 78


# RFC 8032 encodings of the points whose order divides 8, and of points off the curve or not reduced.
WEAK = [
    "01" + "00" * 31,
    "00" * 32,
    "00" * 31 + "80",
    "ec" + "ff" * 30 + "7f",
    "ed" + "ff" * 30 + "7f",
    "ee" + "ff" * 30 + "7f",
    "ff" * 32,
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
    "02" + "00" * 31,
]


@pytest.mark.parametrize("public", WEAK)
def test_a_key_for_which_anybody_can_sign_is_refused(public: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_public_key(bytes.fromhex(public))
    assert refused.value.code == "CFD-E25"


@given(st.binary(min_size=32, max_size=32))
def test_every_real_key_is_accepted(seed: bytes) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = IdentityKey(Ed25519PrivateKey.from_private_bytes(seed))
    assert check_public_key(key.public) == key.public
