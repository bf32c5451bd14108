"""Section `audit` of a role's configuration file: how its log signs, waits, is witnessed, and where it is kept."""

import os
import signal
from datetime import date, datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from audit.settings import LogSettings
from federation.edge.configuration import Settings


class ReaderGrant(Settings):
    """A role in the audit log, and what bounds it."""

    role: Annotated[
        Literal["compliance", "operator", "coordinator", "viewer", "regulator"],
        Field(
            description="compliance: all · operator: its site · coordinator: its jobs · viewer: its acts · regulator"
        ),
    ]
    datasets: Annotated[
        tuple[str, ...], Field(description="the only data sets that are shown", max_length=256, strict=False)
    ] = ()
    since: Annotated[date | datetime | str | None, Field(description="entries from then on")] = None
    until: Annotated[date | datetime | str | None, Field(description="entries before then")] = None
    expires: Annotated[date | datetime | str | None, Field(description="the grant ends then; a regulator's must")] = (
        None
    )


class AuditSection(Settings):
    """The audit log. `confide audit` itself reads `readers` and `two_people`."""

    readers: Annotated[
        dict[str, str | ReaderGrant] | None,
        Field(description="roles by account; default: whoever can read the files is the compliance officer"),
    ] = None
    two_people: Annotated[
        bool, Field(description="a second account confirms redaction and pruning; false: one alone, and it says so")
    ] = True

    retention: Annotated[
        str | list[str] | dict[str, str | int],
        Field(description="entries stay at least: default (6 years), cn, eu-ai, gxp, or {profile: custom, days: N}"),
    ] = "default"
    legal_hold: Annotated[bool, Field(description="nothing is pruned")] = False
    database: Annotated[
        str | None,
        Field(
            description="postgresql+psycopg://USER@HOST/NAME that keeps the log, without a password; default: a file "
            "in the home. `confide audit new-epoch --database` moves a log there"
        ),
    ] = None
    password_file: Annotated[Path | None, Field(description="file (0600) that holds that database's password")] = None
    checkpoint_every_entries: Annotated[
        int, Field(ge=1, le=100_000, description="a checkpoint is signed after this many entries")
    ] = 256
    checkpoint_every_s: Annotated[
        float, Field(gt=0, le=86_400, description="a checkpoint is signed after this many seconds with news")
    ] = 10.0
    append_timeout_s: Annotated[
        float, Field(gt=0, le=600, description="seconds that an entry waits for room, or for a lost database")
    ] = 10.0
    queue_entries: Annotated[int, Field(ge=1, le=1_000_000, description="entries that may wait")] = 4096
    gossip_every_s: Annotated[
        float,
        Field(gt=0, le=86_400, description="seconds between a site's calls to its witnesses while no round ends"),
    ] = 300.0
    stale_after_s: Annotated[
        float, Field(gt=0, description="seconds that news of the log may stay without a quorum of witnesses")
    ] = 86_400.0
    witness_quorum: Annotated[
        int | None,
        Field(ge=1, le=4096, description="operators that must witness a log; default: more than half of the others"),
    ] = None

    def log_settings(self, *, allow_network_filesystem: bool) -> LogSettings:
        """Return the section as the log takes it."""
        return LogSettings(
            checkpoint_every_entries=self.checkpoint_every_entries,
            checkpoint_every_s=self.checkpoint_every_s,
            append_timeout_s=self.append_timeout_s,
            queue_entries=self.queue_entries,
            allow_network_filesystem=allow_network_filesystem,
            database=self.database,
            password_file=self.password_file,
        )


def end_this_process(_reason: str) -> None:
    """Stop as on a signal: for a log whose disk failed, since nothing can be recorded any more, and so nothing done."""
    os.kill(os.getpid(), signal.SIGTERM)
