"""What every body of a message is made of: its grammar, its strictness, and how it names a blob; pure."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from federation import canonical

# pydantic compiles these with Rust's regex, where `$` is the very end of the text, line feed included.
_SITE = r"^[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?$"
_JOB = r"^[a-z0-9][a-z0-9-]{0,62}-[0-9a-f]{6}$"
_DIGEST = r"^[0-9a-f]{64}$"
_TOKEN = r"^[A-Za-z0-9][A-Za-z0-9._:/@=+-]{0,127}$"  # noqa: S105 (a grammar, not a secret)
_HEX_FLOAT = r"^(?:-?0x[01]\.[0-9a-f]{1,13}p[+-][0-9]{1,4}|-?0x0\.0p\+0|inf)$"

SiteName = Annotated[str, Field(pattern=_SITE)]
JobName = Annotated[str, Field(pattern=_JOB)]
Digest = Annotated[str, Field(pattern=_DIGEST)]
Token = Annotated[str, Field(pattern=_TOKEN)]
HexFloat = Annotated[str, Field(pattern=_HEX_FLOAT)]
"""A real number as `float.hex` gives it, so that its bytes don't depend on a language's printing."""
HexBytes = Annotated[str, Field(pattern=r"^(?:[0-9a-f]{2})*$", max_length=4 << 20)]
Count = Annotated[int, Field(ge=0, le=canonical.MAX_INTEGER)]


class Body(BaseModel):
    """A message body: frozen, strict, unknown fields refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class BlobReference(Body):
    """A content-addressed blob: `root` is the SHA-256 over the hashes of its 1 MiB chunks (see `link.blobs`)."""

    root: Digest
    size_bytes: Count
