"""Events of rounds: who took part, what left each site, what was released; pure.

`sum` is absent where secure aggregation is off; `sum_digest` is then the digest of the released mean.
"""

from typing import Annotated, Literal

from pydantic import Field

from audit.events.common import Draft
from audit.events.parts import MAX_ITEMS, Count, Digest, Egress, Hash, Peer, Token

Names = Annotated[list[Token], Field(max_length=MAX_ITEMS)]


class _Round(Draft):
    job: Token
    round: Count


class RoundOpened(_Round):
    """A round began from this model."""

    action: Literal["round.opened"] = "round.opened"
    model: Digest
    invited_count: Count


class RoundReleased(_Round):
    """A round ended with a result; `receipts_root` is the tree over its survivors' entries, by site id."""

    action: Literal["round.released"] = "round.released"
    survivors_count: Count | None = None
    receipts_root: Hash | None = None


class RoundAbandoned(_Round):
    """A round ended without a result; the code says why."""

    action: Literal["round.abandoned"] = "round.abandoned"


class _SiteInRound(_Round):
    phase: Token


class RoundSiteLate(_SiteInRound):
    """A site didn't answer by the deadline of a phase."""

    action: Literal["round.site_late"] = "round.site_late"


class RoundSiteLost(_SiteInRound):
    """A site's connection went away in a phase."""

    action: Literal["round.site_lost"] = "round.site_lost"


class RoundSiteRejoined(_SiteInRound):
    """A site that was late or lost takes part again."""

    action: Literal["round.site_rejoined"] = "round.site_rejoined"


class RoundRoster(_Round):
    """Who takes part in a secure sum, fixed by its digest."""

    action: Literal["round.roster"] = "round.roster"
    sum: Digest
    roster: Digest
    members_count: Count
    threshold: Count


class SumConsented(_Round):
    """A site agreed to unmask the sum of exactly these survivors."""

    action: Literal["sum.consented"] = "sum.consented"
    sum: Digest
    roster: Digest
    view: Digest
    agreed: Digest
    survivors_count: Count
    peer: Peer


class SumPhase(_Round):
    """A secure sum went from one phase to the next."""

    action: Literal["sum.phase"] = "sum.phase"
    sum: Digest
    phase: Literal["advertised", "shared", "masked", "consented", "revealed", "closed", "aborted"]
    members_count: Count | None = None
    fixed: Digest | None = None


class UpdateSent(_Round):
    """A site's update is about to leave; durable before its first byte goes."""

    action: Literal["update.sent"] = "update.sent"
    sum: Digest | None = None
    egress: Egress


class EvaluationSent(_Round):
    """A site's evaluation is about to leave."""

    action: Literal["evaluation.sent"] = "evaluation.sent"
    sum: Digest | None = None
    egress: Egress


class MetricsSent(Draft):
    """Metrics are about to leave a site, by name."""

    action: Literal["metrics.sent"] = "metrics.sent"
    job: Token
    round: Count | None = None
    names: Names
    egress: Egress


class UpdateReceived(_Round):
    """The coordinator took a site's update; `peer` is the site's own entry of sending it."""

    action: Literal["update.received"] = "update.received"
    sum: Digest | None = None
    egress: Egress
    peer: Peer | None = None


class SumReleased(_Round):
    """A secure sum was unmasked; `receipts_root` is the tree over its survivors' entries."""

    action: Literal["sum.released"] = "sum.released"
    sum: Digest
    sum_digest: Digest
    survivors_count: Count
    receipts_root: Hash


class _Model(_Round):
    model: Digest
    previous: Digest
    sum_digest: Digest
    strategy: Token


class ModelReleased(_Model):
    """The coordinator made a model from a round's result."""

    action: Literal["model.released"] = "model.released"


class ModelAccepted(_Model):
    """A site computed the same model itself; refused if the step doesn't follow."""

    action: Literal["model.accepted"] = "model.accepted"
    peer: Peer | None = None


class EvaluationReleased(_Round):
    """The metrics of a round were made known; `metrics` is the hash of their document."""

    action: Literal["evaluation.released"] = "evaluation.released"
    names: Names
    metrics: Hash
