"""Events of a job: from its submission to its end, and each site's answer; pure."""

from typing import Literal

from audit.events.common import Draft
from audit.events.parts import (
    Approval,
    Count,
    Dataset,
    Egress,
    Hash,
    Peer,
    Private,
    Purpose,
    Token,
    Tokens,
    Versions,
)


class JobSubmitted(Draft):
    """A signed plan was taken in; `invited` is the hash of the invited sites' list."""

    action: Literal["job.submitted"] = "job.submitted"
    job: Token
    plan: Hash
    purpose: Purpose
    priority: Count
    invited_count: Count
    invited: Hash


class JobValidated(Draft):
    """A plan was checked; the codes of what was found."""

    action: Literal["job.validated"] = "job.validated"
    plan: Hash
    findings: Tokens


class JobOffered(Draft):
    """The coordinator offered a job to a site (one entry per site), or a site received the offer."""

    action: Literal["job.offered"] = "job.offered"
    job: Token
    plan: Hash


class JobPreflight(Draft):
    """A site tried a job's model on its engine, without data."""

    action: Literal["job.preflight"] = "job.preflight"
    job: Token
    plan: Hash
    engine: Token
    versions: Versions


class JobParked(Draft):
    """A site's policy leaves the answer to a person, under the approval that it names."""

    action: Literal["job.parked"] = "job.parked"
    job: Token
    plan: Hash
    approval: Approval


class _JobDecided(Draft):
    job: Token
    plan: Hash
    policy: Hash
    approval: Approval
    private: Private

    def check(self) -> None:
        """Refuse a person's decision without a reason."""
        if "reason" not in self.private:
            raise ValueError("a person's decision commits to its reason")


class JobApproved(_JobDecided):
    """A person said yes."""

    action: Literal["job.approved"] = "job.approved"


class JobDenied(_JobDecided):
    """A person said no."""

    action: Literal["job.denied"] = "job.denied"


class _JobAnswered(Draft):
    job: Token
    plan: Hash
    purpose: Purpose | None = None
    dataset: Dataset | None = None
    policy: Hash | None = None
    approval: Approval | None = None
    peer: Peer | None = None


class JobAccepted(_JobAnswered):
    """A site takes a job: at the site with purpose, data set, policy and rule or approval; here with its entry."""

    action: Literal["job.accepted"] = "job.accepted"

    def check(self) -> None:
        """Refuse an acceptance at a site that doesn't say under what."""
        at_site = (self.purpose, self.dataset, self.policy)
        if all(part is None for part in at_site):
            return  # the coordinator's entry of the site's answer
        if any(part is None for part in at_site) or (self.rule is None and self.approval is None):
            raise ValueError("an acceptance names purpose, data set, policy, and a rule or an approval")


class JobRefused(_JobAnswered):
    """A site doesn't take a job."""

    action: Literal["job.refused"] = "job.refused"


class _JobMoved(Draft):
    job: Token
    plan: Hash


class JobStarted(_JobMoved):
    """A job began to run."""

    action: Literal["job.started"] = "job.started"


class JobPaused(_JobMoved):
    """A job waits."""

    action: Literal["job.paused"] = "job.paused"


class JobResumed(_JobMoved):
    """A job goes on."""

    action: Literal["job.resumed"] = "job.resumed"


class JobCancelled(_JobMoved):
    """A person ended a job."""

    action: Literal["job.cancelled"] = "job.cancelled"


class JobCompleted(_JobMoved):
    """A job reached its last round."""

    action: Literal["job.completed"] = "job.completed"


class JobFailed(_JobMoved):
    """A job can't go on; the code says why."""

    action: Literal["job.failed"] = "job.failed"


class ArtifactExported(Draft):
    """The result of a job left the coordinator."""

    action: Literal["artifact.exported"] = "artifact.exported"
    job: Token
    egress: Egress
