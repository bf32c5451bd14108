"""The parts of the site's entries: budget, what leaves, versions, in the grammar of the audit log; pure."""

import hashlib
from collections.abc import Mapping

from audit import events
from federation.audit_parts import hash_text


def id_of(action: str, *about: object) -> str:
    """Return the id of an entry about something that is recorded once, however often it is met."""
    text = "\n".join(["confide-site-event/v1", action, *(str(part) for part in about)])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def budget_of(part: Mapping[str, object]) -> events.Budget:
    """Return the ledger's figures as an entry holds them."""
    return events.Budget.model_validate(dict(part))


def egress_of(what: str, digest: str, size_bytes: int) -> events.Egress:
    """Return what leaves for the coordinator, by hash and size."""
    return events.Egress.model_validate(
        {"what": what, "hash": hash_text(digest), "bytes": size_bytes, "to": "coordinator", "encrypted": True}
    )


def field_name(name: str) -> str:
    """Return `name` as the name of a field."""
    return "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in name.lower())[:64]


def plain_token(text: str) -> str:
    """Return `text` as a token, with a dash for what a token can't hold."""
    kept = "".join(letter if (letter.isascii() and letter.isalnum()) or letter in "._:/@=-" else "-" for letter in text)
    return kept.strip("-")[:128] or "unknown"
