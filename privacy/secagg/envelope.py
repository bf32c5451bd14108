"""Canonical bytes and signatures: how a message is spelled, signed and opened.

Canonical JSON (RFC 8785 without floats): keys sorted, no spaces, ASCII. A body is accepted only if encoding what was
read gives the same bytes. What is signed is a digest over kind and body, so that no body stands for another kind.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from pydantic import ValidationError

from privacy.secagg import messages
from privacy.secagg.derivation import digest
from privacy.secagg.errors import SumRefused, proved
from privacy.secagg.keys import Signer, Verify

Body = TypeVar("Body", bound=messages.Message)

KINDS: Final[Mapping[type[messages.Message], str]] = {
    messages.SumPlan: "plan",
    messages.Advert: "advert",
    messages.Shares: "shares",
    messages.Box: "box",
    messages.Masked: "masked",
    messages.Survivors: "survivors",
    messages.Reveal: "reveal",
    messages.Result: "result",
    messages.Abort: "abort",
}
LIMITS_BYTES: Final[Mapping[str, int]] = {
    "plan": 2**20,
    "reveal": 2**21,
    "survivors": 2**19,
    "result": 2**19,
    "abort": 2**19,
    "box": 2**13,
    "advert": 2**12,
    "shares": 2**12,
    "masked": 2**12,
}
SIGNATURE_BYTES: Final = 64


@dataclass(frozen=True, slots=True)
class Signed:
    """A message as it travels."""

    kind: str
    body: bytes
    signature: bytes

    def pack(self) -> bytes:
        """Return the message as one byte string: lengths of kind and body, kind, body, signature."""
        kind = self.kind.encode("ascii")
        return bytes((len(kind),)) + len(self.body).to_bytes(4, "big") + kind + self.body + self.signature


@dataclass(frozen=True, slots=True)
class Opened(Generic[Body]):
    """A message whose signature holds: its fields beside what was signed."""

    body: Body
    message: Signed


@dataclass(frozen=True, slots=True)
class Member:
    """A site of the consortium's registry.

    Attributes:
        operator: Who runs it; no operator has two sites in one sum.
        active: Whether it may take part.
        verify: The check of its signatures.
    """

    operator: str
    active: bool
    verify: Verify


@dataclass(frozen=True, slots=True)
class Registry:
    """What the consortium's root key signed, already verified.

    Attributes:
        epoch: Its number; it only rises.
        members: By site id.
        coordinator: The check of the coordinator's signatures.
    """

    epoch: int
    members: Mapping[str, Member]
    coordinator: Verify


def pack_limit(kind: str) -> int:
    """Return the most bytes that a packed message of `kind` has: what to read before it is parsed."""
    return 5 + len(kind) + LIMITS_BYTES[kind] + SIGNATURE_BYTES


def unpack(data: bytes) -> Signed:
    """Return the message that `pack` wrote.

    Raises:
        SumRefused: E_SIZE or E_KIND.
    """
    if len(data) < 5 or len(data) != 5 + data[0] + int.from_bytes(data[1:5], "big") + SIGNATURE_BYTES:
        raise SumRefused("E_SIZE", f"a message of {len(data)} bytes has other lengths inside")
    kind, rest = data[5 : 5 + data[0]], data[5 + data[0] :]
    if kind not in {name.encode("ascii") for name in LIMITS_BYTES}:
        raise SumRefused("E_KIND", "a message of no known kind")
    return Signed(kind.decode("ascii"), rest[:-SIGNATURE_BYTES], rest[-SIGNATURE_BYTES:])


def encode(body: messages.Message) -> bytes:
    """Return the one spelling of `body`."""
    fields = body.model_dump(mode="json")
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")


def parse(kind: type[Body], data: bytes) -> Body:
    """Return the body whose one spelling is `data`.

    Raises:
        SumRefused: E_SIZE or E_NONCANON.
    """
    name = KINDS[kind]
    if len(data) > LIMITS_BYTES[name]:
        raise SumRefused("E_SIZE", f"{name}: {len(data)} bytes, at most {LIMITS_BYTES[name]}")
    try:
        body = kind.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part)[:64] for part in first["loc"]) or "body"
        raise SumRefused("E_NONCANON", f"{name}: {place!a}: {first['type']}") from None
    if encode(body) != data:
        raise SumRefused("E_NONCANON", f"{name}: another spelling of its fields")
    return body


def signing_input(kind: str, body: bytes) -> bytes:
    """Return the 32 bytes that are signed for a body."""
    return digest(f"sig/{kind}", body)


def sign(signer: Signer, body: messages.Message) -> Signed:
    """Return `body` signed."""
    kind, data = KINDS[type(body)], encode(body)
    return Signed(kind, data, signer.sign(signing_input(kind, data)))


def open_message(kind: type[Body], message: Signed, registry: Registry) -> Opened[Body]:
    """Return what a message says, after size, kind, spelling, sender and signature, in this order.

    Raises:
        SumRefused: E_SIZE, E_KIND, E_NONCANON, E_UNENROLLED or E_SIG.
    """
    name = KINDS[kind]
    if len(message.body) > LIMITS_BYTES[name]:
        raise SumRefused("E_SIZE", f"{name}: {len(message.body)} bytes, at most {LIMITS_BYTES[name]}")
    if message.kind != name:
        raise SumRefused("E_KIND", f"a message of kind {message.kind[:16]!a} where {name} was expected")
    body = parse(kind, message.body)
    check_signature(message, getattr(body, "sender", None), registry)
    return Opened(body, message)


def check_signature(message: Signed, sender: str | None, registry: Registry) -> None:
    """Refuse a message whose signature isn't that of an active `sender`, or of the coordinator where there is none.

    Raises:
        SumRefused: E_UNENROLLED or E_SIG.
    """
    name, verify = message.kind, registry.coordinator
    if sender is not None:
        member = registry.members.get(sender)
        if member is None or not member.active:
            raise SumRefused("E_UNENROLLED", f"{name}: {sender} isn't an active member", evidence=message.pack())
        verify = member.verify
    if len(message.signature) != SIGNATURE_BYTES or not verify(message.signature, signing_input(name, message.body)):
        raise SumRefused("E_SIG", f"{name}: the signature of {sender or messages.COORDINATOR} doesn't hold")


def open_set(
    kind: type[Body], received: Iterable[Signed], registry: Registry, sender: Callable[[Body], str]
) -> dict[str, Opened[Body]]:
    """Return the messages of one set by their senders, in the order of their ids.

    Raises:
        SumRefused: As `open_message`; E_DUP, one sender appears twice: proved against it where the two differ.
    """
    found: dict[str, Opened[Body]] = {}
    for message in received:
        opened = open_message(kind, message, registry)
        name = sender(opened.body)
        if name in found:
            text = f"{KINDS[kind]}: {name} appears twice"
            if found[name].message.body == message.body:
                raise SumRefused("E_DUP", text, evidence=message.pack())
            raise proved("E_DUP", f"{text}, with two contents", name, evidence=message.pack())
        found[name] = opened
    return dict(sorted(found.items()))
