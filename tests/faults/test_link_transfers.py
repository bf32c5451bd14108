"""Blob transfers over connections that break: every chunk once, at most one of them twice, and nothing unasked."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from federation.errors import ConfideError, InvalidInput, TimedOut
from federation.link import link_pb2 as pb
from federation.link.blobs import BlobStore
from federation.link.chunks import CHUNK_BYTES, reference_of
from federation.link.wire import LINK, as_is, chunk_piece, head_piece, reference_to_wire
from federation.messages import BlobReference, MemberStatus
from tests.faults.link_rig import NERVOUS, QUICK, Coordinator, Site, SiteKeys, StartSite, until
from tests.faults.relay import Relay

pytestmark = pytest.mark.enable_socket
CHUNKS = 6


def content(chunks: int = CHUNKS, seed: int = 1) -> bytes:
    """Return bytes in which no two chunks are equal, the last one short."""
    piece = bytes((index * seed) % 251 for index in range(CHUNK_BYTES))
    whole = b"".join(number.to_bytes(4, "big") + piece[4:] for number in range(chunks))
    return whole[:-1000]


def times_out_after_the_cut(relay: Relay, site: Site, transfer: Callable[[], object]) -> None:
    """Run `transfer`, whose deadline passes once the relay has cut it and lets nobody through."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(transfer)
        until(lambda: relay.answer_502, what="the cut")
        site.clock.forward(601)
        with pytest.raises(TimedOut):
            running.result(60)


def test_a_download_cut_at_every_chunk_resumes_where_it_was(coordinator: Coordinator, start: StartSite) -> None:
    reference = coordinator.blobs.put_bytes(content())
    coordinator.readable.add(reference.root)
    with Relay(coordinator.port) as relay:
        relay.cut_after(down=CHUNK_BYTES + CHUNK_BYTES // 2)
        site = start(port=relay.port)
        path = site.client.fetch(reference, deadline_s=60)
        assert path.read_bytes() == content()
        site.client.stop()
        # That it ends proves it: no connection carries more than a chunk and a half of the six. What a cut wastes is
        # the chunk that it falls in and what lies between the ends, which on a busy machine is several chunks.
        assert relay.connections >= CHUNKS
        assert relay.down_bytes < 6 * reference.size_bytes


def test_an_upload_cut_at_every_chunk_resumes_where_it_was(coordinator: Coordinator, start: StartSite) -> None:
    with Relay(coordinator.port) as relay:
        relay.cut_after(up=CHUNK_BYTES + CHUNK_BYTES // 2)
        site = start(port=relay.port)
        reference = site.blobs.put_bytes(content())
        coordinator.expected.add(("cleveland", reference))
        site.client.deliver(reference, deadline_s=60)
        assert coordinator.blobs.path(reference).read_bytes() == content()
        assert coordinator.delivered == [("cleveland", reference)]
        site.client.stop()
        assert relay.connections >= CHUNKS
        assert relay.up_bytes < 6 * reference.size_bytes


def test_an_upload_goes_on_after_a_restart_of_the_coordinator(coordinator: Coordinator, start: StartSite) -> None:
    with Relay(coordinator.port) as relay:
        site = start(port=relay.port)
        reference = site.blobs.put_bytes(content())
        coordinator.expected.add(("cleveland", reference))
        relay.fail_after_cut = True
        relay.cut_after(
            up=3 * CHUNK_BYTES + CHUNK_BYTES // 2,
            once=lambda: coordinator.blobs.staged_chunks(reference, owner="cleveland") >= 2,
        )
        times_out_after_the_cut(relay, site, lambda: site.client.deliver(reference, deadline_s=600))
        coordinator.blobs = BlobStore(coordinator.blobs.folder)
        coordinator.restart()
        kept = coordinator.blobs.staged_chunks(reference, owner="cleveland")
        assert kept >= 2
        relay.cut_after()
        relay.answer_502 = False
        before = relay.up_bytes
        site.client.deliver(reference, deadline_s=60)
        assert coordinator.blobs.path(reference).read_bytes() == content()
        assert relay.up_bytes - before < (CHUNKS - kept) * CHUNK_BYTES + CHUNK_BYTES // 2
        site.client.stop()


def test_a_download_goes_on_after_a_restart_of_the_site(coordinator: Coordinator, start: StartSite) -> None:
    reference = coordinator.blobs.put_bytes(content())
    coordinator.readable.add(reference.root)
    with Relay(coordinator.port) as relay:
        site = start(port=relay.port)
        relay.fail_after_cut = True
        relay.cut_after(
            down=3 * CHUNK_BYTES + CHUNK_BYTES // 2,
            once=lambda: site.blobs.staged_chunks(reference, owner="coordinator") >= 2,
        )
        times_out_after_the_cut(relay, site, lambda: site.client.fetch(reference, deadline_s=600))
        site.client.stop()
        relay.cut_after()
        relay.answer_502 = False
        again = Site(site.keys, site.folder, relay.port)
        kept = again.blobs.staged_chunks(reference, owner="coordinator")
        assert kept >= 2
        before = relay.down_bytes
        assert again.client.fetch(reference, deadline_s=60).read_bytes() == content()
        assert relay.down_bytes - before < (CHUNKS - kept) * CHUNK_BYTES + CHUNK_BYTES // 2
        again.client.stop()


def test_a_transfer_that_stands_still_is_cut_and_resumed(coordinator: Coordinator, start: StartSite) -> None:
    reference = coordinator.blobs.put_bytes(content())
    coordinator.readable.add(reference.root)
    with Relay(coordinator.port) as relay:
        site = start(port=relay.port)
        relay.silent = True
        with pytest.raises(TimedOut) as late:
            site.client.fetch(reference, deadline_s=1.0)
        assert late.value.code == "CFD-L17"
        relay.silent = False
        assert site.client.fetch(reference, deadline_s=60).read_bytes() == content()
        site.client.stop()


def test_a_delivery_that_was_complete_is_counted_again_without_bytes(
    coordinator: Coordinator, start: StartSite
) -> None:
    with Relay(coordinator.port) as relay:
        site = start(port=relay.port)
        reference = site.blobs.put_bytes(content())
        coordinator.expected.add(("cleveland", reference))
        site.client.deliver(reference, deadline_s=60)
        before = relay.up_bytes
        site.client.deliver(reference, deadline_s=60)
        assert coordinator.delivered == [("cleveland", reference)] * 2
        assert relay.up_bytes - before < CHUNK_BYTES // 4
        site.client.stop()


def test_an_empty_blob_and_one_of_exactly_one_chunk_travel(coordinator: Coordinator, start: StartSite) -> None:
    site = start()
    for data in (b"", b"x" * CHUNK_BYTES, b"y"):
        down = coordinator.blobs.put_bytes(data + b"" if data else b"")
        coordinator.readable.add(down.root)
        assert site.client.fetch(down, deadline_s=60).read_bytes() == data
    for data in (b"", b"z" * CHUNK_BYTES):
        with Relay(coordinator.port):
            up = site.blobs.put_bytes(data)
        coordinator.expected.add(("cleveland", up))
        site.client.deliver(up, deadline_s=60)
        assert coordinator.blobs.path(up).read_bytes() == data


def test_a_chunk_that_a_restart_left_behind_does_not_stop_a_small_blob(
    coordinator: Coordinator, start: StartSite
) -> None:
    """The first try of a small blob asks nobody what is there; the coordinator then says that more is."""
    site = start()
    reference = site.blobs.put_bytes(b"small")
    coordinator.expected.add(("cleveland", reference))
    staging = coordinator.blobs.open_staging(reference, site.blobs.hashes(reference), owner="cleveland")
    staging.append(0, b"small")
    site.client.deliver(reference, deadline_s=20)
    assert coordinator.blobs.path(reference).read_bytes() == b"small"
    assert coordinator.delivered == [("cleveland", reference)]


# --- refusals -------------------------------------------------------------------------------------------------


def test_a_blob_that_isnt_for_the_site_is_refused_like_one_that_doesnt_exist(
    coordinator: Coordinator, start: StartSite
) -> None:
    site = start()
    secret = coordinator.blobs.put_bytes(b"another site's")
    absent = reference_of(b"never stored")
    coordinator.readable.add(absent.root)
    told = []
    for reference in (secret, absent):
        with pytest.raises(ConfideError) as refused:
            site.client.fetch(reference, deadline_s=60)
        told.append((refused.value.code, refused.value.message.replace(reference.root[:12], "…")))
    assert told[0] == told[1]
    assert told[0][0] == "CFD-L12"


def test_a_blob_that_nobody_expects_is_refused_and_nothing_of_it_is_kept(
    coordinator: Coordinator, start: StartSite
) -> None:
    site = start()
    reference = site.blobs.put_bytes(content())
    coordinator.expected.add(("cleveland", reference.model_copy(update={"size_bytes": 7})))
    coordinator.expected.add(("hungary", reference))
    with pytest.raises(ConfideError) as refused:
        site.client.deliver(reference, deadline_s=60)
    assert refused.value.code == "CFD-L12"
    assert coordinator.blobs.staged_bytes("cleveland") == 0
    assert coordinator.delivered == []


def test_a_blob_over_the_limit_is_refused_before_anything_is_sent(coordinator: Coordinator, start: StartSite) -> None:
    limits = QUICK.model_copy(update={"max_blob_bytes": 3 * CHUNK_BYTES})
    with Relay(coordinator.port) as relay:
        site = start(port=relay.port, limits=limits)
        reference = site.blobs.put_bytes(content())
        before = relay.up_bytes
        with pytest.raises(InvalidInput) as refused:
            site.client.deliver(reference, deadline_s=60)
        assert refused.value.message == f"a blob of {reference.size_bytes} bytes, the link carries {3 * CHUNK_BYTES}"
        with pytest.raises(InvalidInput):
            site.client.fetch(reference, deadline_s=60)
        assert relay.up_bytes - before < 2000
        site.client.stop()


class RawDelivery:
    """A site that delivers by hand, so that it can break the rules."""

    def __init__(self, coordinator: Coordinator, keys: SiteKeys) -> None:
        credentials = grpc.ssl_channel_credentials(
            keys.federation.authority_pem, keys.tls().key_pem, keys.tls().certificate_pem
        )
        self.channel = grpc.secure_channel(
            f"127.0.0.1:{coordinator.port}", credentials, options=[("grpc.enable_http_proxy", 0)]
        )

    def refusal(self, *pieces: bytes) -> str:
        call = self.channel.stream_unary(f"/{LINK}/Deliver", as_is, pb.StagedReply.FromString)
        with pytest.raises(grpc.RpcError) as ended:
            call(iter(pieces), timeout=60)
        return dict(ended.value.trailing_metadata() or ()).get("confide-code", str(ended.value.code()))


@pytest.fixture
def raw(coordinator: Coordinator) -> Any:
    keys = SiteKeys(coordinator.federation, "cleveland")
    coordinator.add(keys)
    made = RawDelivery(coordinator, keys)
    yield made
    made.channel.close()


@pytest.fixture
def update(coordinator: Coordinator, tmp_path: Path) -> tuple[BlobReference, bytes, list[bytes]]:
    """An expected update of two chunks: reference, hashes, chunks."""
    store = BlobStore(tmp_path / "made")
    reference = store.put_bytes(content(2))
    coordinator.expected.add(("cleveland", reference))
    return reference, store.hashes(reference), list(store.read_chunks(reference, 0))


def test_a_chunk_that_isnt_what_the_root_says_is_refused_and_those_before_are_kept(
    coordinator: Coordinator, raw: RawDelivery, update: tuple[BlobReference, bytes, list[bytes]]
) -> None:
    reference, hashes, chunks = update
    wrong = bytearray(chunks[1])
    wrong[5] ^= 1
    code = raw.refusal(head_piece(reference, 0, hashes), chunk_piece(chunks[0]), chunk_piece(bytes(wrong)))
    assert code == "CFD-L24"
    assert coordinator.blobs.staged_chunks(reference, owner="cleveland") == 1
    assert not coordinator.blobs.has(reference)


def test_a_list_of_hashes_that_isnt_the_roots_is_refused(
    coordinator: Coordinator, raw: RawDelivery, update: tuple[BlobReference, bytes, list[bytes]]
) -> None:
    reference, hashes, _ = update
    assert raw.refusal(head_piece(reference, 0, hashes[:-1] + b"\0")) == "CFD-L23"
    assert raw.refusal(head_piece(reference, 0, hashes + hashes[:32])) == "CFD-L23"
    assert coordinator.blobs.staged_bytes("cleveland") == 0


def test_pieces_in_another_order_are_refused(
    raw: RawDelivery, update: tuple[BlobReference, bytes, list[bytes]]
) -> None:
    reference, hashes, chunks = update
    assert raw.refusal(chunk_piece(chunks[0])) == "CFD-L09"
    assert raw.refusal(head_piece(reference, 0, hashes), head_piece(reference, 0, hashes)) == "CFD-L09"
    assert raw.refusal(head_piece(reference, 1, hashes), chunk_piece(chunks[1])) == "CFD-L25"
    assert raw.refusal(head_piece(reference, 9, hashes), chunk_piece(chunks[1])) == "CFD-L24"
    assert raw.refusal(b"\x12\xff") == "CFD-L09"
    assert raw.refusal(b"\xff\xff") == "CFD-L09"
    assert raw.refusal() == "CFD-L09"


def test_more_chunks_than_the_blob_has_are_refused(
    coordinator: Coordinator, raw: RawDelivery, update: tuple[BlobReference, bytes, list[bytes]]
) -> None:
    reference, hashes, chunks = update
    pieces = [head_piece(reference, 0, hashes), *(chunk_piece(chunk) for chunk in chunks), chunk_piece(b"more")]
    assert raw.refusal(*pieces) == "CFD-L24"
    assert coordinator.delivered == []


def test_a_pending_site_neither_fetches_nor_delivers(
    coordinator: Coordinator, raw: RawDelivery, update: tuple[BlobReference, bytes, list[bytes]]
) -> None:
    reference, hashes, _ = update
    coordinator.add(coordinator.keys["cleveland"], MemberStatus.PENDING)
    assert raw.refusal(head_piece(reference, 0, hashes)) == "CFD-L16"
    with pytest.raises(grpc.RpcError) as refused:
        list(
            raw.channel.unary_stream(f"/{LINK}/Fetch", pb.FetchRequest.SerializeToString, as_is)(
                pb.FetchRequest(reference=reference_to_wire(reference)), timeout=5
            )
        )
    assert dict(refused.value.trailing_metadata() or ())["confide-code"] == "CFD-L16"


def test_the_staging_of_one_site_is_bounded(coordinator: Coordinator, start: StartSite, tmp_path: Path) -> None:
    limits = QUICK.model_copy(update={"max_blob_bytes": 4 * CHUNK_BYTES, "max_staging_bytes_per_site": 4 * CHUNK_BYTES})
    small = Coordinator(coordinator.federation, tmp_path / "small", limits=limits)
    try:
        keys = SiteKeys(coordinator.federation, "cleveland")
        small.add(keys)
        maker = BlobStore(tmp_path / "made")
        raw = RawDelivery(small, keys)
        references = [maker.put_bytes(content(3, seed)) for seed in (1, 2)]
        for reference in references:
            small.expected.add(("cleveland", reference))
        first = [head_piece(references[0], 0, maker.hashes(references[0]))]
        first.append(chunk_piece(next(maker.read_chunks(references[0], 0))))
        reply = raw.channel.stream_unary(f"/{LINK}/Deliver", as_is, pb.StagedReply.FromString)(iter(first), timeout=60)
        assert (reply.chunks, reply.complete) == (1, False)
        assert raw.refusal(head_piece(references[1], 0, maker.hashes(references[1]))) == "CFD-L13"
        raw.channel.close()
    finally:
        small.stop()


def test_transfers_of_one_site_at_once_are_bounded_and_the_next_comes_later(
    coordinator: Coordinator, start: StartSite
) -> None:
    reference = coordinator.blobs.put_bytes(content(40))
    coordinator.readable.add(reference.root)
    site = start()
    keys = site.keys
    raw = RawDelivery(coordinator, keys)
    request = pb.FetchRequest(reference=reference_to_wire(reference))
    fetch = raw.channel.unary_stream(f"/{LINK}/Fetch", pb.FetchRequest.SerializeToString, as_is)
    held = [fetch(request, timeout=60) for _ in range(QUICK.max_transfers_per_site_count)]
    for call in held:
        next(call)
    began = time.monotonic()
    with pytest.raises(TimedOut):
        site.client.fetch(reference, deadline_s=0.5)
    assert time.monotonic() - began < QUICK.stall_s / 2  # it waited for nobody
    for call in held:
        call.cancel()
    assert site.client.fetch(reference, deadline_s=60).stat().st_size == reference.size_bytes
    raw.channel.close()


@pytest.mark.parametrize("coordinator", [NERVOUS], indirect=True, ids=["nervous"])
def test_fetches_that_nobody_reads_are_cut_and_give_their_place_to_others(
    coordinator: Coordinator, start: StartSite
) -> None:
    reference = coordinator.blobs.put_bytes(content(40))
    coordinator.readable.add(reference.root)
    site = start()
    raw = RawDelivery(coordinator, site.keys)
    fetch = raw.channel.unary_stream(f"/{LINK}/Fetch", pb.FetchRequest.SerializeToString, as_is)
    held = [fetch(pb.FetchRequest(reference=reference_to_wire(reference)), timeout=60) for _ in range(4)]
    for call in held:
        next(call)
    assert site.client.fetch(reference, deadline_s=60).stat().st_size == reference.size_bytes
    raw.channel.close()
