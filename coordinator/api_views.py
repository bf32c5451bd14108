"""What the API shows beside the views of jobs: shared by the server and its client, so neither imports the other."""

from pydantic import Field

from coordinator.views import JobView, View


class ResolvedView(View):
    """A plan with every open field filled in: what its submitter signs."""

    plan: str = Field(description="canonical bytes, hex")
    digest: str
    contract: str = Field(description="the contract's canonical bytes, UTF-8")


class SubmittedView(View):
    """A job, and whether this request made it."""

    new: bool
    job: JobView


class WhyView(View):
    """Why a job isn't running, in one sentence."""

    job: str
    why: str


class IdentityView(View):
    """The coordinator's Ed25519 identity key, and its fingerprint words."""

    identity: str
    words: str
