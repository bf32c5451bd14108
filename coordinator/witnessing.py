"""The coordinator among witnesses: cosigns the sites' logs, has its own cosigned, relays between sites, opens rounds.

Sites dial: they call when they connect, every few minutes and when a job ends; at each round's end they get a notice
and answer with their lines, so that the next round finds its quorum gathered. What is said as a witness is durable
before it leaves (`audit.witness_office`). What is relayed is believed by nobody.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, Protocol

from audit import proofs
from audit.checkpoint import OpenedCheckpoint, open_checkpoint, parse
from audit.cosigned_log import CosignedLog
from audit.errors import AuditError, EntryRefused, NoteRefused, ProofRefused
from audit.events import Peer
from audit.frame import read_frame
from audit.log import AuditLog
from audit.merkle import leaf_hash
from audit.names import COORDINATOR
from audit.note import Signer
from audit.proving import prove_in_an_earlier_epoch
from audit.receipts import places
from audit.trust_file import TrustFolder
from audit.witness import AddCheckpoint, Status
from audit.witness_office import WitnessOffice
from coordinator.exchange import Interrupted
from coordinator.recording import event_id
from coordinator.round_witness import Ended, Opening, about_of
from coordinator.witness_board import WitnessBoard
from federation.edge.clock import Clock
from federation.edge.logs import Log
from federation.errors import CheckFailed, InvalidInput, PeerMisbehaved, PolicyRefused
from federation.messages import Body, JobId, PhaseReply, SiteId
from federation.witness_messages import (
    CheckpointCall,
    CheckpointReply,
    CosignCall,
    CosignedTree,
    CosignReply,
    EntriesCall,
    EntriesReply,
    OwnCheckpoint,
    ReceiptPlace,
    WitnessLines,
    WitnessNotice,
    Word,
)
from federation.witness_wire import leaf_out, own_in, place_out, request_of, tree_out, trees_in

STEP_S: Final = 0.25
"""How often somebody who waits for cosignatures looks whether the job goes on."""
REMIND_S: Final = 5.0
"""How long after a notice another one goes to the sites whose cosignature is missing."""
LOOK_S: Final = 30.0
MAX_OFFERS_COUNT: Final = 64
PUBLIC: Final = frozenset(
    {
        "log.opened",
        "log.frozen",
        "key.added",
        "key.revoked",
        "job.submitted",
        "round.released",
        "round.abandoned",
        "round.roster",
        "update.received",
        "sum.released",
        "model.released",
        "evaluation.released",
    }
)
"""Actions whose entries a site may see whole: of no job or of one that invites it, and about no other site. Of all
others it gets the hash. What another site sent, and when, is that site's affair and the coordinator's."""


class Post(Protocol):
    """What witnessing needs of the link."""

    def send(self, site: str, body: Body) -> str:
        """Sign `body` and send it until it is acknowledged."""
        ...

    def connected(self, site: str) -> bool:
        """Return whether a message can reach `site` now."""
        ...


class ReceiptMissing(CheckFailed):
    """An update came without a proof that the site's log records it; it doesn't count."""


class Witnessing:
    """The coordinator's part in witnessing. Safe for threads.

    Args:
        log: The coordinator's own log, open.
        trust: The home's trust policies.
        signer: The coordinator's witness key.
        clock: The time.
        process_log: The process's log.
        stale_after_s: How long news of the own log may stay without a quorum.
        sites: The active sites.
        invited: The sites that a job invites; none of a job that isn't known.
        on_fatal: Told that the own log is behind or forked, after it was frozen.
    """

    def __init__(
        self,
        log: AuditLog,
        trust: TrustFolder,
        signer: Signer,
        *,
        clock: Clock,
        process_log: Log,
        stale_after_s: float,
        sites: Callable[[], Iterable[str]],
        invited: Callable[[str], Collection[str]],
        on_fatal: Callable[[AuditError], None],
    ) -> None:
        self._audit = log
        self._trust = trust
        self._clock = clock
        self._log = process_log
        self._sites = sites
        self._invited = invited
        self._on_fatal = on_fatal
        self.office: Final = WitnessOffice(log, trust, signer, clock, alarm=self._alarm)
        self.own: Final = CosignedLog(
            log, trust, clock, stale_after_s=stale_after_s, alarm=lambda text: self._alarm(log.origin, text)
        )
        self._board = WitnessBoard()
        self._post: Post | None = None
        self._new_message_id: Callable[[], str] = str
        self._stopping = threading.Event()
        self._looker = threading.Thread(target=self._look, name="witness-look", daemon=True)

    def connect(self, post: Post, new_message_id: Callable[[], str]) -> None:
        """Give it the link, which wants it as a part of its backend first."""
        self._post, self._new_message_id = post, new_message_id

    def start(self) -> None:
        """Begin to look whether the own log goes stale."""
        self._looker.start()

    def stop(self) -> None:
        """End every wait."""
        self._stopping.set()
        if self._looker.is_alive():
            self._looker.join()

    def _look(self) -> None:
        while not self._stopping.wait(LOOK_S):
            try:
                self.own.look()
                self.own.keep_all()
            except AuditError as problem:
                self._log.error("witness.not_recorded", code=problem.code)

    def _alarm(self, origin: str, text: str) -> None:
        self._log.error("witness.alarm", party=origin.split("/")[1], reason=text)

    def _fatal(self, problem: AuditError) -> None:
        self._log.error("witness.own_log", code=problem.code, reason=problem.message)
        self._on_fatal(problem)

    # --- calls of sites ---------------------------------------------------------------------------------------

    def answer(self, site: str, call: Body) -> Body:
        """Return the answer to a site's call; what it says as a witness is durable.

        Raises:
            PeerMisbehaved: A call that sites don't make.
            InvalidInput: It asks for entries that aren't there.
            ConfideError: The coordinator's log is closed or can't be written.
        """
        match call:
            case CheckpointCall():
                return self._checkpoint(site, call)
            case CosignCall():
                self._take(site, call.lines)
                return CosignReply(message_id=call.message_id, lines=self._lines_for(site))
            case EntriesCall():
                return self._entries(site, call)
            case _:
                raise PeerMisbehaved("CFD-L09", f"site {site} made a call that sites don't make")

    def _checkpoint(self, site: str, call: CheckpointCall) -> CheckpointReply:
        self._take_seen(site, call.seen)
        self._take(site, call.lines)
        status, held = (
            (0, self.office.seen(self._origin_of(site)).size) if call.own is None else self._cosign(site, call.own)
        )
        words = self._board.words(self._origin_of(site), except_party=site)
        words[COORDINATOR] = self.office.seen(self._origin_of(site)).note
        self.own.publish()
        return CheckpointReply(
            message_id=call.message_id,
            status=status,
            held=held,
            lines=self._lines_for(site),
            words=tuple(Word(party=party, checkpoint=word.hex()) for party, word in sorted(words.items())),
            offers=tuple(bytes(offer).hex() for offer in self._offers(site)),
        )

    def _cosign(self, site: str, own: OwnCheckpoint) -> tuple[int, int]:
        origin = self._origin_of(site)
        held = self.office.seen(origin).size
        try:
            checkpoint, growth = own_in(own)
        except NoteRefused:
            return int(Status.UNREADABLE), held
        if checkpoint.origin != origin:
            return int(Status.UNKNOWN_LOG), held
        request = request_of(checkpoint, growth, held)
        if request is None:
            return int(Status.OTHER_SIZE), held
        status = self._add(site, request, growth, about=None)
        return int(status), self.office.seen(origin).size

    def _add(
        self, site: str, request: AddCheckpoint, growth: Mapping[int, proofs.Proof], *, about: str | None
    ) -> Status:
        """Cosign a site's checkpoint, and show it to the other sites."""
        answer = self.office.answer(request, about=about)
        if answer.status is Status.COSIGNED:
            self._board.put(request.checkpoint, growth)
            tree = request.checkpoint
            self._board.add(COORDINATOR, tree_out(tree.origin, tree.size, tree.root, answer.reply))
        return answer.status

    def _take_seen(self, site: str, notes: Iterable[str]) -> None:
        """Note what a site last cosigned of each log: words for the owners, and for this log itself."""
        own: bytes = b""
        self._board.saw(site, self._audit.origin, self._board.sizes(self._audit.origin).get(site, 0))
        for text in notes:
            data = bytes.fromhex(text)
            try:
                shown = parse(data)
            except NoteRefused:
                continue
            self._board.saw(site, shown.origin, shown.size, data)
            if shown.origin == self._audit.origin:
                own = data
        try:
            self.own.hear({site: own})
        except AuditError as problem:
            self._fatal(problem)

    def _take(self, site: str, trees: Iterable[CosignedTree]) -> None:
        """Take in a site's own lines: about this log, and about others' for their owners."""
        own_key = f"{self._audit.origin.split('/', 1)[0]}/{site}/witness"
        lines = [tree for tree in trees if tree.line.startswith(f"\N{EM DASH} {own_key} ")]
        for tree in lines:
            self._board.add(site, tree)
        self.own.add(trees_in(lines, self._audit.origin))

    def take_lines(self, site: str, message: WitnessLines) -> None:
        """Take in a site's answer to a notice; a site that saw less than it was told gets the proof from there."""
        before = self._board.sizes(self._audit.origin).get(site, 0)
        for tree in message.lines:
            if tree.origin == self._audit.origin and tree.size != before:
                self._board.saw(site, tree.origin, tree.size)
        self._take(site, message.lines)

    def _lines_for(self, site: str) -> tuple[CosignedTree, ...]:
        return self._board.lines(self._origin_of(site))

    def _entries(self, site: str, call: EntriesCall) -> EntriesReply:
        under = self.own.newest()
        if call.origin != self._audit.origin or under is None or under.size != call.size:
            raise InvalidInput("CFD-L31", "the coordinator has no cosigned checkpoint of that log and size")
        try:
            found = self.own.entries(call.indices, under)
        except ProofRefused:
            raise InvalidInput("CFD-L31", f"an entry beyond the {call.size} of the checkpoint") from None
        return EntriesReply(
            message_id=call.message_id,
            checkpoint=bytes(under.signed).hex(),
            entries=tuple(leaf_out(proof, visible=self._may_see(site, proof.leaf)) for proof in found),
        )

    def _may_see(self, site: str, leaf: bytes | None) -> bool:
        """Return whether a site sees an entry whole: of a job that invites it, of no job, and about no other site."""
        if not leaf:
            return False
        event, _ = read_frame(leaf, origin=None)
        if event.get("action") not in PUBLIC or event.get("site", site) != site:
            return False
        job = event.get("job")
        return job is None or site in self._invited(str(job))

    def _origin_of(self, site: str) -> str:
        """Return the name of a site's log.

        Raises:
            PolicyRefused: This home doesn't know it yet: the charter that has the site isn't in force.
        """
        try:
            policy = self._trust.policy(site)
        except NoteRefused as problem:
            raise PolicyRefused("CFD-L31", problem.message) from None
        if policy is None:
            raise PolicyRefused("CFD-L31", f"the log of site {site} is in no trust policy here")
        return policy.logs[0].name

    def _owners(self) -> dict[str, str]:
        found = {}
        for site in self._sites():
            policy = self._trust.policy(site)
            if policy is not None:
                found[site] = policy.logs[0].name
        return found

    def _offers(self, site: str, own: OpenedCheckpoint | None = None) -> tuple[AddCheckpoint, ...]:
        """Return what a site is asked to cosign, this log's newest checkpoint first."""
        offers = list(self._board.offers(site, self._owners()))[:MAX_OFFERS_COUNT]
        mine = own or self.own.published()
        if mine is None:
            return tuple(offers)
        old = self._board.sizes(self._audit.origin).get(site, 0)
        if old >= mine.size:
            return tuple(offers)
        growth = self.own.growth(mine.size, [old])
        request = request_of(mine, growth, old)
        return (request, *offers) if request is not None else tuple(offers)

    # --- at a round's end -------------------------------------------------------------------------------------

    def announce(self, about: str, ended: Ended | None = None) -> OpenedCheckpoint | None:
        """Sign a checkpoint and ask every connected site to cosign it; None while words are missing after a start.

        Args:
            about: What ended, as a token: a job and its round.
            ended: The round, whose end and `model.released` are shown to the sites, to each with its receipt's place.

        Raises:
            AppendFailed: The log is closed, or the checkpoint couldn't be stored.
        """
        signed = self.own.publish(about=about)
        if signed is None or self._post is None:
            return signed
        shown = Opening(b"", b"", {}) if ended is None else self._opening(ended, signed)
        for site in self._sites():
            if self._post.connected(site):
                self._send_notice(site, about, signed, shown)
        return signed

    def _send_notice(self, site: str, about: str, signed: OpenedCheckpoint, shown: Opening) -> None:
        offers = self._offers(site, signed)
        lines = self._lines_for(site)
        if self._post is None or not (offers or lines):
            return
        self._post.send(
            site,
            WitnessNotice(
                message_id=self._new_message_id(),
                about=about,
                lines=lines,
                offers=tuple(bytes(offer).hex() for offer in offers),
                model=shown.model.hex(),
                ended=shown.before.hex(),
                receipt=shown.places.get(SiteId(site)),
            ),
        )

    # --- the gate of a round ----------------------------------------------------------------------------------

    def opening(
        self, job: JobId, ended: Ended | None, *, timeout_s: float, goes_on: Callable[[], bool]
    ) -> Opening | None:
        """Return what opens the job's next round, once a quorum of others has seen how the one before ended.

        Args:
            job: The job.
            ended: How the round before ended; None before round 0, which the job's submission opens.
            timeout_s: How long to wait for the quorum.
            goes_on: Whether the job still runs; asked again and again.

        Returns:
            None where there was no quorum in time, or the job doesn't go on.

        Raises:
            Interrupted: The service stops.
        """
        about = about_of(job, ended)
        action = ("job.submitted", job) if ended is None else ("round.released", job, ended.round, ended.attempt)
        found = self.own.find(event_id(*action))
        if found is None:
            return self._opening_from_before(event_id(*action), ended)
        index = found[0]
        until_s = self._clock.monotonic_s() + timeout_s
        told_s = -REMIND_S
        while (under := self.own.wait_for(index, STEP_S if told_s > 0 else 0.0)) is None:
            now_s = self._clock.monotonic_s()
            if self._stopping.is_set():
                raise Interrupted
            if now_s >= until_s or not goes_on():
                return None
            if now_s - told_s >= REMIND_S and self.own.wait_to_publish(STEP_S):
                self.announce(about, ended)
                told_s = now_s
        return self._opening(ended, under, found)

    def _opening_from_before(self, wanted: str, ended: Ended | None) -> Opening | None:
        """Return what opens a round whose way was cleared in an epoch of this log before the one in use."""
        before = prove_in_an_earlier_epoch(self._audit.folder, wanted, self._trust.policy(COORDINATOR))
        return None if before is None else Opening(before, b"", {} if ended is None else _places(ended))

    def _opening(self, ended: Ended | None, under: OpenedCheckpoint, found: tuple[int, bytes] | None = None) -> Opening:
        before = found if found is not None or ended is None else self._entry("round.released", ended)
        model = None if ended is None else self._entry("model.released", ended)
        return Opening(
            before=self._prove(before, under),
            model=self._prove(model, under),
            places={} if ended is None else _places(ended),
        )

    def _entry(self, action: str, ended: Ended) -> tuple[int, bytes] | None:
        return self.own.find(event_id(action, ended.job, ended.round, ended.attempt))

    def _prove(self, entry: tuple[int, bytes] | None, under: OpenedCheckpoint) -> bytes:
        if entry is None or entry[0] >= under.size:
            return b""
        return bytes(self.own.prove(entry[0], entry[1], under))

    def show_roster(self, sum_id: str, *, timeout_s: float) -> bytes:
        """Return the proof that this log holds the roster of a sum; nothing where there is none in time."""
        found = self.own.find(event_id("round.roster", sum_id))
        if found is None or not self.own.wait_to_publish(timeout_s):
            return b""
        under = self.own.publish()
        return b"" if under is None else self._prove(found, under)

    def lacking(self) -> str:
        """Return in words what a round that doesn't open waits for."""
        return self.own.lacking()

    # --- receipts ---------------------------------------------------------------------------------------------

    def check_receipt(self, site: SiteId, reply: PhaseReply) -> Peer:
        """Return the entry of the site's log that records the update of `reply`, found in a tree that only grew.

        Raises:
            ReceiptMissing: There is none, it says something else, or its proof fails: the update doesn't count.
            CheckFailed: CFD-L27, the proof begins at another size than was cosigned here; the site makes another.
        """
        origin = self._origin_of(site)
        if self.office.is_forked(origin):
            raise ReceiptMissing(
                "CFD-R93", f"site {site}: its log has two histories; see `confide audit witness status`"
            )
        proved, leaf = reply.proved, bytes.fromhex(reply.receipt)
        if proved is None or not leaf or reply.update is None:
            raise ReceiptMissing("CFD-R92", f"site {site}: the update came without proof of its entry update.sent")
        try:
            checkpoint, growth = own_in(proved.own)
            if checkpoint.origin != origin:
                raise ReceiptMissing("CFD-R92", f"site {site}: the receipt is of another log")
            request = request_of(checkpoint, growth, self.office.seen(origin).size)
            if request is None:
                held = self.office.seen(origin).size
                raise CheckFailed("CFD-L27", f"the proof isn't from the {held} entries that were cosigned here")
            status = self._add(site, request, growth, about=f"{reply.job}/{reply.round}")
            if status is not Status.COSIGNED:
                raise ReceiptMissing("CFD-R92", f"site {site}: its checkpoint was not cosigned ({int(status)})")
            signed = open_checkpoint(bytes(checkpoint.signed), origin=origin, log_keys=self.office.log_keys(origin))
            path = tuple(bytes.fromhex(node) for node in proved.path)
            proofs.check_inclusion(leaf_hash(leaf), proved.index, path, signed)
            event, _ = read_frame(leaf, origin=origin)
        except (NoteRefused, ProofRefused, EntryRefused) as problem:
            raise ReceiptMissing("CFD-R92", f"site {site}: {problem.message}") from None
        _check_says(site, event, reply)
        return Peer(
            origin=origin,
            leaf_hash=f"sha256:{leaf_hash(leaf).hex()}",
            index=proved.index,
            size=signed.size,
            root=f"sha256:{signed.root.hex()}",
        )


def _places(ended: Ended) -> dict[SiteId, ReceiptPlace]:
    found = places({str(site): receipt for site, receipt in ended.receipts.items()})
    return {SiteId(site): place_out(place) for site, place in found.items()}


def _check_says(site: SiteId, event: Mapping[str, object], reply: PhaseReply) -> None:
    """Refuse a receipt that isn't about exactly this update of this round."""
    update, egress = reply.update, event.get("egress")
    said = (event.get("action"), event.get("decision"), event.get("job"), event.get("round"))
    wanted = ("update.sent", "allowed", reply.job, reply.round)
    if update is None or not isinstance(egress, dict) or said != wanted:
        raise ReceiptMissing("CFD-R92", f"site {site}: the receipt is about something else")
    if (egress.get("hash"), egress.get("bytes")) != (f"sha256:{update.root}", update.size_bytes):
        raise ReceiptMissing("CFD-R92", f"site {site}: the receipt names another update")
