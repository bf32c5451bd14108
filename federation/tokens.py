"""The one-time token with which a site enrols: who to talk to, how to know them, and a secret; pure.

`cfd1.` and base64url of canonical JSON. The token holds the certificate of the federation's certificate authority and
its root key, so enrolment is not trust on first use: the site checks the server against these before the secret
leaves. The coordinator keeps only the SHA-256 of the secret. Blanks, line ends and a byte-order mark that mail
programs and Windows leave around a token are ignored; a token with a character changed is refused.
"""

import base64
import hashlib
import hmac
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Final

from pydantic import Field, ValidationError

from federation import canonical
from federation.certificates import authority_from_der, public_key_digest
from federation.errors import InvalidInput, NotAuthenticated
from federation.identity import check_public_key
from federation.messages import Body, Count, Digest, HexBytes, SiteName

PREFIX: Final = "cfd1."
SECRET_BYTES: Final = 32
MAX_CHARACTERS: Final = 16_384


class _Content(Body):
    federation: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,62}$")]
    site: SiteName
    address: Annotated[str, Field(min_length=3, max_length=300)]
    authority: HexBytes
    authority_sha256: Digest
    root: Digest
    secret: Digest
    expires: Count


@dataclass(frozen=True, slots=True)
class EnrolToken:
    """What a token says.

    Attributes:
        federation: Name of the federation.
        site: Site id that the token is for.
        address: ``host:port`` of the coordinator.
        authority_der: Certificate of the federation's certificate authority.
        root_public: The federation's root key, 32 bytes.
        secret: What only the invited site knows, 32 bytes.
        expires: When the coordinator stops to take it, UTC, whole seconds.
    """

    federation: str
    site: str
    address: str
    authority_der: bytes
    root_public: bytes
    secret: bytes = field(repr=False)
    expires: datetime


def encode(token: EnrolToken) -> str:
    """Return the text of `token`, one line."""
    content = _Content(
        federation=token.federation,
        site=token.site,
        address=token.address,
        authority=token.authority_der.hex(),
        authority_sha256=public_key_digest(authority_from_der(token.authority_der)),
        root=token.root_public.hex(),
        secret=token.secret.hex(),
        expires=int(token.expires.timestamp()),
    )
    data = canonical.encode(content.model_dump(mode="json"))
    return PREFIX + base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def decode(text: str) -> EnrolToken:
    """Return the token in `text`.

    Raises:
        InvalidInput: Cut short, changed, or no token at all; its content is not repeated.
    """
    tidy = "".join(text.replace("\ufeff", "").split())
    if not tidy.startswith(PREFIX):
        raise InvalidInput("CFD-E05", f"this is no enrolment token: it must begin with {PREFIX}")
    encoded = tidy.removeprefix(PREFIX)
    if len(encoded) > MAX_CHARACTERS:
        raise InvalidInput("CFD-E05", f"the enrolment token has {len(encoded)} characters, at most {MAX_CHARACTERS}")
    try:
        data = base64.b64decode(encoded.encode("ascii") + b"=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
        canonical.decode(data, limit_bytes=MAX_CHARACTERS)
        content = _Content.model_validate_json(data)
        if base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii") != encoded:
            raise ValueError
        authority = authority_from_der(bytes.fromhex(content.authority))
        check_public_key(bytes.fromhex(content.root))
    except (ValueError, ValidationError, InvalidInput, NotAuthenticated):
        raise InvalidInput("CFD-E05", "the enrolment token is incomplete or was changed on its way") from None
    if not hmac.compare_digest(public_key_digest(authority), content.authority_sha256):
        raise InvalidInput("CFD-E05", "the enrolment token contradicts itself: its authority has another key")
    return EnrolToken(
        federation=content.federation,
        site=content.site,
        address=content.address,
        authority_der=bytes.fromhex(content.authority),
        root_public=bytes.fromhex(content.root),
        secret=bytes.fromhex(content.secret),
        expires=datetime.fromtimestamp(content.expires, UTC),
    )


def secret_digest(secret: bytes) -> str:
    """Return what the coordinator keeps of a secret: SHA-256 in hex, apart from other uses of that hash."""
    return hashlib.sha256(b"confide-enrol-token/v1\n" + secret).hexdigest()


def secret_matches(secret: bytes, digest: str) -> bool:
    """Return whether `digest` is of `secret`, in a time that doesn't depend on where they differ."""
    return hmac.compare_digest(secret_digest(secret), digest)
