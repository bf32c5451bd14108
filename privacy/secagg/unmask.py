"""Taking the masks off a sum: secrets joined from revealed shares, checked against what their owners committed to.

Of a site in the sum only the self seed is joined, of a lost one only the mask seed. What was joined lives until its
masks are off.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from privacy.secagg import digests
from privacy.secagg.envelope import Opened
from privacy.secagg.errors import SumRefused, proved
from privacy.secagg.graph import Ring
from privacy.secagg.keys import MaskSeed, public_key, self_key
from privacy.secagg.masking import Mask, pair_mask
from privacy.secagg.messages import Advert, Shares
from privacy.secagg.secret import Secret, same
from privacy.secagg.shamir import join
from privacy.secagg.sums import Accumulator


@dataclass(frozen=True, slots=True)
class View:
    """Who is in a sum, with what: fixed before any vector is sent.

    Attributes:
        roster: R.
        digest: V.
        ring: The neighbourhoods over U1.
        adverts: U1's messages.
        shares: U2's messages.
        threshold: t.
    """

    roster: bytes
    digest: bytes
    ring: Ring
    adverts: Mapping[str, Opened[Advert]]
    shares: Mapping[str, Opened[Shares]]
    threshold: int

    @property
    def places(self) -> dict[str, int]:
        """Return the x-coordinate of each site: 1 + its rank among U1."""
        return {site: rank for rank, site in enumerate(sorted(self.adverts), 1)}

    def near(self, site: str, among: Collection[str]) -> list[str]:
        """Return the neighbours of `site` in `among`, by id."""
        return sorted(set(self.ring.neighbours(site)).intersection(among))


class UnmaskJob:
    """The masks that are still on a sum."""

    def __init__(self, masks: tuple[Mask, ...]) -> None:
        self._masks = masks
        self.passes_count: Final = len(masks)

    def __repr__(self) -> str:
        return f"UnmaskJob({self.passes_count} passes, <hidden>)"

    def run(self, accumulator: Accumulator, start: int = 0, stop: int | None = None) -> None:
        """Take the masks off the chunks from `start` to `stop`; every chunk exactly once."""
        accumulator.unmask(self._masks, start, stop)

    def wipe(self) -> None:
        """Forget the rebuilt keys."""
        for mask in self._masks:
            mask.key.wipe()


def check_recoverable(view: View, survivors: Collection[str]) -> None:
    """Refuse survivors of whose shares too few can come back, before any site consents to them.

    Raises:
        SumRefused: E_TOO_FEW_SHARES.
    """
    for site in view.shares:
        holders = len(view.near(site, survivors))
        if holders < view.threshold:
            text = f"{holders} sites hold shares of {site}, needed are {view.threshold}"
            raise SumRefused("E_TOO_FEW_SHARES", text)


def recover(view: View, survivors: Collection[str], revealed: Mapping[str, Mapping[str, bytes]]) -> UnmaskJob:
    """Return the masks to take off.

    Args:
        view: Who is in it.
        survivors: U3.
        revealed: By owner: the checked shares, by holder; of the self seed for survivors, else of the mask seed.

    Raises:
        SumRefused: E_TOO_FEW_SHARES; E_SHARE_RANGE or E_BAD_DEALER, proved against the owner.
    """
    masks: list[Mask] = []
    try:
        for site in sorted(view.shares):
            peers = view.near(site, survivors)
            if site in survivors:
                masks.append(Mask(_joined_self_key(view, site, revealed.get(site, {})), added=False))
            else:
                masks += _joined_pair_masks(view, site, peers, revealed.get(site, {}))
    except SumRefused:
        UnmaskJob(tuple(masks)).wipe()
        raise
    return UnmaskJob(tuple(masks))


def _join(view: View, site: str, shares: Mapping[str, bytes]) -> Secret:
    places = view.places
    try:
        return Secret(join({places[holder]: share for holder, share in shares.items()}, view.threshold))
    except SumRefused as refusal:
        if refusal.code == "E_TOO_FEW_SHARES":
            raise SumRefused(refusal.code, f"{site}: {refusal.message}") from None
        raise proved(refusal.code, f"{site}: {refusal.message}", site) from None


def _joined_self_key(view: View, site: str, shares: Mapping[str, bytes]) -> Secret:
    seed = _join(view, site, shares)
    committed = bytes.fromhex(view.shares[site].body.commit_b)
    fits = same(digests.self_seed_commitment(view.roster, site, seed.reveal()), committed)
    key = self_key(seed, view.digest, site)
    seed.wipe()
    if not fits:
        key.wipe()
        raise proved("E_BAD_DEALER", f"the self seed of {site} isn't the one committed to", site)
    return key


def _joined_pair_masks(view: View, site: str, peers: list[str], shares: Mapping[str, bytes]) -> list[Mask]:
    """Return what undoes the masks that the lost `site` shares with each of `peers`."""
    seed = _join(view, site, shares)
    if not same(public_key(seed), bytes.fromhex(view.adverts[site].body.mask_pk)):
        seed.wipe()
        raise proved("E_BAD_DEALER", f"the mask seed of {site} isn't that of its public key", site)
    masks, agreement = [], MaskSeed(seed)
    for peer in peers:
        key = agreement.pair_key(bytes.fromhex(view.adverts[peer].body.mask_pk), view.digest, site, peer)
        put_in = pair_mask(key, peer, site)
        masks.append(Mask(key, added=not put_in.added))
    seed.wipe()
    return masks
