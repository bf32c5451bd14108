"""What a site and the coordinator say to each other while the site is enrolled or renews its certificate; pure.

An `EnrolRequest` is signed by the identity key that it names, over its canonical bytes with an empty `signature`, so
that whoever intercepts it can't put other keys beside the secret. Certificates and requests travel as DER in hex,
public keys as 32 raw bytes in hex, keys of the audit log as C2SP vkeys.
"""

from typing import Annotated, Final, TypeVar

from pydantic import Field, ValidationError

from audit.errors import NoteRefused
from audit.note import VerifierKey
from federation import canonical
from federation.errors import InvalidInput
from federation.identity import IdentityKey, check_signature
from federation.messages import Body, Count, HexBytes, MemberStatus, SiteName

ENROL_KIND: Final = "enrol"
RENEW_KIND: Final = "renew"
MAX_BYTES: Final = 1 << 20

PublicKey = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Signature = Annotated[str, Field(pattern=r"^(?:[0-9a-f]{128})?$")]
Secret = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", repr=False)]
Document = Annotated[HexBytes, Field(max_length=2 * 65_536)]
VKey = Annotated[str, Field(pattern=r"^[A-Za-z0-9._/:-]{1,200}\+[0-9a-f]{8}\+[A-Za-z0-9+/=]{40,60}$")]


class AuditKeys(Body):
    """The public keys of a party's audit log, as C2SP vkeys: of the log, of its writing processes, of its witness."""

    log: VKey
    writers: tuple[VKey, ...] = Field(min_length=1, max_length=8)
    witness: VKey

    def public_keys(self) -> tuple[str, ...]:
        """Return the keys themselves, without name and type, in the one form in which equal keys are equal."""
        return tuple(_public_key(vkey) for vkey in (self.log, *self.writers, self.witness))


def _public_key(vkey: str) -> str:
    try:
        return VerifierKey.parse(vkey).public.hex()
    except NoteRefused as refused:
        raise InvalidInput("CFD-E13", f"a key of the audit log is malformed: {refused.message}") from None


class EnrolRequest(Body):
    """A site asks to become a member: the token's secret, and the public half of what was born at the site."""

    federation: str = Field(max_length=63)
    site: SiteName
    secret: Secret
    certificate_request: Document
    identity: PublicKey
    audit: AuditKeys
    signature: Signature = ""


class EnrolReply(Body):
    """The site's certificate, and the charter in force, which names the coordinator. A pending site is in none yet."""

    status: MemberStatus
    certificate: Document
    authority: Document
    epoch: Count
    charter: HexBytes
    charter_signature: Signature


class RenewRequest(Body):
    """A member asks for a new certificate for the key that the charter names; signed by its identity key."""

    site: SiteName
    certificate_request: Document
    signature: Signature = ""


class RenewReply(Body):
    """A certificate with a later end, for the same key and name."""

    certificate: Document
    authority: Document


R = TypeVar("R", EnrolRequest, RenewRequest)
B = TypeVar("B", bound=Body)


def encode(message: Body) -> bytes:
    """Return the canonical bytes of `message`."""
    return canonical.encode(message.model_dump(mode="json"))


def decode(model: type[B], data: bytes) -> B:
    """Return the `model` in `data`.

    Raises:
        InvalidInput: Too large, not canonical, or not of the model's schema; no value of it is repeated.
    """
    try:
        canonical.decode(data, limit_bytes=MAX_BYTES)
        return model.model_validate_json(data)
    except canonical.NotCanonical as problem:
        raise InvalidInput("CFD-E13", f"the enrolment message can't be read: {problem}") from None
    except ValidationError as problem:
        fields = ", ".join(str(error["loc"][0]) if error["loc"] else "it" for error in problem.errors()[:5])
        raise InvalidInput("CFD-E13", f"the enrolment message is malformed in: {fields}") from None


def _kind(message: EnrolRequest | RenewRequest) -> str:
    return ENROL_KIND if isinstance(message, EnrolRequest) else RENEW_KIND


def sign(message: R, key: IdentityKey) -> R:
    """Return `message` with the signature of `key`."""
    bare = message.model_copy(update={"signature": ""})
    return message.model_copy(update={"signature": key.sign(_kind(message), encode(bare)).hex()})


def check(message: EnrolRequest | RenewRequest, public_key: bytes) -> None:
    """Return if `message` is signed by `public_key`.

    Raises:
        NotAuthenticated: It is not.
    """
    bare = message.model_copy(update={"signature": ""})
    check_signature(public_key, _kind(message), encode(bare), bytes.fromhex(message.signature))
