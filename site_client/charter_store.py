"""The charter at a site: the epochs that it took over, and its operator's answers to their members.

    <home>/charter/<epoch>.json       canonical bytes, as signed
    <home>/charter/<epoch>.signature  by the federation's root key; written last, so an epoch with it is whole
    <home>/charter/answers.json       what the operator said of each member

The daemon and short commands use the folder at once: an epoch is written once and never changes, answers are replaced
whole. What is read is checked again, so a file that was altered is refused. A new epoch is in the audit log before it
is in the folder.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, ValidationError

from audit import events
from audit.trust_file import write_trust_policy
from federation import canonical
from federation.audit_trust import log_trusts
from federation.charter import (
    Acceptance,
    AcceptedCharter,
    Change,
    changes,
    open_charter,
)
from federation.edge.files import read_bytes, write_whole
from federation.edge.homes import SiteHome
from federation.errors import ConfideError, ConfigurationWrong
from federation.membership_events import charter_entries, charter_refused
from federation.messages import Body

Record = Callable[[list[events.Draft]], None]
"""Puts entries into this site's audit log, durable on return."""

_EPOCH: Final = re.compile(r"([1-9][0-9]{0,9})\.signature")


class _Answers(Body):
    version: Annotated[int, Field(ge=1, le=1)] = 1
    answers: Annotated[tuple[Acceptance, ...], Field(max_length=8192)] = ()


class CharterStore:
    """The charter of one site's home.

    Args:
        home: The home.
        own_site: This site's id.
        accept_all: The policy's line `members: accept`.
        witness_quorum: How many operators must witness a log; more than half of the others where not said.
    """

    def __init__(self, home: SiteHome, *, own_site: str, accept_all: bool, witness_quorum: int | None = None) -> None:
        self._home = home
        self._own_site = own_site
        self._accept_all = accept_all
        self._witness_quorum = witness_quorum

    def load(self) -> AcceptedCharter | None:
        """Return the newest epoch with the operator's answers, or None before enrolment.

        Raises:
            ConfigurationWrong: A file was altered or can't be read.
        """
        epoch = self._newest()
        if epoch == 0:
            return None
        body, signature = (read_bytes(self._file(epoch, kind)) for kind in ("json", "signature"))
        try:
            charter = open_charter(self._home.root_public(), body, signature, None)
        except ConfideError as problem:
            raise ConfigurationWrong(
                "CFD-E02",
                f"{self._file(epoch, 'json')} was altered: {problem.message}",
                hint="restore it from a backup",
            ) from None
        return AcceptedCharter(self._own_site, body, charter, self._answers(), self._accept_all)

    def receive(self, body: bytes, signature: bytes, *, record: Record, actor: events.Actor) -> tuple[Change, ...]:
        """Take over the next epoch: record it, keep it, and return what it changes. The one held again changes nothing.

        One that is refused is recorded, too.

        Raises:
            NotAuthenticated: Not signed by the root key, or it doesn't follow; nothing was taken.
            PeerMisbehaved: The epoch held was signed twice; nothing was taken.
            InvalidInput: Malformed; nothing was taken.
            AuditError: It couldn't be recorded; nothing was taken.
        """
        held = self.load()
        try:
            charter = open_charter(self._home.root_public(), body, signature, _must_follow(held, body))
        except ConfideError as problem:
            record([charter_refused(actor, held=held, offered=body, code=problem.code, at=self._own_site)])
            raise
        if held is not None and held.body == body:
            return ()
        record(
            charter_entries(
                actor,
                old=held.body if held is not None else None,
                new=body,
                old_charter=held.charter if held is not None else None,
                charter=charter,
                at=self._own_site,
            )
        )
        write_whole(self._file(charter.epoch, "json"), body)
        write_whole(self._file(charter.epoch, "signature"), signature)
        self.write_trust()
        return changes(held.charter if held is not None else None, charter)

    def answer(self, site: str, *, accepted: bool, by: str) -> AcceptedCharter:
        """Keep the operator's answer to the member `site` and return what is accepted now.

        Raises:
            InvalidInput: No such member.
            ConfigurationWrong: There is no charter yet, or a file is wrong.
        """
        new = self.loaded().answer(site, accepted=accepted, by=by)
        document = _Answers(answers=new.answers)
        write_whole(self._answers_file(), canonical.encode(document.model_dump(mode="json")))
        self.write_trust()
        return new

    def loaded(self) -> AcceptedCharter:
        """Return the newest epoch.

        Raises:
            ConfigurationWrong: There is none, or a file is wrong.
        """
        held = self.load()
        if held is None:
            raise ConfigurationWrong(
                "CFD-E22", f"{self._home.path} holds no charter", hint="run `confide site enrol` first"
            )
        return held

    def write_trust(self) -> None:
        """Write which keys this home trusts about each party's log, by the charter and by whom the site accepts.

        Raises:
            ConfigurationWrong: There is no charter, or a file is wrong.
        """
        held = self.loaded()
        trusts = log_trusts(
            held.charter,
            accepts=lambda site: site == self._own_site or held.accepts(site),
            quorum=self._witness_quorum,
        )
        for trust in trusts:
            write_trust_policy(
                self._home.trust,
                party=trust.party,
                log_keys=[trust.log_key],
                witnesses=trust.witnesses,
                operators=trust.operators,
                quorum=trust.quorum,
            )

    def _newest(self) -> int:
        folder = self._home.charter_folder
        if not folder.is_dir():
            return 0
        found = (_EPOCH.fullmatch(path.name) for path in folder.iterdir())
        return max((int(name[1]) for name in found if name is not None), default=0)

    def _file(self, epoch: int, kind: str) -> Path:
        return self._home.charter_folder / f"{epoch}.{kind}"

    def _answers_file(self) -> Path:
        return self._home.charter_folder / "answers.json"

    def _answers(self) -> tuple[Acceptance, ...]:
        path = self._answers_file()
        if not path.exists():
            return ()
        try:
            return _Answers.model_validate_json(read_bytes(path)).answers
        except ValidationError:
            raise ConfigurationWrong("CFD-E02", f"{path} is damaged", hint="restore it from a backup") from None


def _must_follow(held: AcceptedCharter | None, body: bytes) -> bytes | None:
    """Return the epoch that `body` must follow: the one held, unless `body` is that one again."""
    if held is None:
        return None
    return None if held.body == body else held.body
