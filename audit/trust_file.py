"""A home's trust policies on disk: what whoever reads this home believes about one party's log.

One file for each party, replaced whole, so that a reader sees the old policy or the new one. What a policy says and how
it is read is `trust`'s.
"""

from collections.abc import Iterable
from pathlib import Path

from audit import durable
from audit.trust import format_policy, parse_policy


def pin_another_log_key(folder: Path, *, party: str, log_key: str) -> Path:
    """Let the policy of `party` pin one more key of its log, such as a new epoch's, and return the file.

    Raises:
        NoteRefused: The file holds no policy.
    """
    path = folder / f"{party}.policy"
    if not path.exists():
        return write_trust_policy(folder, party=party, log_keys=[log_key])
    text = f"log {log_key}\n" + path.read_text(encoding="utf-8")
    parse_policy(text)
    durable.replace_file(path, text.encode())
    return path


def write_trust_policy(
    folder: Path,
    *,
    party: str,
    log_keys: Iterable[str],
    witnesses: dict[str, str] | None = None,
    operators: dict[str, list[str]] | None = None,
    quorum: int = 0,
) -> Path:
    """Write ``<folder>/<party>.policy``, what a reader of this home trusts about one party's log, and return it.

    Args:
        folder: The home's folder `trust`.
        party: Whose log.
        log_keys: Its verifier keys.
        witnesses: Verifier keys of the witnesses, by party.
        operators: Parties by operator, where one runs several.
        quorum: How many operators must cosign.
    """
    durable.make_folder(folder)
    path = folder / f"{party}.policy"
    durable.replace_file(path, format_policy(log_keys, witnesses or {}, operators or {}, quorum).encode())
    return path
