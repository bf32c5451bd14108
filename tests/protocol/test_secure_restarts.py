"""A coordinator killed at any write of a secure round goes on; every site signs one vector and one consent."""

import secrets
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from coordinator.exchange import Heard, Silence
from coordinator.job_machine import JobState
from coordinator.round_work import FirstModel, RoundSettings, RoundWork
from coordinator.secure_round import SumSetting
from federation.identity import IdentityKey
from federation.messages import SUM_PHASES, MemberStatus, Phase, PhaseReply, PhaseRequest, SiteId
from federation.secure_sums import DigestSigner, figures_of, registry_of, sum_job_digest, words_of
from privacy.secagg import site_states as at
from privacy.secagg.envelope import open_message, unpack
from privacy.secagg.journal import History
from privacy.secagg.lineage import Lineage
from privacy.secagg.messages import SumPlan
from privacy.secagg.site import Site
from tests.support.rounds import Bench, Script
from tests.support.secure_sums import InsecureSeededRandom

SITES = ("a", "b", "c", "d")
VALUES = {"a": 0.5, "b": -0.25, "c": 1.0, "d": 0.75}


class PlayedSite:
    """A site whose process lives through every death of the coordinator; it answers a phase once, and repeats it."""

    def __init__(self, name: str) -> None:
        self.key = IdentityKey.generate()
        self.machine = Site(name, DigestSigner(self.key), InsecureSeededRandom(name + secrets.token_hex(4)))
        self.name = name
        self.state: at.State = at.Idle()
        self.journal: list[Any] = []
        self.replies: dict[tuple[int, int, Phase], PhaseReply] = {}
        self.signed: list[tuple[str, bytes]] = []

    def answer(self, bench: "SecureBench", request: PhaseRequest) -> PhaseReply:
        key = (request.round, request.attempt, request.phase)
        if key not in self.replies:
            self.replies[key] = self._phase(bench, request)
        return self.replies[key].model_copy(update={"message_id": secrets.token_hex(8)})

    def _phase(self, bench: "SecureBench", request: PhaseRequest) -> PhaseReply:
        update = None
        self.state, outputs = self.machine.step(self.state, self._event(bench, request), now_ms=0)
        fields: dict[str, Any] = {}
        for item in outputs:
            if isinstance(item, at.Persist):
                self.journal.append(item.record)
            elif isinstance(item, at.Send):
                self.signed.append((item.message.kind, item.message.body))
                fields = {"signed": (item.message.pack().hex(),), "boxes": tuple(box.hex() for box in item.boxes)}
            elif isinstance(item, at.Upload):
                update = bench.blobs.put_bytes(b"".join(data for _, data in item.job.job.chunks()))
                message = item.job.message
                assert message is not None
                self.signed.append((message.kind, message.body))
                fields = {"signed": (message.pack().hex(),)}
        return bench.reply(request).model_copy(update={"update": update, **fields})

    def _event(self, bench: "SecureBench", request: PhaseRequest) -> at.Event:
        messages = tuple(unpack(bytes.fromhex(packed)) for packed in request.signed)
        match request.phase:
            case Phase.ADVERTISE:
                registry = registry_of(bench.charter)
                model = open_message(SumPlan, messages[0], registry).body.model_digest
                digest = sum_job_digest(bench.job, bench.record().plan_digest)
                vector = np.full(words_of(bench.manifest), VALUES[self.name], np.float32)
                local = at.LocalJob(digest, model, Lineage(model))
                self.state = at.Idle()
                return at.SumOffered(messages[0], registry, History.of(self.journal), local, vector)
            case Phase.SHARE:
                return at.AdvertsShown(messages)
            case Phase.MASK:
                return at.SharesShown(messages, tuple(bytes.fromhex(box) for box in request.boxes))
            case Phase.CONSENT:
                return at.MaskedShown(messages)
            case Phase.REVEAL:
                return at.CertificateShown(messages)
            case _:
                release = bench.releases()[-1]
                figures = figures_of(bench.blobs.path(release.mean), words_of(bench.manifest))
                return at.ResultShown(messages[0], figures, bytes.fromhex(release.model_digest))


class SecureBench(Bench):
    """A job with secure sums, one round."""

    def __init__(self, folder: Path, silent: Callable[[Phase, str], bool] = lambda phase, site: False) -> None:
        self.sites = {name: PlayedSite(name) for name in SITES}
        self.coordinator = IdentityKey.generate()
        members = [
            SimpleNamespace(
                site=name, operator=f"of {name}", status=MemberStatus.ACTIVE, identity=site.key.public.hex()
            )
            for name, site in self.sites.items()
        ]
        self.charter: Any = SimpleNamespace(
            members=members,
            coordinator=SimpleNamespace(identity=self.coordinator.public.hex()),
            epoch=1,
            federation="heart",
        )
        self.silent = silent
        script = Script(
            {(Phase.TRAIN, None, None, None): lambda bench, request, site: Heard(site, bench.reply(request))}
        )
        for phase in SUM_PHASES:
            script.acts[phase, None, None, None] = self._act
        super().__init__(folder, script, sites=SITES, quorum=3, secure=True)

    def _act(self, bench: Bench, request: PhaseRequest, site: SiteId) -> Heard:
        if self.silent(request.phase, site):
            return Heard(site, None, Silence.LOST)
        return Heard(site, self.sites[site].answer(self, request))

    def work(self) -> RoundWork:
        return RoundWork(
            self.record(),
            self.plan,
            FirstModel(self.manifest, arrays=self.first),
            store=self.store,
            registry=self.registry,
            recorder=self.recorder,  # type: ignore[arg-type]
            clock=self.clock,
            new_message_id=lambda: secrets.token_hex(8),
            settings=RoundSettings(),
            sums=SumSetting(lambda: self.charter, DigestSigner(self.coordinator), lambda: secrets.token_bytes(32)),
        )

    def check(self, summed: tuple[str, ...] = SITES) -> None:
        """The job is done, one model was released, and it is the mean of the sites that were summed."""
        assert self.record().job.state is JobState.COMPLETED, self.record().job.reason
        assert [release.step for release in self.releases()] == [0, 1]
        wanted = np.mean([VALUES[name] for name in summed])
        for values in self.model().values():
            np.testing.assert_allclose(values, wanted, atol=8 / 2**22)
        for site in self.sites.values():
            for kind in ("advert", "shares", "masked", "survivors", "reveal"):
                assert sum(found == kind for found, _ in site.signed) <= 1, f"{site.name} signed two of {kind}"


def test_a_secure_round_releases_the_mean_and_every_site_checks_the_result(tmp_path: Path) -> None:
    bench = SecureBench(tmp_path)
    bench.run()
    bench.check()
    assert bench.spare == [1, 1, 1, 1, 1], "the plan bears one loss in all; no phase need wait for one that is away"
    assert all(isinstance(site.state, at.Ended) and site.state.code is None for site in bench.sites.values())


@pytest.mark.parametrize(
    ("phase", "summed"),
    [
        (Phase.ADVERTISE, ("b", "c", "d")),
        (Phase.SHARE, ("b", "c", "d")),
        (Phase.MASK, ("b", "c", "d")),
        (Phase.CONSENT, SITES),
        (Phase.REVEAL, SITES),
    ],
)
def test_a_site_lost_in_any_phase_leaves_the_exact_sum_of_the_others(
    tmp_path: Path, phase: Phase, summed: tuple[str, ...]
) -> None:
    gone = SUM_PHASES[SUM_PHASES.index(phase) :]
    bench = SecureBench(tmp_path, lambda asked, site: site == "a" and asked in gone)
    bench.run()
    bench.check(summed)
    before = SUM_PHASES.index(phase) + 1
    assert bench.spare == [1] * before + [0] * (5 - before), "who is lost counts in all phases after"


def test_two_sites_lost_after_masking_end_the_attempt_and_publish_nothing(tmp_path: Path) -> None:
    bench = SecureBench(tmp_path, lambda asked, site: site in "ab" and asked in (Phase.CONSENT, Phase.REVEAL))
    bench.run()
    assert [release.step for release in bench.releases()] == [0]
    assert "2 sites consent, needed are 3" in bench.attempts()[0].round.reason


@pytest.mark.parametrize("first", [3, *(pytest.param(first, marks=pytest.mark.slow) for first in (1, 2, 4, 5, 6))])
def test_a_coordinator_killed_at_any_write_goes_on_with_the_same_sum(tmp_path: Path, first: int) -> None:
    number, killed = first, 0
    while True:
        folder = tmp_path / str(number)
        folder.mkdir()
        bench = SecureBench(folder)
        if not bench.run_killed_at_write(number):
            break
        killed += 1
        bench.run()
        bench.check()
        number += 6
    assert killed >= 5
