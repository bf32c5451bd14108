"""The loader opens for a receipt of exactly this reading, once, and for nothing else."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from audit import events
from audit.log import AuditLog
from audit.receipt import Receipt, ReceiptGuard
from federation.contract import digest
from federation.edge.clock import SystemClock
from federation.errors import CheckFailed
from site_client.data.definition import SplitByHash
from site_client.data.intake import Intake
from site_client.data.loader import OpenedData, open_dataset
from site_client.data.prepared import FOLDER, store_rows
from tests.support import data_files as files

JOB = "heart-risk-7f3a91"
HASH = "sha256:" + "5" * 64


@dataclass
class Site:
    home: Path
    log: AuditLog
    intake: Intake
    guard: ReceiptGuard

    def receipt(self, **changes: Any) -> Receipt:
        fields: dict[str, Any] = {
            "id": self.log.new_id(),
            "decision": "allowed",
            "actor": events.Actor(kind="service", id="daemon"),
            "rule": "rules/0",
            "dataset": events.Dataset(id="visits", version=f"sha256:{self.intake.version}"),
            "mode": "train",
            "job": JOB,
            "plan": HASH,
            "round": 3,
            "purpose": events.Purpose(code="DUO:0000007"),
            "policy": HASH,
        }
        return self.log.append(events.DataOpened(**{**fields, **changes}))

    def open(self, receipt: Receipt, **changes: Any) -> OpenedData:
        fields: dict[str, Any] = {
            "dataset": "visits",
            "version": self.intake.version,
            "contract_digest": digest(VISITS),
            "receipt": receipt,
            "guard": self.guard,
            "mode": "train",
            "job": JOB,
            "round_number": 3,
        }
        return open_dataset(self.home, **{**fields, **changes})


VISITS = files.contract([{"name": "age", "type": "integer"}, {"name": "label", "type": "integer"}])


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    lines = [f"p{i % 30},{20 + i % 50},{i % 2}" for i in range(120)]
    path = files.write(tmp_path / "visits.csv", "who,age,label\n" + "\n".join(lines) + "\n")
    split = SplitByHash(share=0.4, key=files.KEY)
    intake = files.read(path, VISITS, entity="who", split=split)
    store_rows(home, "visits", intake.version, digest(VISITS), intake.prepared)
    log = AuditLog.create(home / "audit", origin_federation="x.example.org", party="mercy", clock=SystemClock())
    with log:
        yield Site(home, log, intake, ReceiptGuard(origin=log.origin, boot=log.boot))


def test_training_and_evaluation_open_the_two_sides_with_units_counted_anew(site: Site) -> None:
    train = site.open(site.receipt())
    held_out = site.open(site.receipt(mode="evaluate"), mode="evaluate")
    rows = site.intake.prepared
    assert np.array_equal(train.features, rows.features[~rows.held_out])
    assert np.array_equal(held_out.labels, rows.labels[rows.held_out])
    assert train.units_count + held_out.units_count == 30
    for side in (train, held_out):
        assert sorted(set(side.units.tolist())) == list(range(side.units_count))
        assert np.bincount(side.units).tolist() == [4] * side.units_count
    assert train.features.dtype == np.float32


def test_a_receipt_that_crossed_a_pipe_opens_too(site: Site) -> None:
    sent = site.receipt()
    arrived = Receipt.reopen(origin=site.log.origin, index=sent.index, leaf=sent.leaf, writer_key=site.log.writer_key)
    assert site.open(arrived).units_count > 0


OTHER: dict[str, dict[str, Any]] = {
    "mode": {"mode": "evaluate"},
    "job": {"job": "heart-risk-000000"},
    "round": {"round": 4},
    "version": {"dataset": events.Dataset(id="visits", version=HASH)},
    "data set": {"dataset": events.Dataset(id="heart", version=HASH)},
    "decision": {"decision": "refused", "code": "CFD-S03"},
}


@pytest.mark.parametrize("what", sorted(OTHER))
def test_a_receipt_for_another_reading_opens_nothing(site: Site, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    receipt = site.receipt(**OTHER[what])
    monkeypatch.setattr("site_client.data.loader.load_rows", lambda *_: pytest.fail("rows were read"))
    with pytest.raises(CheckFailed, match=f"for another .*{what}") as caught:
        site.open(receipt)
    assert caught.value.code == "CFD-D22"


def test_a_receipt_of_another_action_opens_nothing(site: Site) -> None:
    dataset = events.Dataset(id="visits", version=f"sha256:{site.intake.version}")
    verified = events.DataVerified(
        id=site.log.new_id(), decision="allowed", actor=events.Actor(kind="service", id="daemon"), dataset=dataset
    )
    with pytest.raises(CheckFailed, match="for another action"):
        site.open(site.log.append(verified))


def test_a_receipt_opens_once(site: Site) -> None:
    receipt = site.receipt()
    site.open(receipt)
    with pytest.raises(CheckFailed, match="used before"):
        site.open(receipt)


def test_a_receipt_of_an_earlier_start_of_the_daemon_opens_nothing(site: Site) -> None:
    guard = ReceiptGuard(origin=site.log.origin, boot="0" * 32)
    with pytest.raises(CheckFailed, match="for another boot"):
        site.open(site.receipt(), guard=guard)


def test_rows_prepared_under_another_contract_are_not_opened(site: Site) -> None:
    with pytest.raises(CheckFailed, match="another contract") as caught:
        site.open(site.receipt(), contract_digest="0" * 64)
    assert caught.value.code == "CFD-D23"


@pytest.mark.parametrize("suffix", ["safetensors", "json"])
@pytest.mark.parametrize("damage", ["gone", "cut", "empty"])
def test_damaged_rows_are_never_handed_out(site: Site, suffix: str, damage: str) -> None:
    path = site.home / FOLDER / "visits" / f"{site.intake.version}.{suffix}"
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(b"" if damage == "empty" else path.read_bytes()[:-3])
    with pytest.raises(CheckFailed, match="missing or damaged"):
        site.open(site.receipt())
