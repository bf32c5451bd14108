"""What reads, spends and sends takes a receipt: without one it doesn't type-check, with another one it refuses."""

import hashlib
from pathlib import Path

import pytest

from audit.errors import EntryRefused
from federation.errors import OutOfOrder
from federation.messages import BlobReference, EvaluationCounts
from site_client.uploads import Uploads, figures_of, figures_that_leave
from tests.support.receipts import leased, sent

ROOT = Path(__file__).resolve().parents[3]
UPDATE = BlobReference(root="a" * 64, size_bytes=17)
WITHOUT_A_RECEIPT = """
from audit.receipt import Receipt, ReceiptGuard
from federation.messages import BlobReference, EvaluationCounts
from pathlib import Path
from site_client.budget.leases import RoundLeases
from site_client.budget.store import BudgetStore
from site_client.data.loader import open_dataset
from site_client.phases import Tools
from site_client.uploads import Uploads, figures_that_leave


def acts(
    home: Path, guard: ReceiptGuard, store: BudgetStore, uploads: Uploads, tools: Tools, update: BlobReference,
    figures: EvaluationCounts, receipt: Receipt
) -> None:
    open_dataset(home, dataset="d", version="v", contract_digest="c", guard=guard, mode="train")
    open_dataset(home, dataset="d", version="v", contract_digest="c", guard=guard, mode="train", receipt=7)
    RoundLeases(store, "job", 0)
    RoundLeases(store)
    uploads.deliver(update, deadline_s=1.0)
    tools.deliver(update, 1.0)
    figures_that_leave(figures)
    figures_that_leave(None, figures)
    # With one it does:
    open_dataset(home, dataset="d", version="v", contract_digest="c", guard=guard, mode="train", receipt=receipt)
    RoundLeases(store, receipt)
    uploads.deliver(receipt, deadline_s=1.0)
    tools.deliver(receipt, 1.0)
    figures_that_leave(receipt, figures)
"""


class Link:
    """What a link was asked to carry."""

    def __init__(self) -> None:
        self.carried: list[BlobReference] = []

    def deliver(self, reference: BlobReference, *, deadline_s: float) -> None:
        self.carried.append(reference)


def test_acting_without_a_receipt_does_not_type_check(tmp_path: Path) -> None:
    from mypy import api

    snippet = tmp_path / "acts.py"
    snippet.write_text(WITHOUT_A_RECEIPT)
    settings = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache")]
    said, problems, _ = api.run([*settings, "--no-error-summary", "--follow-imports", "silent", str(snippet)])
    lines = WITHOUT_A_RECEIPT.split("\n")
    wrong = {lines[int(line.split(":")[1]) - 1].strip() for line in said.splitlines() if ": error:" in line}
    acts = [line.strip() for line in lines[lines.index(") -> None:") + 1 :] if line.strip()]
    assert wrong == set(acts[: acts.index("# With one it does:")]), (said, problems)


def test_what_leaves_is_what_the_entry_names() -> None:
    link = Link()
    Uploads(link).deliver(sent("update.sent", digest=UPDATE.root, size_bytes=17), deadline_s=1.0)
    assert link.carried == [UPDATE]


def test_another_entrys_receipt_lets_nothing_leave() -> None:
    link = Link()
    with pytest.raises(EntryRefused):
        Uploads(link).deliver(leased("j1", 0, steps=5), deadline_s=1.0)
    assert link.carried == []


def test_figures_other_than_the_recorded_do_not_leave() -> None:
    figures = EvaluationCounts(release="public", bins=2, negatives=(3, 1), positives=(4, 0), loss_sum="0x1.0p+0")
    digest = hashlib.sha256(figures_of(figures)).hexdigest()
    assert figures_that_leave(sent("evaluation.sent", digest=digest, size_bytes=1), figures) is figures
    with pytest.raises(OutOfOrder):
        figures_that_leave(sent("evaluation.sent", digest="b" * 64, size_bytes=1), figures)
    with pytest.raises(EntryRefused):
        figures_that_leave(sent("update.sent", digest=digest, size_bytes=1), figures)
