"""A home's trust policies on disk: what whoever reads this home believes about one party's log.

One file for each party, replaced whole, so that a reader sees the old policy or the new one. What a policy says and how
it is read is `trust`'s.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from audit import durable
from audit.errors import NoteRefused
from audit.note import VerifierKey
from audit.trust import TrustPolicy, format_policy, parse_policy

SUFFIX: Final = ".policy"
MAX_POLICY_BYTES: Final = 1 << 20


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

    Keys of the log's other epochs that the file pins already stay behind the given ones: an earlier epoch is verified
    by them, and a later one is this home's own, begun here and not yet in anybody's charter.

    Args:
        folder: The home's folder `trust`.
        party: Whose log.
        log_keys: Its verifier keys.
        witnesses: Verifier keys of the witnesses, by party.
        operators: Parties by operator, where one runs several.
        quorum: How many operators must cosign.
    """
    durable.make_folder(folder)
    path = folder / f"{party}{SUFFIX}"
    keys = list(log_keys)
    text = format_policy([*keys, *_other_epochs(path, keys)], witnesses or {}, operators or {}, quorum).encode()
    if not path.is_file() or path.read_bytes() != text:
        durable.replace_file(path, text)
    return path


def _other_epochs(path: Path, log_keys: Iterable[str]) -> list[str]:
    """Return the keys in a policy file that are of the same log as `log_keys`, and of none of their epochs."""
    given = {VerifierKey.parse(vkey).name for vkey in log_keys}
    logs = {name.rpartition("/")[0] for name in given}
    try:
        known = parse_policy(path.read_text(encoding="utf-8")).logs
    except (OSError, UnicodeDecodeError, NoteRefused):
        return []
    return [str(key) for key in known if key.name not in given and key.name.rpartition("/")[0] in logs]


class TrustFolder:
    """A home's trust policies as a running process needs them: read again when their files change.

    Args:
        folder: The home's folder `trust`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[str, tuple[tuple[int, int], TrustPolicy]] = {}

    def policy(self, party: str) -> TrustPolicy | None:
        """Return what this home trusts about the log of `party`, None where it knows no such party.

        Raises:
            NoteRefused: The file is malformed.
        """
        path = self._folder / f"{party}{SUFFIX}"
        try:
            found = path.stat()
            mark = (found.st_mtime_ns, found.st_ino)
            known = self._read.get(party)
            if known is None or known[0] != mark:
                if found.st_size > MAX_POLICY_BYTES:
                    raise NoteRefused(f"trust policy {path} is too long")
                known = self._read[party] = (mark, parse_policy(path.read_text(encoding="utf-8", errors="replace")))
        except OSError:
            return None
        return known[1]

    def parties(self) -> tuple[str, ...]:
        """Return the parties whose logs this home knows, in order."""
        return tuple(sorted(path.name.removesuffix(SUFFIX) for path in self._folder.glob(f"[!.]*{SUFFIX}")))
