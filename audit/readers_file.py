"""Which accounts may read the log of a home, from section `audit` of its role's file (`site.yaml`, `coordinator.yaml`).

    audit:
      readers:
        alice: compliance
        bob: {role: regulator, datasets: [heart], since: 2026-01-01, until: 2027-01-01, expires: 2027-02-01}
      two_people: true
      retention: default          or cn, eu-ai, gxp, a list of them, {profile: custom, days: 400}
      legal_hold: false

All else in that file is the role's own. A home without `readers` is read by whoever can read its files.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from audit.access import COMPLIANCE, REGULATOR, VERBS, Grant
from audit.errors import SettingsUnsafe
from audit.filters import FilterRefused, parse_time

FILES: Final = ("site.yaml", "coordinator.yaml")
MAX_BYTES: Final = 1 << 20
DAY_US: Final = 86_400 * 1_000_000
YEAR_US: Final = 36_525 * DAY_US // 100
PROFILES: Final = {"default": 6 * YEAR_US, "cn": 3 * YEAR_US, "eu-ai": YEAR_US // 2, "gxp": 25 * YEAR_US}
"""Floors that rules ask for; `cn` keeps everything as long as its approvals and egress."""
_TIMES: Final = ("since", "until", "expires")


@dataclass(frozen=True, slots=True)
class Readers:
    """Who may read, and whether two people change the record.

    Attributes:
        grants: By account; None where the home names nobody.
        two_people: Redaction, pruning and a new epoch need a second account.
        legal_hold: Nothing is pruned.
        keep_us: How long entries are kept at least.
    """

    grants: Mapping[str, Grant] | None = None
    two_people: bool = True
    legal_hold: bool = False
    keep_us: int = 6 * YEAR_US
    _everybody: Grant = field(default=Grant(COMPLIANCE))

    def of(self, account: str) -> Grant | None:
        """Return what an account may, None where it may nothing."""
        return self._everybody if self.grants is None else self.grants.get(account)


def read_readers(home: Path | None) -> Readers:
    """Return who may read the log of `home`.

    Raises:
        SettingsUnsafe: The file can't be read, or its section isn't understood.
    """
    for name in FILES if home is not None else ():
        path = Path(home or "") / name
        if path.is_file():
            return _parsed(path)
    return Readers()


def _parsed(path: Path) -> Readers:
    wrong = SettingsUnsafe(f"{path}: section audit isn't understood", hint="see `confide audit --help`, readers")
    try:
        if path.stat().st_size > MAX_BYTES:
            raise wrong
        document = yaml.safe_load(path.read_bytes())
        section = document.get("audit") or {}
        given, two_people = section.get("readers"), section.get("two_people", True)
        legal_hold = section.get("legal_hold", False)
        if type(two_people) is not bool or type(legal_hold) is not bool:
            raise wrong
        grants = None if given is None else {str(account): _grant(value) for account, value in given.items()}
        return Readers(grants, two_people, legal_hold, _keep_us(section.get("retention", "default")))
    except OSError as error:
        raise SettingsUnsafe(f"{path} can't be read: {error.strerror}") from None
    except (yaml.YAMLError, AttributeError, TypeError, KeyError, ValueError, FilterRefused):
        raise wrong from None


def _keep_us(value: Any) -> int:
    """Return how long entries stay at least: of several profiles the longest; `custom` names its days."""
    if isinstance(value, dict):
        days = value["days"]
        if value.keys() != {"profile", "days"} or value["profile"] != "custom" or type(days) is not int or days < 1:
            raise ValueError
        return days * DAY_US
    profiles = [value] if isinstance(value, str) else list(value)
    return max(PROFILES[str(profile)] for profile in profiles)


def _grant(value: Any) -> Grant:
    if isinstance(value, str):
        value = {"role": value}
    role = value["role"]
    if role not in VERBS or not value.keys() <= {"role", "datasets", *_TIMES}:
        raise ValueError
    if role == REGULATOR and "expires" not in value:
        raise ValueError
    times = [parse_time(str(value[name])) if name in value else None for name in _TIMES]
    return Grant(role, frozenset(map(str, value.get("datasets", ()))), *times)
