"""What is said in a sum: one frozen model for each kind of message, and the plan that opens it.

Fields are those of the format (README.md), no more and no fewer; bytes are lower-case hex, an absent value is null,
integers lie within ±(2^53 − 1). Whether values make sense together is checked elsewhere (`plan_checks`, `site_checks`).
"""

import re
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from privacy.secagg.derivation import SUITE
from privacy.secagg.quantize import Rounding

COORDINATOR: Final = "coordinator"
_HEX_FLOAT: Final = re.compile(r"-?0x[01]\.[0-9a-f]{1,13}p[+-][0-9]{1,4}\Z")


def _site_id(text: str) -> str:
    if text == COORDINATOR:
        raise ValueError("this id is reserved")
    return text


def _hex_float(text: str) -> str:
    if not _HEX_FLOAT.match(text):
        raise ValueError("not a hexadecimal number")
    try:
        value = float.fromhex(text)
    except OverflowError:
        raise ValueError("beyond binary64") from None
    if value.hex() != text:
        raise ValueError("not the one spelling of this number")
    return text


Count = Annotated[int, Field(ge=0, le=2**53 - 1)]
Hex32 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Hex33 = Annotated[str, Field(pattern=r"^[0-9a-f]{66}$")]
Hex16 = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
BoxHex = Annotated[str, Field(pattern=r"^[0-9a-f]{292}$")]
SiteId = Annotated[str, Field(pattern=r"^[a-z0-9-]{1,64}$"), AfterValidator(_site_id)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9._-]{1,64}$")]
HexFloat = Annotated[str, AfterValidator(_hex_float)]
Decimal = Annotated[str, Field(pattern=r"^[0-9]{1,4}(\.[0-9]{1,6})?$")]
ErrorCode = Annotated[str, Field(pattern=r"^E_[A-Z0-9_]{1,30}$")]
SiteIds = tuple[SiteId, ...]


class Message(BaseModel):
    """A body that has one canonical spelling."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)


class Noise(Message):
    """How the sum is made private, as far as the sum itself has to know.

    Attributes:
        mechanism: Who adds noise: nobody, every site in full, or all sites together.
        unit: What is protected.
        z: The noise multiplier as a decimal string.
        sigma_sq: The variance of one site's share, in squared steps of the grid.
        norm_sq_max: The largest squared norm of a site's points; 0: not checked.
        honest_min: Fewest honest survivors that the variance was made for.
    """

    mechanism: Literal["none", "local-dp-sgd", "distributed"]
    unit: Literal["none", "record", "entity", "site"]
    z: Decimal
    sigma_sq: Count
    norm_sq_max: Count
    honest_min: Count


class SumPlan(Message):
    """The message that opens a sum. `Parameters` and `Grid` are its parts that decide."""

    suite: Literal["FSA-1"] = SUITE
    federation: Name
    job_digest: Hex32
    purpose: Literal["train", "evaluate"]
    sum_id: Hex32
    prev_sum: Hex32 | None
    round: Count
    attempt: Count
    registry_epoch: Count
    invited: SiteIds
    weights: tuple[Count, ...] | None
    model_digest: Hex32
    dim: Count
    word_bits: Literal[16, 32, 64]
    chunk_words: Count
    clip: HexFloat
    scale_log2: Count
    q_max: Count
    clamp_ppm_max: Count
    rounding: Literal["stochastic", "nearest", "integer"]
    dp: Noise
    colluding: Count
    dropouts: Count
    degree: Count
    share_threshold: Count
    quorum: Count
    deadlines_s: tuple[Count, Count, Count, Count, Count]

    @property
    def rounding_rule(self) -> Rounding:
        """Return how values become points of the grid."""
        return Rounding(self.rounding)

    @property
    def clip_value(self) -> float:
        """Return the clip as a number."""
        return float.fromhex(self.clip)

    def weight_of(self, site: str) -> float:
        """Return what the update of `site` is multiplied with: its weight over the largest."""
        if self.weights is None:
            return 1.0
        return self.weights[self.invited.index(site)] / max(self.weights)

    def consent_threshold(self, shared: int) -> int:
        """Return q, how many of `shared` sites must sign the same survivors."""
        return (shared + self.colluding) // 2 + 1


class Advert(Message):
    """A site's public keys for this sum."""

    sender: SiteId
    plan: Hex32
    enc_pk: Hex32
    mask_pk: Hex32
    nonce: Hex32


class Shares(Message):
    """A site's commitment to all that it deals out."""

    sender: SiteId
    roster: Hex32
    commit_b: Hex32
    deal_root: Hex32


class Box(Message):
    """Shares for one neighbour, sealed; not signed itself, but a leaf of the tree that its sender signed."""

    sender: SiteId
    to: SiteId
    box: BoxHex
    c_b: Hex32
    c_m: Hex32
    path: Annotated[tuple[Hex32, ...], Field(max_length=13)]


class Masked(Message):
    """A site's word that it uploaded these bytes under this view."""

    sender: SiteId
    view: Hex32
    payload: Hex32
    words: Count


class Survivors(Message):
    """A site's consent to one set of summed sites; given once in a sum."""

    sender: SiteId
    view: Hex32
    survivors: SiteIds
    inputs: Hex32


class Reveal(Message):
    """One share of each neighbour: of the self mask of those in the sum, of the mask key of those lost."""

    sender: SiteId
    consensus: Hex32
    b: dict[SiteId, tuple[Hex33, Hex16]] = Field(repr=False)
    m: dict[SiteId, tuple[Hex33, Hex16]] = Field(repr=False)


class Result(Message):
    """The coordinator's word on the sum and on the model made of it."""

    plan: Hex32
    view: Hex32
    consensus: Hex32
    survivors: SiteIds
    sum_digest: Hex32
    new_model_digest: Hex32 | None


class Abort(Message):
    """A site's word that it takes no further part, and whether it had consented before."""

    sender: SiteId
    plan: Hex32
    view: Hex32 | None
    phase: Literal["idle", "advertised", "shared", "masked", "consented", "revealed"]
    consented: bool
    code: ErrorCode
    blame: SiteIds
    evidence: Hex32 | None
