"""Which versions go together, which limits contradict each other, and how bytes are framed."""

import contextlib
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from federation.codes import CODES
from federation.errors import ConfideError, NotAuthenticated, PeerMisbehaved, PolicyRefused, TimedOut, Unreachable
from federation.link import link_pb2 as pb
from federation.link.limits import LinkLimits
from federation.link.versions import judge
from federation.link.wire import PASSING_CODES, chunk_piece, error_from, head_piece, read_piece, reference_from_wire
from federation.messages import BlobReference, Versions

REFERENCE = BlobReference(root="ab" * 32, size_bytes=5)


def versions(confide: str = "1.2.0", protocol: int = 2, oldest: int = 1) -> Versions:
    return Versions(confide=confide, protocol=protocol, oldest_protocol=oldest)


@pytest.mark.parametrize(
    ("coordinator", "site", "upgrade", "notice"),
    [
        (versions(), versions(), None, ""),
        (versions(), versions("1.1.9", 1, 1), None, "accepted; upgrade the site when convenient"),
        (versions(), versions("1.2.0a1"), None, "accepted; upgrade the coordinator when convenient"),
        (versions(), versions("1.10.0"), None, "accepted; upgrade the coordinator when convenient"),
        (versions("1.10.0"), versions("1.9.0"), None, "accepted; upgrade the site when convenient"),
        (versions(), versions("2.0.0", 3, 2), None, "accepted; upgrade the coordinator when convenient"),
        (versions("3.0.0", 3, 2), versions("1.0.0", 1, 1), "site", "upgrade the site"),
        (versions("1.0.0", 1, 1), versions("3.0.0", 3, 2), "coordinator", "upgrade the coordinator"),
    ],
)
def test_a_pair_is_judged_and_the_side_to_upgrade_named(
    coordinator: Versions, site: Versions, upgrade: str | None, notice: str
) -> None:
    verdict = judge(coordinator=coordinator, site=site)
    assert verdict.upgrade == upgrade
    assert verdict.notice.endswith(notice)
    if notice:
        assert coordinator.confide in verdict.notice
        assert site.confide in verdict.notice


@pytest.mark.parametrize(
    "changes",
    [
        {"heartbeat_s": 20.0, "lost_after_s": 35.0},
        {"heartbeat_s": 59.0},
        {"max_remembered_count": 1024},
        {"max_staging_bytes_per_site": 1 << 20},
        {"max_messages_per_s": 0},
        {"max_sites": 5},
    ],
)
def test_limits_that_contradict_each_other_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        LinkLimits(**changes)  # type: ignore[arg-type]


def test_the_defaults_hold_a_connection_open_under_a_sixty_second_cut() -> None:
    limits = LinkLimits()
    assert 2 * limits.heartbeat_s < 60
    assert limits.retry_bound_s <= 30


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 1 << 20])
def test_a_chunk_is_framed_as_protobuf_would(size: int) -> None:
    chunk = os.urandom(size)
    framed = chunk_piece(chunk)
    assert framed == pb.Piece(chunk=chunk).SerializeToString()
    found = read_piece(framed)
    assert isinstance(found, memoryview)
    assert bytes(found) == chunk


def test_a_head_is_read_back() -> None:
    head = read_piece(head_piece(REFERENCE, 3, b"h" * 32))
    assert isinstance(head, pb.Head)
    assert (reference_from_wire(head.reference), head.first_chunk, head.hashes) == (REFERENCE, 3, b"h" * 32)


@given(data=st.binary(max_size=64))
def test_any_bytes_are_a_piece_or_refused(data: bytes) -> None:
    with contextlib.suppress(PeerMisbehaved):
        assert isinstance(read_piece(data), pb.Head | memoryview)


@pytest.mark.parametrize("root", ["", "AB" * 32, "ab" * 31, "../" + "a" * 61, "ab" * 32 + "\n"])
def test_a_root_that_is_no_digest_is_refused(root: str) -> None:
    with pytest.raises(PeerMisbehaved):
        reference_from_wire(pb.Reference(root=root, size_bytes=1))


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("CFD-L05", NotAuthenticated),
        ("CFD-S03", PolicyRefused),
        ("CFD-L17", TimedOut),
        ("CFD-L13", Unreachable),
        ("nonsense", PeerMisbehaved),
    ],
)
def test_a_refusal_from_the_other_side_is_an_error_of_its_class(code: str, kind: type[ConfideError]) -> None:
    problem = error_from(code, "why")
    assert type(problem) is kind
    assert problem.code == (code if code in CODES else "CFD-L09")


def test_the_codes_that_pass_by_themselves_exist() -> None:
    assert set(CODES) >= PASSING_CODES
