"""What a data set is, beside its rows. Pure.

The same rows under the same definition are the same version: the contract, what the map means, whose rows belong
together and the split enter its hash. How the files are read is `intake`'s.
"""

from dataclasses import dataclass

from federation.contract import DataContract
from site_client.data.data_map import DataMap
from site_client.data.opt_out import OptOuts
from site_client.data.version import key_name


@dataclass(frozen=True, slots=True)
class SplitByColumn:
    """The file says which rows are held out, in its column `column`."""

    column: str


@dataclass(frozen=True, slots=True)
class SplitByHash:
    """A keyed hash of the unit's id says it: `share` of the units, chosen by the site's own `key`."""

    share: float
    key: bytes


Split = SplitByColumn | SplitByHash


@dataclass(frozen=True, slots=True)
class Definition:
    """What a data set is, beside its rows: the contract, the site's map, whose rows belong together, and the split.

    `entity` is a column of the contract or of the files; None makes each row its own unit. `order_key` is the site's
    secret of the order in which an entity's rows are kept: a plan that caps the rows of one entity takes the first of
    them, and nobody who can add rows or sort them should choose which. None keeps the files' order. The rows of people
    in `opt_outs` are left out.
    """

    contract: DataContract
    data_map: DataMap
    entity: str | None
    split: Split
    order_key: bytes | None = None
    opt_outs: OptOuts | None = None

    def split_name(self) -> dict[str, str]:
        """Return the split as it enters the version; the key only by its name."""
        if isinstance(self.split, SplitByColumn):
            codes = self.data_map.split
            return {"by": "column", "train": "\x1f".join(codes.train), "held_out": "\x1f".join(codes.held_out)}
        return {"by": "hash", "share": self.split.share.hex(), "key": key_name(self.split.key)}
