"""A second, slow implementation of what a site says in a secure sum, from the format alone; no numpy, none of the code.

HKDF by HMAC, X25519 by the ladder of RFC 7748, AES-CTR block by block, the ring, the trees and the shares by integers.
Boxes are sealed with fresh randomness, so their bytes are taken as recorded.
"""

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

P = 2**256 + 297
Q = 2**255 - 19
CHUNK = 65_536


class Draws(Protocol):
    def take(self, count: int) -> bytes: ...


def h(label: str, *parts: bytes | str | int) -> bytes:
    name = f"FSA-1/{label}".encode()
    data = len(name).to_bytes(4, "big") + name
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part.to_bytes(8, "big") if isinstance(part, int) else part
        data += len(raw).to_bytes(8, "big") + raw
    return hashlib.sha256(data).digest()


def kdf(ikm: bytes, salt: bytes, label: str, *ids: str) -> bytes:
    info = f"FSA-1/{label}".encode() + b"".join(len(i).to_bytes(2, "big") + i.encode() for i in ids)
    extracted = hmac.new(salt, ikm, hashlib.sha256).digest()
    return hmac.new(extracted, info + b"\x01", hashlib.sha256).digest()


def x25519(private: bytes, point: bytes) -> bytes:
    """RFC 7748, section 5."""
    k = bytearray(private)
    k[0] &= 248
    k[31] = k[31] & 127 | 64
    scalar, x1 = int.from_bytes(k, "little"), int.from_bytes(point, "little") % 2**255
    x2, z2, x3, z3, swap = 1, 0, x1, 1, 0
    for bit in reversed(range(255)):
        now = scalar >> bit & 1
        if swap ^ now:
            x2, x3, z2, z3 = x3, x2, z3, z2
        swap = now
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        da, cb, aa, bb = d * a, c * b, a * a, b * b
        x3, z3 = (da + cb) ** 2 % Q, x1 * (da - cb) ** 2 % Q
        x2, z2 = aa * bb % Q, (aa - bb) * (aa + 121665 * (aa - bb)) % Q
    if swap:
        x2, z2 = x3, z3
    return (x2 * pow(z2, Q - 2, Q) % Q).to_bytes(32, "little")


def stream_words(key: bytes, count: int, bits: int) -> list[int]:
    encryptor = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305 - counter mode is built from it by hand
    size = bits // 8
    blocks = -(-count * size // 16)
    data = b"".join(encryptor.update(number.to_bytes(16, "big")) for number in range(blocks))
    return [int.from_bytes(data[place * size : place * size + size], "little") for place in range(count)]


def canonical(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()


def ring(roster: bytes, names: Sequence[str], degree: int) -> dict[str, list[str]]:
    order = sorted(names, key=lambda name: h("ring", roster, name))
    near: dict[str, list[str]] = {}
    for place, name in enumerate(order):
        if degree >= len(order) - 1:
            near[name] = sorted(set(order) - {name})
        else:
            half = degree // 2
            steps = [step for step in range(-half, half + 1) if step]
            near[name] = sorted(order[(place + step) % len(order)] for step in steps)
    return near


def element(draws: Draws) -> int:
    while True:
        data = draws.take(33)
        value = int.from_bytes(bytes([data[0] & 1]) + data[1:], "big")
        if value < P:
            return value


def share_out(secret: bytes, threshold: int, draws: Draws) -> list[int]:
    return [int.from_bytes(secret, "big")] + [element(draws) for _ in range(threshold - 1)]


def share_at(polynomial: Sequence[int], x: int) -> bytes:
    return (sum(term * x**power for power, term in enumerate(polynomial)) % P).to_bytes(33, "big")


def tree(leaves: Sequence[bytes]) -> bytes:
    if len(leaves) == 1:
        return leaves[0]
    cut = 1
    while cut * 2 < len(leaves):
        cut *= 2
    return h("node", tree(leaves[:cut]), tree(leaves[cut:]))


class ReferenceSite:
    """What one site draws and says, phase by phase."""

    def __init__(self, name: str, draws: Draws, plan_body: bytes, values: Sequence[int]) -> None:
        self.name, self.draws, self.values = name, draws, values
        self.plan: dict[str, Any] = json.loads(plan_body)
        self.pd = h("plan", plan_body)

    def advert(self) -> bytes:
        self.enc, self.ms, self.b, nonce = (self.draws.take(32) for _ in range(4))
        nine = (9).to_bytes(32, "little")
        fields = {"sender": self.name, "plan": self.pd.hex(), "nonce": nonce.hex()}
        fields |= {"enc_pk": x25519(self.enc, nine).hex(), "mask_pk": x25519(self.ms, nine).hex()}
        return canonical(fields)

    def shares(self, adverts: Mapping[str, bytes], recorded: Mapping[str, str]) -> bytes:
        self.adverts = {name: json.loads(body) for name, body in adverts.items()}
        self.roster = h("roster", self.pd, *(adverts[name] for name in sorted(adverts)))
        self.near = ring(self.roster, list(adverts), self.plan["degree"])
        self.place = {name: number for number, name in enumerate(sorted(adverts), 1)}
        threshold = self.plan["share_threshold"]
        b_terms = share_out(self.b, threshold, self.draws)
        m_terms = share_out(self.ms, threshold, self.draws)
        self.dealt, leaves = {}, []
        for to in self.near[self.name]:
            b_salt, m_salt = self.draws.take(16), self.draws.take(16)
            b_share, m_share = share_at(b_terms, self.place[to]), share_at(m_terms, self.place[to])
            self.dealt[to] = {"b": (b_share, b_salt), "m": (m_share, m_salt)}
            c_b = h("share-b", self.roster, self.name, to, b_share, b_salt)
            c_m = h("share-m", self.roster, self.name, to, m_share, m_salt)
            leaves.append(h("deal", self.roster, self.name, to, c_b, c_m, bytes.fromhex(recorded[to])))
        fields = {"sender": self.name, "roster": self.roster.hex(), "deal_root": tree(leaves).hex()}
        return canonical(fields | {"commit_b": h("commit-b", self.roster, self.name, self.b).hex()})

    def masked(self, shares: Mapping[str, bytes]) -> tuple[list[int], bytes]:
        self.members = sorted(shares)
        self.view = h("view", self.roster, *(shares[name] for name in self.members))
        self.draws.take(64)
        bits, dim = self.plan["word_bits"], self.plan["dim"]
        own = stream_words(kdf(self.b, self.view, "self", self.name), dim, bits)
        words = [value + word for value, word in zip(self.values, own, strict=True)]
        for peer in set(self.near[self.name]) & set(shares):
            lo, hi = sorted((self.name, peer))
            shared = x25519(self.ms, bytes.fromhex(self.adverts[peer]["mask_pk"]))
            mask = stream_words(kdf(shared, self.view, "pair", lo, hi), dim, bits)
            sign = 1 if self.name == lo else -1
            words = [word + sign * add for word, add in zip(words, mask, strict=True)]
        words = [word % 2**bits for word in words]
        data = [word.to_bytes(bits // 8, "little") for word in words]
        leaves = [h("chunk", start, b"".join(data[start : start + CHUNK])) for start in range(0, dim, CHUNK)]
        fields = {"sender": self.name, "view": self.view.hex(), "words": dim}
        return words, canonical(fields | {"payload": h("payload", *leaves).hex()})

    def survivors(self, masked: Mapping[str, bytes]) -> bytes:
        self.summed = sorted(masked)
        self.inputs = h("inputs", *(masked[name] for name in self.summed))
        fields = {"sender": self.name, "view": self.view.hex(), "survivors": self.summed}
        return canonical(fields | {"inputs": self.inputs.hex()})

    def reveal(self, peers: Mapping[str, "ReferenceSite"]) -> bytes:
        agreed = h("consensus", self.view, self.inputs, *self.summed)
        kinds: dict[str, dict[str, list[str]]] = {"b": {}, "m": {}}
        for peer in set(self.near[self.name]) & set(self.members):
            kind = "b" if peer in self.summed else "m"
            kinds[kind][peer] = [part.hex() for part in peers[peer].dealt[self.name][kind]]
        return canonical({"sender": self.name, "consensus": agreed.hex(), **kinds})
