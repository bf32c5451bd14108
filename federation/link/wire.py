"""Between protobuf and this project's own types: methods, envelopes, pieces, refusals as gRPC statuses.

Chunks are framed by hand, byte for byte as protobuf would: its own encoder and decoder copy each chunk twice more,
which is a third of the time of a transfer.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import grpc
from google.protobuf.message import DecodeError

from federation.codes import CODES
from federation.errors import (
    CheckFailed,
    ConfideError,
    InvalidInput,
    NotAuthenticated,
    PeerMisbehaved,
    PolicyRefused,
    TimedOut,
    Unreachable,
)
from federation.link import link_pb2 as pb
from federation.messages import BlobReference, Body, SignedMessage

ENROLMENT: Final = "confide.link.v1.Enrolment"
LINK: Final = "confide.link.v1.Link"
WITNESS: Final = "confide.link.v1.Witness"
CODE_KEY: Final = "confide-code"
_CHUNK_TAG: Final = 0x12  # field 2, length-delimited (protobuf encoding, "Length-Delimited Records")
PASSING_CODES: Final = frozenset(
    {"CFD-L01", "CFD-L02", "CFD-L03", "CFD-L04", "CFD-L13", "CFD-L15", "CFD-L25", "CFD-L26"}
)
"""Codes of faults that pass by themselves; every other one needs a person."""


class Signer(Protocol):
    """Signs for one party; `federation.identity.IdentityKey` is one."""

    def sign(self, kind: str, body: bytes) -> bytes:
        """Return the signature over a message of `kind` with `body`."""
        ...


def channel_options(*, max_message_bytes: int, keepalive_s: float) -> list[tuple[str, int | str]]:
    """Return the gRPC settings that both ends share.

    The windows and frames are as large as a chunk, so that a transfer needs few acknowledgements and few system
    calls; HTTP/2 pings keep idle connections open and find dead ones.
    """
    return [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.http2.max_frame_size", 1 << 20),
        ("grpc.http2.lookahead_bytes", 8 << 20),
        ("grpc.keepalive_time_ms", int(keepalive_s * 1000)),
        ("grpc.keepalive_timeout_ms", int(keepalive_s * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", int(keepalive_s * 500)),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", int(keepalive_s * 500)),
    ]


# --- envelopes ------------------------------------------------------------------------------------------------


def signed(message_id: str, message: SignedMessage) -> pb.Signed:
    """Return `message` as it travels."""
    return pb.Signed(kind=message.kind, body=message.body, signature=message.signature, message_id=message_id)


def message_of(travelled: pb.Signed) -> SignedMessage:
    """Return what travelled; nothing of it is checked."""
    return SignedMessage(kind=travelled.kind, body=travelled.body, signature=travelled.signature)


def message_id_of(body: Body) -> str:
    """Return the id that every message body carries.

    Raises:
        InvalidInput: This kind of body is no message of its own.
    """
    message_id = getattr(body, "message_id", None)
    if not isinstance(message_id, str):
        raise InvalidInput("CFD-L09", "the body carries no message id: it is no message of its own")
    return message_id


# --- references and pieces ------------------------------------------------------------------------------------


def reference_to_wire(reference: BlobReference) -> pb.Reference:
    """Return `reference` as it travels."""
    return pb.Reference(root=reference.root, size_bytes=reference.size_bytes)


def reference_from_wire(travelled: pb.Reference) -> BlobReference:
    """Return the reference that travelled.

    Raises:
        PeerMisbehaved: Its root is no SHA-256 in hex.
    """
    try:
        return BlobReference(root=travelled.root, size_bytes=travelled.size_bytes)
    except ValueError:
        raise PeerMisbehaved("CFD-L09", "a blob reference is malformed") from None


def head_piece(reference: BlobReference, first_chunk: int, hashes: bytes) -> bytes:
    """Return the bytes of the piece that begins a transfer."""
    head = pb.Head(reference=reference_to_wire(reference), first_chunk=first_chunk, hashes=hashes)
    return pb.Piece(head=head).SerializeToString()


def chunk_piece(chunk: bytes) -> bytes:
    """Return the bytes of the piece that carries `chunk`: exactly those of ``Piece(chunk=chunk)``."""
    prefix = bytearray([_CHUNK_TAG])
    length = len(chunk)
    while length > 0x7F:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    prefix.append(length)
    return bytes(prefix) + chunk


def read_piece(data: bytes) -> pb.Head | memoryview:
    """Return the head or the chunk in `data`; the chunk is a view of `data`, not a copy.

    Raises:
        PeerMisbehaved: Neither of them.
    """
    if data[:1] == bytes([_CHUNK_TAG]):
        length, position = 0, 1
        while position < min(len(data), 6):
            byte = data[position]
            length |= (byte & 0x7F) << (7 * (position - 1))
            position += 1
            if byte < 0x80:
                break
        if length != len(data) - position:
            raise PeerMisbehaved("CFD-L09", "a piece of a transfer is malformed")
        return memoryview(data)[position:]
    try:
        piece = pb.Piece.FromString(data)
    except DecodeError:
        raise PeerMisbehaved("CFD-L09", "a piece of a transfer is malformed") from None
    if piece.WhichOneof("content") != "head":
        raise PeerMisbehaved("CFD-L09", "a transfer doesn't begin with its head")
    return piece.head


def as_is(data: bytes) -> bytes:
    """Return `data`: the serialiser of methods that frame by hand."""
    return data


# --- refusals -------------------------------------------------------------------------------------------------

_STATUS_OF: Final[Mapping[type[ConfideError], grpc.StatusCode]] = {
    InvalidInput: grpc.StatusCode.INVALID_ARGUMENT,
    NotAuthenticated: grpc.StatusCode.UNAUTHENTICATED,
    PolicyRefused: grpc.StatusCode.PERMISSION_DENIED,
    PeerMisbehaved: grpc.StatusCode.INVALID_ARGUMENT,
    TimedOut: grpc.StatusCode.DEADLINE_EXCEEDED,
    Unreachable: grpc.StatusCode.UNAVAILABLE,
}


def status_of(problem: ConfideError) -> grpc.StatusCode:
    """Return the gRPC status under which `problem` travels."""
    if problem.code in PASSING_CODES:
        return grpc.StatusCode.UNAVAILABLE
    return _STATUS_OF.get(type(problem), grpc.StatusCode.FAILED_PRECONDITION)


_CLASS_OF_STATUS: Final[Mapping[int, type[ConfideError]]] = {
    2: InvalidInput,
    3: NotAuthenticated,
    4: PolicyRefused,
    5: TimedOut,
}


def error_from(code: str, text: str) -> ConfideError:
    """Return the other side's refusal as an error here; an unknown code becomes the general one of the link."""
    if code not in CODES:
        return PeerMisbehaved("CFD-L09", f"the other side refused with the unknown code {code[:20]!r}")
    kind = Unreachable if code in PASSING_CODES else _CLASS_OF_STATUS.get(CODES[code].exit_status, CheckFailed)
    return kind(code, text[:500])


def refusal_in(problem: grpc.RpcError) -> ConfideError | None:
    """Return the coded refusal that `problem` carries, or None if the other side sent none."""
    metadata: Sequence[tuple[str, Any]] | None = None
    trailing = getattr(problem, "trailing_metadata", None)
    if callable(trailing):
        metadata = trailing()
    for key, value in metadata or ():
        if key == CODE_KEY and isinstance(value, str):
            details = problem.details() if hasattr(problem, "details") else ""
            return error_from(value, details or "")
    return None
