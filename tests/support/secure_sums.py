"""A secure sum in memory: a coordinator and its sites, with whatever gets lost or changed on the way."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from privacy.secagg import aggregator_states as hub
from privacy.secagg import site_states as at
from privacy.secagg.aggregator import Aggregator
from privacy.secagg.envelope import Member, Registry, Signed, sign
from privacy.secagg.field import CHUNK_WORDS, centred, chunk_count
from privacy.secagg.journal import History
from privacy.secagg.keys import ed25519_verify
from privacy.secagg.lineage import Lineage
from privacy.secagg.masking import Noise
from privacy.secagg.messages import SumPlan
from privacy.secagg.parameters import derive
from privacy.secagg.plan_checks import Floors
from privacy.secagg.site import Site
from privacy.secagg.sums import Accumulator, SumInspection

JOB, MODEL, NEW_MODEL = "11" * 32, "33" * 32, "44" * 32


class InsecureSeededRandom:
    """A random source that repeats itself, for tests alone."""

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._count = 0

    def take(self, count: int) -> bytes:
        out = b""
        while len(out) < count:
            out += hashlib.sha256(f"{self._seed}/{self._count}".encode()).digest()
            self._count += 1
        return out[:count]


@dataclass(frozen=True)
class SigningKey:
    """An Ed25519 key made from a name."""

    key: Ed25519PrivateKey

    def sign(self, message: bytes) -> bytes:
        return self.key.sign(message)

    @property
    def public(self) -> bytes:
        return self.key.public_key().public_bytes_raw()


@cache
def key_of(name: str) -> SigningKey:
    return SigningKey(Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest()))


def names_of(count: int) -> list[str]:
    return [f"s{number:03d}" for number in range(count)]


@cache
def registry_of(names: tuple[str, ...], epoch: int = 3) -> Registry:
    members = {name: Member(f"operator-{name}", True, ed25519_verify(key_of(name).public)) for name in names}
    return Registry(epoch, members, ed25519_verify(key_of("coordinator").public))


def plan_for(names: Sequence[str], dim: int, *, colluding: int = 0, dropouts: int = 0, **changed: Any) -> SumPlan:
    """Return a sound plan; `changed` replaces fields, whatever that makes of it."""
    found = derive(len(names), colluding, dropouts, changed.pop("job_quorum", 0))
    fields: dict[str, Any] = {
        "suite": "FSA-1",
        "federation": "heart",
        "job_digest": JOB,
        "purpose": "train",
        "sum_id": "22" * 32,
        "prev_sum": None,
        "round": 7,
        "attempt": 0,
        "registry_epoch": 3,
        "invited": tuple(names),
        "weights": None,
        "model_digest": MODEL,
        "dim": dim,
        "word_bits": 32,
        "chunk_words": CHUNK_WORDS,
        "clip": (1.0).hex(),
        "scale_log2": 18,
        "q_max": 2**18,
        "clamp_ppm_max": 0,
        "rounding": "stochastic",
        "dp": {
            "mechanism": "none",
            "unit": "none",
            "z": "0",
            "sigma_sq": 0,
            "norm_sq_max": 0,
            "honest_min": 0,
        },
        "colluding": colluding,
        "dropouts": found.dropouts,
        "degree": found.degree,
        "share_threshold": found.share_threshold,
        "quorum": found.quorum,
        "deadlines_s": (60, 60, 600, 60, 60),
    }
    return SumPlan.model_validate({**fields, **changed})


def integer_plan(names: Sequence[str], dim: int, **changed: Any) -> SumPlan:
    """Return a plan whose sum is that of the sites' own integers."""
    grid = {"rounding": "integer", "scale_log2": 0, "q_max": 10**6}
    return plan_for(names, dim, **{**grid, **changed})


def integers(name: str, dim: int, q_max: int = 10**6) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the vector of a site: drawn from its name, with both limits in it."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    values = np.random.default_rng(seed).integers(-q_max, q_max + 1, size=dim)
    values[0] = q_max if seed % 2 else -q_max
    return values


def local_job() -> at.LocalJob:
    return at.LocalJob(JOB, MODEL, Lineage(MODEL))


@dataclass
class SiteRun:
    """One site with its state and all that it journalled."""

    site: Site
    update: Any
    registry: Registry
    state: at.State = field(default_factory=at.Idle)
    journal: list[Any] = field(default_factory=list)
    sent: list[Signed] = field(default_factory=list)
    boxes: tuple[bytes, ...] = ()
    upload: at.SignedMaskJob | None = None
    closed: at.SumClosed | None = None
    floors: Floors = field(default_factory=Floors)
    local: at.LocalJob = field(default_factory=local_job)
    proofs: tuple[Signed, ...] = ()
    lease: str | None = None
    overridden: bool = False

    def offer(self, plan: Signed, now_ms: int = 0) -> tuple[at.Output, ...]:
        history = History.of(self.journal)
        event = at.SumOffered(
            plan, self.registry, history, self.local, self.update, self.floors, self.proofs, self.overridden
        )
        return self.tell(event, now_ms)

    def tell(self, event: at.Event, now_ms: int = 0) -> tuple[at.Output, ...]:
        self.state, outputs = self.site.step(self.state, event, now_ms=now_ms)
        for item in outputs:
            match item:
                case at.Persist():
                    self.journal.append(item.record)
                case at.Send():
                    self.sent.append(item.message)
                    self.boxes = item.boxes or self.boxes
                case at.Upload():
                    self.upload = item.job
                case at.SumClosed():
                    self.closed = item
        return outputs

    @property
    def last(self) -> Signed:
        return self.sent[-1]

    @property
    def code(self) -> str | None:
        return None if self.closed is None else self.closed.code


def site_run(
    name: str, update: Any, registry: Registry, *, noise: Callable[[int], Noise] | None = None, seed: str = ""
) -> SiteRun:
    site = Site(name, key_of(name), InsecureSeededRandom(seed + name), noise)
    return SiteRun(site, update, registry)


@dataclass
class Federation:
    """A coordinator with its memory, and its sites."""

    plan: SumPlan
    sites: dict[str, SiteRun]
    aggregator: Aggregator
    accumulator: Accumulator
    state: hub.State = field(init=False)
    records: list[Any] = field(default_factory=list)
    relayed: dict[str, hub.Relay] = field(default_factory=dict)
    spool: dict[tuple[str, int], bytes] = field(default_factory=dict)
    blamed: list[Any] = field(default_factory=list)
    acknowledged: set[str] = field(default_factory=set)
    total: Any = None
    figures: Any = None
    passes_count: int = 0
    refusal: Any = None
    result: Signed | None = None
    tamper: Callable[[str, Signed], Signed] | None = None

    def open(self) -> None:
        self.state, outputs = self.aggregator.open(self.plan)
        self.perform(outputs)

    def hear(self, event: hub.Event) -> None:
        self.state, outputs = self.aggregator.step(self.state, event)
        self.perform(outputs)

    def perform(self, outputs: Iterable[hub.Output]) -> None:
        for item in outputs:
            match item:
                case hub.Keep():
                    self.records.append(item.record)
                case hub.Relay():
                    self.relayed[item.to] = item
                case hub.Spool():
                    self.spool[item.sender, item.index] = item.data
                case hub.Discard():
                    self.spool = {key: data for key, data in self.spool.items() if key[0] != item.sender}
                case hub.AddStaged():
                    sender = item.sender
                    self.accumulator.add(sender, item.stage, lambda index, sender=sender: self.spool[sender, index])
                case hub.Acknowledge():
                    self.acknowledged.add(item.to)
                case hub.Blamed():
                    self.blamed.append(item.refusal)
                case hub.Unmask():
                    self._unmask(item)
                case hub.Concluded():
                    self.result, self.refusal = item.result, item.refusal

    def _unmask(self, item: hub.Unmask) -> None:
        self.passes_count = item.job.passes_count
        item.job.run(self.accumulator)
        item.job.wipe()
        inspection = SumInspection(self.plan.dim, self.plan.word_bits)
        parts = []
        for index in range(chunk_count(self.plan.dim)):
            words = self.accumulator.words(index)
            inspection.read(words)
            parts.append(centred(words))
        self.total = np.concatenate(parts)
        self.figures = inspection.figures()

    # --- one phase each, for the sites named; a site that isn't is lost from here on ------------------------

    def advertise(self, who: Iterable[str]) -> None:
        self.open()
        for name in who:
            self.sites[name].offer(self.relayed[name].messages[0])
            self.hear(hub.Arrived(self.sites[name].last))
        self.end()

    def end(self) -> None:
        if not isinstance(self.state, hub.Over):
            self.relayed = {}
            self.hear(hub.PhaseEnded())

    def share(self, who: Iterable[str]) -> None:
        for name in self._told(who):
            run = self.sites[name]
            run.tell(at.AdvertsShown(self.relayed[name].messages))
            self.hear(hub.Arrived(run.last, run.boxes))
        self.end()

    def mask(self, who: Iterable[str], *, half: Iterable[str] = ()) -> None:
        for name in self._told(dict.fromkeys([*who, *half])):
            run, relay = self.sites[name], self.relayed[name]
            run.tell(at.SharesShown(relay.messages, relay.boxes, run.lease))
            if run.upload is None:  # it aborted
                self.hear(hub.Arrived(run.last))
                continue
            self.upload(name, finish=name not in half)
        self.end()

    def upload(self, name: str, *, finish: bool = True) -> None:
        run = self.sites[name]
        assert run.upload is not None
        for index, data in run.upload.job.chunks():
            self.hear(hub.ChunkArrived(name, index, data))
            if not finish:
                return
        message = run.upload.message
        assert message is not None
        self.hear(hub.Arrived(message))
        if name in self.acknowledged:
            run.tell(at.UploadAcknowledged())

    def consent(self, who: Iterable[str]) -> None:
        self._phase(who, lambda relay: at.MaskedShown(relay.messages))

    def reveal(self, who: Iterable[str]) -> None:
        self._phase(who, lambda relay: at.CertificateShown(relay.messages))

    def _phase(self, who: Iterable[str], event: Callable[[hub.Relay], at.Event]) -> None:
        for name in self._told(who):
            run = self.sites[name]
            run.tell(event(self.relayed[name]))
            self.hear(hub.Arrived(run.last))
        self.end()

    def _told(self, who: Iterable[str]) -> list[str]:
        return [name for name in who if name in self.relayed and not isinstance(self.state, hub.Over)]

    def publish(self, *, tell: bool = True) -> None:
        if isinstance(self.state, hub.Unmasking):
            digest = bytes.fromhex(NEW_MODEL) if self.plan.purpose == "train" else None
            self.hear(hub.SumRead(self.figures, digest))
            if self.result is not None and tell:
                for name, run in self.sites.items():
                    if isinstance(run.state, at.Revealed):
                        run.tell(at.ResultShown(self.relayed[name].messages[0], self.figures, digest))

    @property
    def survivors(self) -> list[str]:
        return sorted(self.accumulator.senders)

    @property
    def code(self) -> str | None:
        return None if self.refusal is None else self.refusal.code


def federation_of(
    plan: SumPlan,
    updates: Mapping[str, Any] | None = None,
    *,
    noise: Callable[[int], Noise] | None = None,
    seed: str = "",
) -> Federation:
    names = plan.invited
    registry = registry_of(tuple(names), plan.registry_epoch)
    if updates is None:
        updates = {name: integers(name, plan.dim, plan.q_max) for name in names}
    sites = {name: site_run(name, updates[name], registry, noise=noise, seed=seed) for name in names}
    aggregator = Aggregator(registry, key_of("coordinator"))
    return Federation(plan, sites, aggregator, Accumulator(plan.dim, plan.word_bits))


def run_sum(found: Federation, lost: Mapping[str, int] | None = None) -> Federation:
    """Run a sum to its end; `lost` says from which phase on (0 … 4) a site is silent."""
    gone = lost or {}

    def left(phase: int) -> list[str]:
        return [name for name in found.plan.invited if gone.get(name, 9) > phase]

    found.advertise(left(0))
    found.share(left(1))
    found.mask(left(2))
    found.consent(left(3))
    found.reveal(left(4))
    found.publish()
    return found


def until(found: Federation, phase: str) -> Federation:
    """Run a sum without losses until the sites were relayed what begins `phase`."""
    everyone = list(found.plan.invited)
    for name in ("advertise", "share", "mask", "consent", "reveal", "publish"):
        if name == phase:
            return found
        getattr(found, name)(everyone) if name != "publish" else found.publish()
    return found


def signed_plan(plan: SumPlan) -> Signed:
    return sign(key_of("coordinator"), plan)


def resigned(name: str, message: Signed, kind: type[Any], **changed: Any) -> Signed:
    """Return a message with other fields, signed anew by its sender."""
    body = kind.model_validate_json(message.body)
    return sign(key_of(name), kind.model_validate({**body.model_dump(), **changed}))


def with_member(registry: Registry, name: str, **changed: Any) -> Registry:
    return replace(registry, members={**registry.members, name: replace(registry.members[name], **changed)})
