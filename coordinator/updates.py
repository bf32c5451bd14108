"""The updates of one job's sites: each checked before it counts, weighted in public, averaged, and let go of.

An update is refused by name, with the reason, when it is too large, not there, weighted otherwise than declared, or of
another layout; when it holds a value that isn't finite; and when its norm is above the coordinator's own bound. The
mean is over the survivors alone. Here no round is opened or closed and nobody is asked for anything.
"""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

from audit.events import Peer
from coordinator.recording import Recorder
from coordinator.replies import failure
from coordinator.round_machine import Answered, FoundBad
from coordinator.store import Store
from federation.errors import CheckFailed, ConfideError, InvalidInput, OutOfOrder
from federation.link.blobs import BlobStore
from federation.messages import Answer, BlobReference, JobId, Outcome, PhaseReply, SiteId, decode_body
from federation.plan_checks import ROBUST
from federation.plan_fields import Plan, RobustStrategy
from federation.tensors import Manifest, UpdateRefused, check_update, weighted_mean

UPDATE_HEADER_BYTES: Final = 1 << 20
"""What an update's file may have beyond its tensors."""

CombineRobustly = Callable[[RobustStrategy, Mapping[str, Path], Mapping[str, int], Manifest, Path], None]
"""Writes the robust combination of updates by site, with their weights, to the last path."""


class Updates:
    """The updates of one job. Used by the job's own thread alone.

    Args:
        job: The job.
        plan: Its plan.
        manifest: The layout of its model.
        store: Where declared units and the roots of updates are kept.
        blobs: Where updates lie.
        recorder: Hears of each update that came.
        max_norm: Largest L2 norm of an update that is let in, or None.
        combine_robustly: Computes the plan's robust rule; None where there is none.
        wants_receipts: Let in only what the site's own log was proved to record; virtual sites have no logs.
    """

    def __init__(
        self,
        job: JobId,
        plan: Plan,
        manifest: Manifest,
        *,
        store: Store,
        blobs: BlobStore,
        recorder: Recorder,
        max_norm: float | None,
        combine_robustly: CombineRobustly | None,
        wants_receipts: bool = False,
    ) -> None:
        self._job = job
        self._plan = plan
        self._manifest = manifest
        self._store = store
        self._blobs = blobs
        self._recorder = recorder
        self._max_norm = max_norm
        self._combine_robustly = combine_robustly
        self._wants_receipts = wants_receipts
        self._weights: dict[SiteId, int] = {}

    def judge(self, site: SiteId, reply: PhaseReply) -> Answered | FoundBad:
        """Return what a site's answer to the training is: a good update, or bad with the reason. It is recorded."""
        if reply.outcome is Outcome.DONE and self._plan.secure_aggregation.enabled:
            return Answered(site)  # the update stays at the site; what it uploads is judged by `check_masked`
        if reply.outcome is Outcome.FAILED or reply.update is None:
            return FoundBad(site, f"training, {failure(reply)}")
        peer = self._peer(site, reply)
        try:
            if self._wants_receipts and peer is None:
                raise CheckFailed("CFD-R92", "the update came without proof that the site's log records it")
            self._check(site, reply, reply.update)
        except ConfideError as problem:
            code = problem.code if isinstance(problem, UpdateRefused | CheckFailed) else "CFD-R03"
            self._recorder.update_received(reply, site, code, peer=peer)
            return FoundBad(site, problem.message.removeprefix(f"{site}: "))
        self._recorder.update_received(reply, site, None, peer=peer)
        return Answered(site)

    def check_masked(self, site: SiteId, reply: PhaseReply) -> str | None:
        """Return the code for which a masked vector doesn't count, None where it may; either is recorded."""
        peer = self._peer(site, reply)
        code = "CFD-R92" if self._wants_receipts and peer is None else None
        self._recorder.update_received(reply, site, code, peer=peer)
        return code

    def _peer(self, site: SiteId, reply: PhaseReply) -> Peer | None:
        """Return the site's entry behind a reply, as it was proved when the reply came in."""
        if not self._wants_receipts:
            return None
        kept = self._store.rounds.peer(self._job, reply.round, reply.attempt, site, reply.phase)
        return None if kept is None else Peer.model_validate_json(kept)

    def _check(self, site: SiteId, reply: PhaseReply, update: BlobReference) -> None:
        allowed = self._manifest.floats.size_bytes + UPDATE_HEADER_BYTES
        if update.size_bytes > allowed:
            raise UpdateRefused(site, f"the update has {update.size_bytes} bytes, at most {allowed}")
        if not self._blobs.has(update):
            raise UpdateRefused(site, "the update was announced and not delivered")
        wanted = self.weight(site)
        if self._plan.weights == "declared" and reply.weight not in (0, wanted):
            raise UpdateRefused(site, f"the weight is {reply.weight}, declared were {wanted}")
        path = self._blobs.path(update)
        check_update(path, self._manifest, site=site, max_norm=self._max_norm)

    def weight(self, site: SiteId) -> int:
        """Return the public weight of a site: 1, or the units that it declared when it accepted.

        Raises:
            InvalidInput: It declared none.
        """
        if self._plan.weights == "uniform":
            return 1
        if site not in self._weights:
            kept = self._store.jobs.answer(self._job, site)
            answer = None if kept is None else decode_body("answer", kept[0])
            if not isinstance(answer, Answer) or answer.units_declared < 1:
                raise InvalidInput("CFD-R62", f"site {site} declared no units to weigh its update with")
            self._weights[site] = answer.units_declared
        return self._weights[site]

    def mean(self, summed: Collection[SiteId], replies: Mapping[SiteId, PhaseReply], folder: Path) -> Path:
        """Write the mean of these sites' updates, and of nobody else's, to a file in `folder` and return it.

        Args:
            summed: The survivors.
            replies: Their replies to the training; others may be among them.
            folder: An empty folder.

        Raises:
            OutOfOrder: An update of theirs is missing.
            InvalidInput: This engine doesn't know the plan's robust rule.
            NotFinite: The mean would not be finite.
        """
        updates = {
            str(site): self._blobs.path(reply.update)
            for site, reply in replies.items()
            if site in summed and reply.update is not None
        }
        if sorted(updates) != sorted(summed):
            raise OutOfOrder("CFD-G01", "an update of the survivors is missing")
        weights = {str(site): self.weight(site) for site in summed}
        out = folder / "mean.safetensors"
        strategy = self._plan.server
        if strategy.strategy in ROBUST and isinstance(strategy, RobustStrategy):
            if self._combine_robustly is None:
                raise InvalidInput("CFD-J15", f"{strategy.strategy} doesn't run on this engine")
            self._combine_robustly(strategy, updates, weights, self._manifest, out)
        else:
            weighted_mean(updates, weights, self._manifest, out)
        return out

    def forget(self, number: int) -> None:
        """Remove the updates of a round that is over."""
        for root in self._store.rounds.update_roots(self._job, number):
            self._blobs.remove(BlobReference(root=root, size_bytes=0))
