"""An honest coordinator's log for a coordinator that a test plays, with the one other member that witnesses it.

The log, the cosigning and the relaying are the product's own. The other member, st-anna, has no daemon: its key lies
here and cosigns whatever a test wants.
"""

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from audit import cosignature, events
from audit.checkpoint import OpenedCheckpoint
from audit.cosigned_log import Cosigned
from audit.errors import AuditError
from audit.log import AuditLog
from audit.merkle import leaf_hash
from audit.note import COSIGNATURE, Ed25519Signer
from audit.receipts import receipts_root
from audit.trust_file import TrustFolder, write_trust_policy
from coordinator.recording import SERVICE, event_id
from coordinator.round_witness import Ended, Opening
from coordinator.witnessing import ReceiptMissing, Witnessing
from federation.audit_trust import log_trusts
from federation.charter import Charter
from federation.edge.audit_trail import begin_log, witness_signer
from federation.edge.clock import SystemClock
from federation.edge.logs import open_log
from federation.messages import Body, JobId, Phase, PhaseReply, SiteId
from federation.witness_messages import WitnessLines

OTHER = "st-anna"
NOTHING = "sha256:" + 64 * "0"


class PlayedWitnesses:
    """The coordinator's side of witnessing, by the product; and st-anna's key."""

    def __init__(self, folder: Path, *, federation: str, site: str) -> None:
        self.site = site
        self.federation = federation
        self.folder = folder / "audit"
        self.trust = folder / "trust"
        self.keys = begin_log(self.folder, federation=federation, party="coordinator", clock=SystemClock())
        self.log = AuditLog.open(self.folder, clock=SystemClock())
        self.other = Ed25519Signer(f"{federation}/{OTHER}/witness", secrets.token_bytes(32), COSIGNATURE)
        self.receipts: dict[tuple[str, int], bytes] = {}
        self.unproved: list[str] = []
        self.fatal: list[AuditError] = []
        self.withheld = False  # st-anna cosigns nothing
        self.witnessing: Witnessing

    def enact(self, charter: Charter) -> None:
        """Trust what a charter says from now on."""
        for trust in log_trusts(charter, accepts=lambda _: True):
            write_trust_policy(
                self.trust,
                party=trust.party,
                log_keys=[trust.log_key],
                witnesses=trust.witnesses,
                operators=trust.operators,
                quorum=trust.quorum,
            )

    def begin(self, post: Any, new_message_id: Callable[[], str]) -> None:
        """Begin to witness over a link."""
        self.post = post
        signer = witness_signer(self.folder, federation=self.federation, party="coordinator")
        self.witnessing = Witnessing(
            self.log,
            TrustFolder(self.trust),
            signer,
            clock=SystemClock(),
            process_log=open_log(level="error"),
            stale_after_s=1e9,
            sites=lambda: (self.site,),
            invited=lambda _: (self.site,),
            on_fatal=self.fatal.append,
        )
        self.witnessing.connect(post, new_message_id)
        self.hear_other()

    def hear_other(self) -> None:
        """Hear from st-anna, so that this log may publish."""
        self.witnessing.own.hear({OTHER: b""})

    def close(self) -> None:
        self.log.close()

    # --- what comes in ----------------------------------------------------------------------------------------

    def take(self, body: Body) -> bool:
        """Take in what is about logs; return whether the test needn't see the message."""
        if isinstance(body, WitnessLines):
            self.witnessing.take_lines(self.site, body)
            return True
        if isinstance(body, PhaseReply) and body.phase is Phase.TRAIN and body.update is not None:
            try:
                self.witnessing.check_receipt(SiteId(self.site), body)
                self.receipts[body.job, body.round] = leaf_hash(bytes.fromhex(body.receipt))
            except ReceiptMissing as problem:
                self.unproved.append(problem.message)
        return False

    # --- what a coordinator records -----------------------------------------------------------------------------

    def submitted(self, job: str) -> None:
        self._append(
            events.JobSubmitted,
            ("job.submitted", job),
            job=job,
            plan=NOTHING,
            purpose=events.Purpose(code="DUO:0000007"),
            priority=0,
            invited_count=1,
            invited=NOTHING,
        )

    def released(self, job: str, round_number: int, *, model: str, previous: str, sum_digest: str) -> None:
        receipts = self._survivors(job, round_number)
        self._append(
            events.RoundReleased,
            ("round.released", job, round_number, 0),
            job=job,
            round=round_number,
            survivors_count=len(receipts),
            receipts_root="sha256:" + receipts_root({str(site): one for site, one in receipts.items()}).hex(),
        )
        self._append(
            events.ModelReleased,
            ("model.released", job, round_number, 0),
            job=job,
            round=round_number,
            model=model,
            previous=previous,
            sum_digest=sum_digest,
            strategy="FedAvg",
        )

    def _survivors(self, job: str, round_number: int) -> dict[SiteId, bytes]:
        found = self.receipts.get((job, round_number))
        return {} if found is None else {SiteId(self.site): found}

    def _append(self, kind: type[events.Draft], about: tuple[object, ...], **fields: Any) -> None:
        self.log.append(kind(id=event_id(*about), decision="allowed", actor=SERVICE, **fields))  # type: ignore[arg-type]

    # --- opening a round ----------------------------------------------------------------------------------------

    def cosigned(self) -> OpenedCheckpoint:
        """Return a checkpoint of the log as it is, with st-anna's cosignature, after asking the site for its own."""
        signed = self.witnessing.own.publish()
        assert signed is not None
        if not self.withheld:
            now_s = int(SystemClock().now().timestamp())
            line = cosignature.cosign(signed, self.other, now_s)
            self.witnessing.own.add([Cosigned(signed.size, signed.root, line)])
            signed = self.witnessing.own._published[signed.size]
        self.witnessing._send_notice(self.site, f"job/{signed.size}", signed, Opening(b"", b"", {}))
        return signed

    def opening(self, job: str, round_number: int) -> dict[str, Any]:
        """Return what a request to train carries."""
        if round_number == 0:
            wanted: tuple[object, ...] = ("job.submitted", job)
        else:
            wanted = ("round.released", job, round_number - 1, 0)
            if self.witnessing.own.find(event_id(*wanted)) is None:  # type: ignore[arg-type]
                wanted = ("round.abandoned", job, round_number - 1, 0)
                self.log.append(
                    events.RoundAbandoned(
                        id=event_id(*wanted),  # type: ignore[arg-type]
                        decision="failed",
                        code="CFD-R05",
                        actor=SERVICE,
                        job=job,
                        round=round_number - 1,
                    )
                )
        signed = self.cosigned()
        ended = Ended(JobId(job), round_number - 1, 0, self._survivors(job, round_number - 1))
        opening = self.witnessing._opening(ended, signed, self.witnessing.own.find(event_id(*wanted)))  # type: ignore[arg-type]
        return {
            "before": opening.before.hex(),
            "model": opening.model.hex(),
            "receipt": opening.places.get(SiteId(self.site)),
        }
