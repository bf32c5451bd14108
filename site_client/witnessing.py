"""The site among witnesses: cosigns the others' logs, has its own cosigned, and lets no round open unseen.

The site dials. It calls when it connects, every few minutes, and when a job ends; at each round's end the coordinator
sends a notice, and the site answers it with its lines, durable before they leave. A request to train must show that a
quorum of others has seen how the round before ended; an update goes with the proof that this site's log records it.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

from audit import proofs
from audit.checkpoint import Checkpoint, OpenedCheckpoint, open_checkpoint
from audit.cosignature import with_cosignatures
from audit.cosigned_log import CosignedLog
from audit.errors import AuditError, LogBehind, LogDamaged, NoteRefused, ProofRefused
from audit.events import Peer, PeerContradicted
from audit.frame import read_frame
from audit.merkle import leaf_hash
from audit.names import COORDINATOR
from audit.proof_file import ProofFile, ProvedEntry, check
from audit.receipts import check_place
from audit.round_gate import check_roster_entry, check_round_gate
from audit.trust import TrustPolicy
from audit.trust_file import TrustFolder
from audit.witness import AddCheckpoint, Status
from audit.witness_office import WitnessOffice
from federation.edge.audit_trail import witness_signer
from federation.edge.logs import Log
from federation.errors import ConfideError
from federation.link.client import LinkClient
from federation.messages import Body, JobId, PhaseRequest
from federation.witness_messages import (
    CheckpointCall,
    CheckpointReply,
    CosignCall,
    CosignedTree,
    CosignReply,
    Proved,
    ReceiptPlace,
    WitnessLines,
    WitnessNotice,
)
from federation.witness_wire import own_out, place_in, tree_out, trees_in
from site_client.open_site import OpenSite
from site_client.records import COORDINATOR as COORDINATOR_ACTOR

NOT_WITNESSED: Final = "CFD-A28"
CONTRADICTED: Final = "CFD-A16"
FORKED: Final = "CFD-R94"
RECENT: Final = 4
"""Own checkpoints that a witness may have cosigned without this site having heard of it."""
SOON_S: Final = (2.0, 10.0)
"""Waits after a job's end until the other sites' cosignatures are fetched."""
FIRST_ASK_S: Final = 0.25
LAST_ASK_S: Final = 16.0
"""Shortest and longest wait between two calls while words of others are missing after a start."""
MODELS_KEPT: Final = 256


class SiteWitnessing:
    """This site's part in witnessing. Safe for threads.

    Args:
        site: The opened home.
        link: Calls the coordinator.
        log: The process log.
        on_fatal: Told that this site's log is behind or forked, after it was frozen: the daemon must end.
    """

    def __init__(self, site: OpenSite, link: LinkClient, log: Log, *, on_fatal: Callable[[AuditError], None]) -> None:
        self._site = site
        self._link = link
        self._log = log
        self._on_fatal = on_fatal
        audit, settings = site.records.log, site.configuration.audit
        self._audit = audit
        self._trust = TrustFolder(site.home.trust)
        federation = audit.origin.split("/", 1)[0]
        signer = witness_signer(site.home.audit, federation=federation, party=site.site)
        self.office: Final = WitnessOffice(audit, self._trust, signer, site.clock, alarm=self._alarm)
        self.own: Final = CosignedLog(
            audit,
            self._trust,
            site.clock,
            stale_after_s=settings.stale_after_s,
            alarm=lambda text: self._alarm(audit.origin, text),
        )
        self._every_s = settings.gossip_every_s
        self._recent: list[int] = []
        self._contradicting: set[tuple[str, int]] = set()
        self._models: OrderedDict[tuple[str, int], Peer] = OrderedDict()
        self._lock = threading.Lock()
        self._calling = threading.Lock()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._soon: list[float] = []
        self._thread = threading.Thread(target=self._gossip, name="witness-gossip", daemon=True)

    # --- life -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to call, as soon as there is a connection."""
        self._thread.start()

    def stop(self) -> None:
        """Call no more."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def call_soon(self, *, again: bool = False) -> None:
        """Call now; with `again` also a little later, when the others will have cosigned."""
        with self._lock:
            self._soon = list(SOON_S) if again else self._soon
        self._wake.set()

    def _gossip(self) -> None:
        asking_s, came_about = FIRST_ASK_S, True
        while not self._stopping.is_set():
            with self._lock:
                wait_s = self._soon.pop(0) if self._soon else self._every_s
            # A call that failed, or met a link that was just coming up, must not wait for its next turn. And this log
            # signs nothing before enough others told what they last cosigned: ask until they have called too.
            if self.own.words_missing or not came_about:
                wait_s, asking_s = min(wait_s, asking_s), min(2 * asking_s, LAST_ASK_S)
            else:
                asking_s = FIRST_ASK_S
            self._wake.wait(wait_s)
            self._wake.clear()
            if self._stopping.is_set():
                return
            came_about = self._link.connected() and self.call_once()
            self._look()

    def _look(self) -> None:
        try:
            self.own.look()
            self.own.keep_all()
        except AuditError as problem:
            self._log.error("witness.not_recorded", code=problem.code)

    def _alarm(self, origin: str, text: str) -> None:
        self._log.error("witness.alarm", party=origin.split("/")[1], reason=text)

    # --- calls ------------------------------------------------------------------------------------------------

    def call_once(self) -> bool:
        """Exchange checkpoints and cosignatures with the coordinator once; return whether it came about."""
        with self._calling:
            try:
                self._exchange()
            except (LogBehind, LogDamaged) as problem:
                self._log.error("witness.own_log", code=problem.code, reason=problem.message)
                self._on_fatal(problem)
                return False
            except (ConfideError, AuditError) as problem:
                self._log.info("witness.not_called", code=problem.code)
                return False
        return True

    def _exchange(self) -> None:
        published = self.own.publish()
        call = CheckpointCall(
            message_id=self._link.message_ids.next(),
            site=self._site.site,
            own=None if published is None else own_out(published, self._growth(published)),
            seen=tuple(seen.note.hex() for seen in self.office.all_seen().values()),
        )
        reply = self._link.witness(call)
        if not isinstance(reply, CheckpointReply):
            return
        self.own.hear({word.party: bytes.fromhex(word.checkpoint) for word in reply.words})
        self.own.add(trees_in(reply.lines, self._audit.origin))
        lines = self._cosign(reply.offers, about=None)
        if published is None and self.own.publish() is not None:
            self.call_soon()  # it may publish from now on
        if lines:
            gathered = self._link.witness(
                CosignCall(message_id=self._link.message_ids.next(), site=self._site.site, lines=tuple(lines))
            )
            if isinstance(gathered, CosignReply):
                self.own.add(trees_in(gathered.lines, self._audit.origin))

    def _growth(self, published: OpenedCheckpoint) -> dict[int, proofs.Proof]:
        """Return the proofs from every size that a witness may hold of this log."""
        with self._lock:
            sizes = {*self.own.cosigned_sizes().values(), *self._recent}
            self._recent = [*self._recent, published.size][-RECENT:]
        return self.own.growth(published.size, sizes)

    # --- cosigning ----------------------------------------------------------------------------------------------

    def on_notice(self, notice: WitnessNotice, send: Callable[[Body], None]) -> None:
        """Cosign what a notice offers, answer with the lines, and keep what it shows of a round's end.

        Raises:
            AuditError: The state couldn't be made durable; nothing was cosigned.
        """
        lines = self._cosign(notice.offers, about=notice.about)
        self.own.add(trees_in(notice.lines, self._audit.origin))
        if lines:
            send(WitnessLines(message_id=self._link.message_ids.next(), about=notice.about, lines=tuple(lines)))
        self._keep_model(notice.model, judged=None)
        self._check_receipt(notice)

    def _cosign(self, offers: Iterable[str], *, about: str | None) -> list[CosignedTree]:
        """Return this site's line about each offered log: of the new tree, or of the one that it stays with."""
        requests: dict[str, AddCheckpoint] = {}
        for text in offers:
            try:
                request = AddCheckpoint.parse(bytes.fromhex(text))
            except NoteRefused:
                continue
            if request.checkpoint.origin != self._audit.origin:
                requests.setdefault(request.checkpoint.origin, request)
        lines = []
        answers = self.office.answer_all(list(requests.values()), about=about) if requests else []
        for request, answer in zip(requests.values(), answers, strict=True):
            tree = request.checkpoint
            if answer.status is Status.COSIGNED:
                lines.append(tree_out(tree.origin, tree.size, tree.root, answer.reply))
            elif (last := self.office.line_of(tree.origin)) is not None:
                lines.append(tree_out(tree.origin, last[0].size, last[0].root, last[1]))
        return lines

    # --- the gate of a round ------------------------------------------------------------------------------------

    def opening_problem(self, request: PhaseRequest) -> str | None:
        """Return the code for which a round doesn't open here, None where it may.

        What the request shows is kept: the coordinator's entry `model.released` becomes the peer of `model.accepted`.
        """
        try:
            policy = self._trust.policy(COORDINATOR)
            if policy is None:
                return NOT_WITNESSED
            if any(self.office.is_forked(key.name) for key in policy.logs):
                return FORKED
            proof = ProofFile.parse(bytes.fromhex(request.before))
            found = check_round_gate(self._with_own(proof, policy), policy, job=request.job, round_number=request.round)
            self.office.check_same(found.checkpoint)
        except AuditError as problem:
            self._log.warning("round.not_opened", job=request.job, round=request.round, reason=problem.message)
            return FORKED if problem.code == "CFD-A08" else NOT_WITNESSED
        self._keep_model(request.model, judged=policy)
        if request.receipt is not None and not self._holds(request.receipt, found, request.job, request.round - 1):
            self._contradicted(found)
            return CONTRADICTED
        return None

    def _with_own(self, proof: ProofFile, policy: TrustPolicy) -> ProofFile:
        """Return the proof with this site's own cosignature, where it gave one for exactly that tree.

        A site trusts itself as a witness: members that it hasn't accepted don't count here, so its own quorum may be
        another one than the coordinator gathers.
        """
        last = self.office.line_of(proof.checkpoint.origin)
        if last is None or (last[0].size, last[0].root) != (proof.checkpoint.size, proof.checkpoint.root):
            return proof
        signed = open_checkpoint(
            bytes(proof.checkpoint.signed),
            origin=proof.checkpoint.origin,
            log_keys=policy.for_origin(proof.checkpoint.origin),
        )
        own = trees_in([tree_out(signed.origin, signed.size, signed.root, last[1])], signed.origin)
        merged = with_cosignatures(signed, [one.line for one in own], policy.witnesses.values())
        return ProofFile(proof.index, proof.path, merged, proof.leaf)

    def _check_receipt(self, notice: WitnessNotice) -> None:
        """Record a contradiction where a round's end names receipts without this site's own; no round may follow."""
        found = self._shown(notice.ended, judged=None)
        if found is None or notice.receipt is None or found.event.get("action") != "round.released":
            return
        job, number = found.event.get("job"), found.event.get("round")
        if not isinstance(job, str) or not isinstance(number, int) or (job, number) in self._contradicting:
            return
        if self._site.store.receipts(JobId(job), number) and not self._holds(notice.receipt, found, job, number):
            self._contradicting.add((job, number))
            self._contradicted(found)
            self._log.warning("witness.receipt_not_counted", job=job, round=number)

    def _holds(self, receipt: ReceiptPlace, found: ProvedEntry, job: str, round_number: int) -> bool:
        """Return whether the receipts that the round's end names hold this site's own."""
        root = found.event.get("receipts_root")
        sent = self._site.store.receipts(JobId(job), round_number)
        if not isinstance(root, str) or not sent:
            return False
        place = place_in(receipt)
        for leaf in sent:
            try:
                check_place(place, leaf_hash(leaf), bytes.fromhex(root.removeprefix("sha256:")))
            except ProofRefused:
                continue
            return True
        return False

    def _contradicted(self, found: ProvedEntry) -> None:
        self._audit.append(
            PeerContradicted(
                id=self._audit.new_id(),
                decision="refused",
                code=CONTRADICTED,
                actor=COORDINATOR_ACTOR,
                peer=_peer(found.checkpoint, found.index, found.leaf_hash),
            )
        )

    def contradict_release(self, request: PhaseRequest) -> None:
        """Record that the coordinator counts this site's update and shows no receipt of it."""
        try:
            proof = ProofFile.parse(bytes.fromhex(request.before))
            hashed = leaf_hash(proof.leaf or b"")
            self._audit.append(
                PeerContradicted(
                    id=self._audit.new_id(),
                    decision="refused",
                    code=CONTRADICTED,
                    actor=COORDINATOR_ACTOR,
                    peer=_peer(proof.checkpoint, proof.index, hashed),
                )
            )
        except AuditError as problem:
            self._log.error("witness.not_recorded", code=problem.code)

    # --- links between logs -------------------------------------------------------------------------------------

    def _keep_model(self, data: str, *, judged: TrustPolicy | None) -> None:
        """Keep where the coordinator's log has a `model.released`, under a tree that this site or a quorum cosigned."""
        found = self._shown(data, judged=judged)
        if found is None:
            return
        job, number = found.event.get("job"), found.event.get("round")
        if found.event.get("action") == "model.released" and isinstance(job, str) and isinstance(number, int):
            with self._lock:
                self._models[job, number] = _peer(found.checkpoint, found.index, found.leaf_hash)
                while len(self._models) > MODELS_KEPT:
                    self._models.popitem(last=False)

    def _shown(self, data: str, *, judged: TrustPolicy | None) -> ProvedEntry | None:
        """Return an entry that the coordinator shows under a tree that this site, or by `judged` a quorum, cosigned."""
        if not data:
            return None
        try:
            proof = ProofFile.parse(bytes.fromhex(data))
            policy = self._trust.policy(COORDINATOR)
            if policy is None:
                return None
            if judged is not None:
                proof = self._with_own(proof, judged)
            else:
                seen = self.office.seen(proof.checkpoint.origin)
                if (seen.size, seen.root) != (proof.checkpoint.size, proof.checkpoint.root):
                    return None
                policy = TrustPolicy(policy.logs)
            return check(proof, policy)
        except AuditError as problem:
            self._log.warning("witness.entry_not_shown", code=problem.code)
            return None

    def model_peer(self, job: str, round_number: int) -> Peer | None:
        """Return the coordinator's entry of a released model, where it was shown."""
        with self._lock:
            return self._models.get((job, round_number))

    def roster_peer(self, shown: str, *, job: str, round_number: int, sum_id: str, roster: str) -> Peer | None:
        """Return the coordinator's entry of a sum's roster, the one of this digest; None where `shown` isn't that."""
        policy = self._trust.policy(COORDINATOR)
        if policy is None or not shown:
            return None
        try:
            proof = ProofFile.parse(bytes.fromhex(shown))
            found = check_roster_entry(proof, policy, job=job, round_number=round_number, sum_id=sum_id, roster=roster)
            self.office.check_same(found.checkpoint)
        except AuditError as problem:
            self._log.warning("sum.roster_not_shown", job=job, round=round_number, code=problem.code)
            return None
        return _peer(found.checkpoint, found.index, found.leaf_hash)

    def prove(self, leaf: bytes, *, timeout_s: float) -> Proved | None:
        """Return the proof that this site's log holds the entry `leaf`, for its witnesses; None where it can't be made.

        After a start a log may not publish before enough others told what they last cosigned; that is waited for.
        """
        try:
            event, _ = read_frame(leaf, origin=self._audit.origin)
            found = self.own.find(event["id"])
            if found is None or not self.own.wait_to_publish(timeout_s):
                return None
            about = f"{event['job']}/{event['round']}" if "round" in event else None
            published = self.own.publish(about=about)
            if published is None:
                return None
            path = self.own.prove(found[0], None, published).path
            own = own_out(published, self._growth(published))
        except AuditError as problem:
            self._log.error("witness.no_proof", code=problem.code)
            return None
        return Proved(index=found[0], path=tuple(node.hex() for node in path), own=own)


def _peer(checkpoint: Checkpoint, index: int, hashed: bytes) -> Peer:
    return Peer(
        origin=checkpoint.origin,
        leaf_hash=f"sha256:{hashed.hex()}",
        index=index,
        size=checkpoint.size,
        root=f"sha256:{checkpoint.root.hex()}",
    )
