"""Parts of entries that the coordinator and the sites write alike; pure."""

from audit import events
from federation.plan_fields import Purpose


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
