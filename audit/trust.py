"""What a reader trusts about one log: a policy file in the form of C2SP tlog-policy; pure.

    log <vkey>
    witness <party> <vkey>
    group <name> <number>|any|all <witness or group> …
    quorum <witness or group>|none

A key stands in one line only, and a name in one group only, so that each witness counts in one way. The log's own
party never witnesses it.

Without such a file, compared over the phone or taken from a home of one's own, a log may be whole and still be
anybody's.
"""

import re
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

from audit.errors import NoteRefused
from audit.note import COSIGNATURE, ED25519, MLDSA44, VerifierKey

NO_QUORUM: Final = "none"
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,3}\Z")
WITNESS_KINDS: Final = frozenset({COSIGNATURE, MLDSA44})


@dataclass(frozen=True, slots=True)
class Group:
    """So many of these members must have cosigned."""

    needed: int
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TrustPolicy:
    """The keys of one log and of its witnesses, and how many of them are enough.

    Attributes:
        logs: The log's keys; two while one replaces the other.
        witnesses: By party.
        groups: By name.
        quorum: A witness, a group, or `NO_QUORUM`.
    """

    logs: tuple[VerifierKey, ...]
    witnesses: Mapping[str, VerifierKey] = field(default_factory=dict)
    groups: Mapping[str, Group] = field(default_factory=dict)
    quorum: str = NO_QUORUM

    def for_origin(self, origin: str) -> tuple[VerifierKey, ...]:
        """Return the pinned log keys under the name `origin`."""
        return tuple(key for key in self.logs if key.name == origin)

    def needed(self) -> int:
        """Return how many cosignatures the quorum asks for at its top."""
        if self.quorum == NO_QUORUM:
            return 0
        group = self.groups.get(self.quorum)
        return 1 if group is None else group.needed

    def voices(self) -> tuple[str, ...]:
        """Return the witnesses and groups that the quorum counts at its top."""
        if self.quorum == NO_QUORUM:
            return ()
        group = self.groups.get(self.quorum)
        return (self.quorum,) if group is None else group.members

    def heard(self, cosigners: Iterable[VerifierKey]) -> tuple[str, ...]:
        """Return those of `voices` that these witnesses give: each once, whatever it consists of."""
        seen = {(key.name, key.id) for key in cosigners}
        holds = {name: (key.name, key.id) in seen for name, key in self.witnesses.items()}
        for name, group in self.groups.items():  # a group's members stand above it
            holds[name] = sum(holds[member] for member in group.members) >= group.needed
        return tuple(name for name in self.voices() if holds[name])

    def is_met(self, cosigners: Iterable[VerifierKey]) -> bool:
        """Return whether these witnesses are a quorum."""
        return len(self.heard(cosigners)) >= self.needed()


def _refused(number: int, why: str) -> NoteRefused:
    return NoteRefused(f"trust policy, line {number}: {why}", hint="compare the file with the one written at enrolment")


def _party(key: VerifierKey) -> tuple[str, ...]:
    """Return federation and party of a key that is named so."""
    parts = tuple(key.name.split("/"))
    return parts[:2] if len(parts) > 2 else parts


def _refuse_doubles(logs: list[VerifierKey], witnesses: Mapping[str, VerifierKey]) -> None:
    """Refuse a policy in which one key would count as two, or a party as a witness of itself (C2SP tlog-policy)."""
    keys = [*logs, *witnesses.values()]
    if len({key.public for key in keys}) != len(keys):
        raise NoteRefused("trust policy: one key stands in two lines")
    owners = {_party(key) for key in logs}
    for name, key in witnesses.items():
        if _party(key) in owners:
            raise NoteRefused(f"trust policy: witness {name} is the log's own")


def _group(number: int, words: list[str], known: set[str], used: set[str]) -> Group:
    if len(words) < 4:
        raise _refused(number, "a group has a name, a number and members")
    members = tuple(words[3:])
    if len(set(members)) != len(members) or not set(members) <= known:
        raise _refused(number, "a group's members are defined above it, each named once")
    if used & set(members):
        raise _refused(number, "a name belongs to one group only")
    used |= set(members)
    counts = {"any": 1, "all": len(members)}
    needed = counts.get(words[2]) or (int(words[2]) if _NUMBER.match(words[2]) else 0)
    if not 1 <= needed <= len(members):
        raise _refused(number, f"a group of {len(members)} can't ask for {words[2]}")
    return Group(needed, members)


def parse_policy(text: str) -> TrustPolicy:
    """Return the policy in `text`.

    Raises:
        NoteRefused: A line that isn't understood, a name used twice or before its definition, no log or no quorum.
    """
    logs: list[VerifierKey] = []
    witnesses: dict[str, VerifierKey] = {}
    groups: dict[str, Group] = {}
    used: set[str] = set()
    quorum = ""
    for number, line in enumerate(text.split("\n"), 1):
        words = [word for word in line.replace("\t", " ").split(" ") if word]
        if not words or words[0].startswith("#"):
            continue
        known = {*witnesses, *groups}
        match words:
            case ["log", vkey, *_] if len(words) <= 3:
                logs.append(_key(number, vkey, {ED25519}))
            case ["witness", name, vkey, *_] if len(words) <= 4 and name not in known and name != NO_QUORUM:
                witnesses[name] = _key(number, vkey, WITNESS_KINDS)
            case ["group", name, *_] if name not in known and name != NO_QUORUM:
                groups[name] = _group(number, words, known, used)
            case ["quorum", name] if not quorum and (name == NO_QUORUM or name in known):
                quorum = name
            case _:
                raise _refused(number, "not understood")
    if not logs or not quorum:
        raise NoteRefused("a trust policy names a log and a quorum")
    _refuse_doubles(logs, witnesses)
    return TrustPolicy(tuple(logs), witnesses, groups, quorum)


def _key(number: int, vkey: str, kinds: AbstractSet[int]) -> VerifierKey:
    try:
        key = VerifierKey.parse(vkey)
    except NoteRefused as refused:
        raise _refused(number, refused.message) from None
    if key.kind not in kinds:
        raise _refused(number, f"key {key.name} is not of the kind that this line needs")
    return key


def format_policy(
    log_keys: Iterable[str], witnesses: Mapping[str, str], operators: Mapping[str, Iterable[str]], quorum: int
) -> str:
    """Return the policy file of one log.

    Args:
        log_keys: Verifier keys of the log.
        witnesses: Verifier keys of the witnesses, by party.
        operators: Parties by operator, where one operator runs several; they count once.
        quorum: How many operators must cosign; 0 while there are no witnesses.

    Raises:
        NoteRefused: The result would not be a valid policy.
    """
    lines = [f"log {vkey}" for vkey in log_keys]
    lines += [f"witness {party} {vkey}" for party, vkey in witnesses.items()]
    members = list(witnesses)
    for operator, parties in operators.items():
        run = [party for party in parties if party in witnesses]
        lines.append(f"group {operator} any {' '.join(run)}")
        members = [operator, *(party for party in members if party not in run)]
    lines += [f"group others {quorum} {' '.join(members)}", "quorum others"] if quorum else [f"quorum {NO_QUORUM}"]
    text = "\n".join(lines) + "\n"
    parse_policy(text)
    return text
