"""What people and programs see of jobs: frozen models, one shape for the command line, the API and the console.

Times are RFC 3339 in UTC. Epsilon is rounded up to nine decimals. A metric that is undefined is null, never 0.
Nothing here says anything of a single site's data: of a site there is its standing and its own reasons.
"""

from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class View(BaseModel):
    """A frozen part of what is shown."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def shown_time(us: int | None) -> str | None:
    """Return microseconds UTC as RFC 3339 with ``Z``, to the millisecond."""
    if us is None:
        return None
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class SiteInJobView(View):
    """How an invited site stands in a job."""

    site: str
    state: str
    reasons: tuple[str, ...] = ()
    since: str | None = None
    connected: bool = False
    epsilon: float | None = Field(None, description="of the whole job at this site, as the site announced it")


class RoundView(View):
    """One attempt of a round."""

    round: int
    attempt: int
    state: str
    quorum: int
    cohort: tuple[str, ...]
    survivors: tuple[str, ...]
    late: dict[str, str] = Field(default_factory=dict, description="site to reason")
    waiting_for: tuple[str, ...] = ()
    reason: str = ""
    opened: str | None = None
    deadline: str | None = None
    ended: str | None = None
    seconds: float | None = None
    upload_bytes: int = 0
    model: str | None = Field(None, description="digest of the model and server state after this round")
    metrics: dict[str, float | None] | None = None
    epsilon: float | None = Field(None, description="largest of the sites' so far, as the sites announced it")


class JobView(View):
    """A job as it is listed and shown; `rounds_done` is empty in lists."""

    job: str
    number: int = Field(description="grows with the time of submission; a page's last one is the next page's `before`")
    name: str
    state: str
    reason: str = ""
    waiting: str = Field("", description="what the job waits for, in one sentence")
    plan_digest: str
    purpose: str
    submitter: str
    vouched: bool
    priority: int
    quorum: int
    invited: int
    round: int
    rounds: int
    attempt: int
    secure_aggregation: bool
    the_coordinator_sees: str = Field("", description="of the sites' updates; empty in lists")
    epsilon: float | None
    submitted: str | None = None
    offered: str | None = None
    started: str | None = None
    ended: str | None = None
    parent: str | None = None
    parent_round: int | None = None
    metrics: dict[str, float | None] | None = Field(None, description="of the newest evaluated model")
    sites: tuple[SiteInJobView, ...] = ()
    rounds_done: tuple[RoundView, ...] = ()


class EventView(View):
    """Something that happened in a job; `number` is what the next page begins after."""

    number: int
    job: str
    at: str
    name: str
    fields: dict[str, Any] = Field(default_factory=dict)


class ReasonView(View):
    """Why a site would say no."""

    code: str
    rule: str | None = None
    text: str = ""


class PreviewView(View):
    """What a site would answer to a plan now; nothing is reserved or promised."""

    site: str
    decision: Literal["accepted", "refused", "parked", "no answer"]
    reasons: tuple[ReasonView, ...] = ()
    epsilon: float | None = None
    noise_multiplier: float | None = None
    steps: int = 0
    update_bytes: int = 0
    memory_bytes: int = 0
    round_s: int = 0


class ValidationView(View):
    """A plan that was found valid, with every open field filled in."""

    plan_digest: str
    plan: dict[str, Any]
    contract_digest: str
    contract_from: Literal["submission", "coordinator", "sites"]
    notices: tuple[str, ...] = ()
    parameters: int
    update_bytes: int


class SiteView(View):
    """A member site's link and what it announced."""

    site: str
    connected: bool
    since: str | None
    seen: str | None
    version: str | None = None
    contracts: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()


class ResultFile(View):
    """A file of a job's result: where it lies on the coordinator, and what it is."""

    name: str
    path: str
    size_bytes: int
    sha256: str


class ResultView(View):
    """What `confide job result` is made from."""

    job: str
    round: int
    step: int
    model_digest: str
    files: tuple[ResultFile, ...]
    releases: tuple[dict[str, Any], ...] = Field((), description="each signed release: record and signature in hex")
    metrics: dict[str, float | None] | None = None
