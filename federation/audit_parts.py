"""Parts of entries that the coordinator and the sites write alike; pure."""

import re
from typing import Final

from audit import events
from federation.plan_fields import Purpose

_CODE: Final = re.compile(r"CFD-[A-Z][0-9]{2,3}", re.ASCII)


def code_text(code: str, *, other: str) -> str:
    """Return another party's code if an entry can hold it, else our own code `other`."""
    return code if _CODE.fullmatch(code) else other


def hash_text(digest: str) -> str:
    """Return a digest as the log writes a hash of bytes: ``sha256:`` and 64 hex digits."""
    return digest if digest.startswith("sha256:") else f"sha256:{digest}"


def purpose_of(purpose: Purpose) -> events.Purpose:
    """Return a plan's purpose by its codes; its sentence stays in the plan."""
    return events.Purpose(code=_token(purpose.code), basis=_maybe(purpose.basis), permit=_maybe(purpose.permit))


def _token(text: str) -> str:
    # The plan's tokens may hold a plus sign, the log's may not.
    return text.replace("+", "-")


def _maybe(text: str | None) -> str | None:
    return None if text is None else _token(text)
