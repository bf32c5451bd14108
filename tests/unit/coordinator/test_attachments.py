"""What travels inside a request, by size."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.attachments import MAX_ATTACHED_BYTES, Attachments
from federation.link.blobs import BlobStore


@pytest.mark.parametrize(
    ("record_bytes", "mean_bytes", "attached_count"),
    [
        (100, 100, 2),
        (100, MAX_ATTACHED_BYTES - 100, 2),
        (100, MAX_ATTACHED_BYTES - 99, 1),
        (MAX_ATTACHED_BYTES + 1, 1, 0),
    ],
)
def test_small_blobs_go_with_the_request_and_large_ones_are_fetched(
    tmp_path: Path, record_bytes: int, mean_bytes: int, attached_count: int
) -> None:
    blobs = BlobStore(tmp_path)
    record, mean = b"r" * record_bytes, b"m" * mean_bytes
    release: Any = SimpleNamespace(record=record, record_blob=blobs.put_bytes(record), mean=blobs.put_bytes(mean))
    attachments = Attachments(blobs)
    assert attachments.of(release) == tuple(data.hex() for data in (record, mean)[:attached_count])
    other: Any = SimpleNamespace(record=b"o", record_blob=blobs.put_bytes(b"o"), mean=blobs.put_bytes(b""))
    assert attachments.of(other) == (b"o".hex(), "")
