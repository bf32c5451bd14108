"""The known answers of secure sums, each group computed by other means than the code (its `how_computed`)."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from privacy.noise.noise_shares import Bands, NoiseShares
from privacy.secagg import digests
from privacy.secagg.deal_tree import deal_leaf, root_from, tree_paths, tree_root
from privacy.secagg.derivation import derive_key, digest
from privacy.secagg.envelope import encode, parse, sign, signing_input
from privacy.secagg.field import PRIME, centred, to_words, word_type
from privacy.secagg.graph import Ring, ring_over
from privacy.secagg.keys import BoxKey, Keystream, MaskSeed, ed25519_verify, public_key, self_key
from privacy.secagg.masking import Mask, Masks, pair_mask
from privacy.secagg.messages import Box, SumPlan
from privacy.secagg.quantize import Grid, Points, Rounding
from privacy.secagg.secret import Secret
from privacy.secagg.shamir import evaluate, join, lagrange_at_zero

KAT: dict[str, Any] = json.loads(Path(__file__).with_name("secagg_kat.json").read_text(encoding="ascii"))


def raw(text: str) -> bytes:
    return bytes.fromhex(text)


def test_the_field_has_the_prime_of_the_vectors() -> None:
    assert str(PRIME) == KAT["prime"]["decimal"]
    assert f"{PRIME:x}" == KAT["prime"]["hex"]


def test_the_hash_is_that_of_the_vectors() -> None:
    group = KAT["hash"]
    assert digest(group["label"], *(raw(part) for part in group["parts"])).hex() == group["out"]


def test_the_key_derivation_is_that_of_the_vectors() -> None:
    group = KAT["kdf"]
    assert derive_key(raw(group["ikm"]), raw(group["salt"]), group["label"], *group["ids"]).hex() == group["out"]


@pytest.mark.parametrize(
    "case", KAT["mask_words"]["cases"], ids=lambda case: f"{case['word_bits']}-{case['offset_words']}"
)
def test_mask_words_are_those_of_the_vectors(case: dict[str, Any]) -> None:
    words = np.zeros(len(case["words"]), dtype=word_type(case["word_bits"]))
    masks = Masks([Mask(Secret(raw(KAT["mask_words"]["key"])), added=True)], case["word_bits"], case["offset_words"])
    masks.apply(words)
    assert words.tolist() == case["words"]


def test_pair_keys_are_those_of_the_vectors_from_both_sides() -> None:
    group = KAT["x25519_pair_key"]
    first, second = Secret(raw(group["private_a"])), Secret(raw(group["private_b"]))
    assert public_key(first).hex() == group["public_a"]
    assert public_key(second).hex() == group["public_b"]
    view = raw(group["view"])
    keys = (
        MaskSeed(first).pair_key(raw(group["public_b"]), view, group["lo"], group["hi"]),
        MaskSeed(second).pair_key(raw(group["public_a"]), view, group["hi"], group["lo"]),
    )
    assert [bytes(key.reveal()).hex() for key in keys] == [group["pair_key"]] * 2


def test_the_ring_is_that_of_the_vectors() -> None:
    group = KAT["ring"]
    ring = ring_over(raw(group["roster"]), group["ids"], group["k"])
    assert list(ring.order) == group["order"]
    assert list(ring.neighbours("s0")) == group["neighbours_of_s0"]


@pytest.mark.parametrize("case", KAT["connectivity_bound"]["cases"], ids=lambda case: case["alive_by_ring_position"])
def test_the_connectivity_bound_is_that_of_the_vectors(case: dict[str, Any]) -> None:
    names = [f"s{place:02d}" for place in range(case["n"])]
    alive = [name for name, mark in zip(names, case["alive_by_ring_position"], strict=True) if mark == "1"]
    assert Ring(tuple(names), case["k"]).connectivity_bound(alive) == case["bound"]


def test_shares_are_those_of_the_vectors() -> None:
    group = KAT["shamir"]
    polynomial = [int(group["secret"], 16), *group["coefficients"]]
    shares = {int(place): raw(share) for place, share in group["shares"].items()}
    assert {place: evaluate(polynomial, place) for place in shares} == {
        place: int.from_bytes(share, "big") for place, share in shares.items()
    }
    places = tuple(group["lagrange_at_0"]["x"])
    assert list(lagrange_at_zero(places)) == [int(text, 16) for text in group["lagrange_at_0"]["coefficients"]]
    for left_out in shares:
        kept = {place: share for place, share in shares.items() if place != left_out}
        assert join(kept, group["threshold"]).hex() == group["secret"]


@pytest.mark.parametrize("case", KAT["quantise"]["cases"], ids=lambda case: case["dither_key"][:2])
def test_points_are_those_of_the_vectors(case: dict[str, Any]) -> None:
    values = np.array([float.fromhex(text) for text in case["x_float32_hex"]], dtype=np.float32)
    grid = Grid(float.fromhex(case["clip"]), case["scale_log2"], case["q_max"], Rounding.STOCHASTIC)
    assert grid.dither_bits == case["dither_bits"]
    points = Points(values, grid, Secret(raw(case["dither_key"]))).chunk(0)
    assert points.tolist() == case["q"]
    assert to_words(points, 32).tolist() == case["u32"]


def test_a_plan_has_the_spelling_and_digest_of_the_vectors() -> None:
    body = KAT["canonical_plan"]["body"].encode("ascii")
    assert encode(parse(SumPlan, body)) == body
    assert digests.plan_digest(body).hex() == KAT["canonical_plan"]["pd"]


def test_a_signature_is_that_of_the_vectors() -> None:
    group, body = KAT["signature"], KAT["canonical_plan"]["body"].encode("ascii")
    assert signing_input(group["kind"], body).hex() == group["message"]
    message = sign(Ed25519PrivateKey.from_private_bytes(raw(group["private"])), parse(SumPlan, body))
    assert (message.kind, message.body, message.signature.hex()) == (group["kind"], body, group["signature"])
    assert ed25519_verify(raw(group["public"]))(message.signature, raw(group["message"]))


def test_the_deal_tree_is_that_of_the_vectors() -> None:
    group = KAT["deal_tree"]
    boxes = [
        Box(
            sender=group["sender"],
            to=to,
            box=f"{32 + number:02x}" * 146,
            c_b=f"{number:02x}" * 32,
            c_m=f"{16 + number:02x}" * 32,
            path=(),
        )
        for number, to in enumerate(group["recipients"])
    ]
    leaves = [deal_leaf(raw(group["roster"]), box) for box in boxes]
    assert [leaf.hex() for leaf in leaves] == group["leaves"]
    root, paths = tree_paths(leaves)
    assert root.hex() == group["root"] == tree_root(leaves).hex()
    for number, to in enumerate(group["recipients"]):
        assert [node.hex() for node in paths[number]] == group["paths"][to]
        assert root_from(leaves[number], number, len(leaves), paths[number]) == root


def test_a_recorded_box_opens() -> None:
    group = KAT["box"]
    private = Secret(raw(group["recipient_private"]))
    opened = BoxKey(private).open(raw(group["box"]), raw(group["roster"]), group["sender"], group["to"])
    assert bytes(opened.reveal()).hex() == group["plaintext"]


def test_masked_vectors_and_their_sums_are_those_of_the_vectors() -> None:
    group = KAT["double_mask"]
    view, sites = raw(group["view"]), sorted(group["x"])
    mask_keys = {site: raw(key) for site, key in group["mask_pk"].items()}

    def seed(kind: str, site: str) -> Secret:
        return Secret(raw(group[f"{kind}_seed"][site]))

    masked = {}
    for site in sites:
        own = self_key(seed("self", site), view, site)
        assert bytes(own.reveal()).hex() == group["self_key"][site]
        masks = [Mask(own, added=True)]
        for peer in sites:
            if peer != site:
                key = MaskSeed(seed("mask", site)).pair_key(mask_keys[peer], view, site, peer)
                assert bytes(key.reveal()).hex() == group["pair_key"][",".join(sorted((site, peer)))]
                masks.append(pair_mask(key, site, peer))
        words = to_words(np.array(group["x"][site], dtype=np.int64), 32)
        Masks(masks, 32, 0).apply(words)
        masked[site] = words
        assert words.tolist() == group["y_u32"][site]

    everyone = sum(masked.values())
    Masks([Mask(self_key(seed("self", site), view, site), added=False) for site in sites], 32, 0).apply(everyone)
    assert centred(everyone).tolist() == group["sum_all"]

    left = masked["alpha"] + masked["gamma"]
    off = [Mask(self_key(seed("self", site), view, site), added=False) for site in ("alpha", "gamma")]
    for site in ("alpha", "gamma"):
        put_in = pair_mask(MaskSeed(seed("mask", "beta")).pair_key(mask_keys[site], view, "beta", site), site, "beta")
        off.append(Mask(put_in.key, added=not put_in.added))
    Masks(off, 32, 0).apply(left)
    assert centred(left).tolist() == group["sum_without_beta"]


@pytest.mark.parametrize("case", KAT["discrete_gaussian"]["cases"], ids=lambda case: str(case["sigma_sq"]))
def test_noise_is_that_of_the_vectors_on_both_ways_of_deciding(case: dict[str, Any]) -> None:
    key, chunk, wanted = raw(KAT["discrete_gaussian"]["noise_key"]), case["chunk"], case["samples"]
    assert NoiseShares(case["sigma_sq"])(key, chunk, 65_536)[:16].tolist() == wanted
    assert NoiseShares(case["sigma_sq"], Bands(logarithm=1e40))(key, chunk, 16).tolist() == wanted


def test_a_keystream_starts_at_any_block() -> None:
    key = Secret(raw(KAT["mask_words"]["key"]))
    whole, tail = bytearray(160), bytearray(112)
    Keystream(key).write(memoryview(whole))
    Keystream(key, 48).write(memoryview(tail))
    assert whole[48:] == tail
