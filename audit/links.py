"""Links between two parties' logs: what one says that the other's entry says, held against that entry; pure.

An entry with a `peer` names an entry of another log by its leaf hash, and, where it came with a proof, by its index and
the tree that it was in. So who deletes or rewrites an entry in one log contradicts the other log. Only what an entry
says was allowed is a link: what was refused says itself that something didn't agree.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from audit.canonical import Event
from audit.findings import Flaw

CODE: Final = "CFD-A16"
ANSWERS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "job.accepted": ("job.accepted", ("job", "plan")),
    "job.refused": ("job.refused", ("job", "plan")),
    "update.received": ("update.sent", ("job", "round", "egress.hash", "egress.bytes")),
    "model.accepted": ("model.released", ("job", "round", "model")),
    "sum.consented": ("round.roster", ("job", "round", "sum", "roster")),
}
"""By action of an entry with a peer: the action of that entry, and the fields in which both agree."""


@dataclass(frozen=True, slots=True)
class Link:
    """What one entry says of an entry of another log.

    Attributes:
        where: The entry that says it, as shown.
        action: Its action.
        said: Those of its fields that the other has, too.
        leaf_hash: Of the other entry, as an event writes it.
        index: Where that is, -1 where it isn't said.
        size: The tree that it was in, 0 where it isn't said.
        root: The root of that tree.
    """

    where: str
    action: str
    said: tuple[object, ...]
    leaf_hash: str
    index: int
    size: int
    root: str


@dataclass(slots=True)
class Links:
    """The links of one log into one other, and what comes of them.

    Attributes:
        into: The name of the other log.
        links: In the order of the entries that say them.
        flaws: What the other contradicts.
        beyond: Links behind the end of what there is of the other.
    """

    into: str
    links: list[Link] = field(default_factory=list)
    flaws: list[Flaw] = field(default_factory=list)
    beyond: int = 0
    _open: dict[str, list[Link]] = field(default_factory=dict)

    def gather(self, where: str, event: Event) -> None:
        """Take an entry of the log that links."""
        peer, rule = event.get("peer"), ANSWERS.get(event["action"])
        said_so = event["decision"] == ("refused" if event["action"] == "job.refused" else "allowed")
        if rule is None or not said_so or not isinstance(peer, dict) or peer.get("origin") != self.into:
            return
        said = tuple(_field(event, name) for name in rule[1])
        hashed, index = str(peer["leaf_hash"]), int(peer.get("index", -1))
        link = Link(where, event["action"], said, hashed, index, int(peer.get("size", 0)), str(peer.get("root", "")))
        self.links.append(link)
        self._open.setdefault(hashed, []).append(link)

    def sizes(self) -> set[int]:
        """Return the sizes at which the other log's root is said."""
        return {link.size for link in self.links if link.size}

    def match(self, index: int, leaf_hash: str, event: Event) -> None:
        """Take an entry of the log that is linked to."""
        for link in self._open.pop(leaf_hash, ()):
            wanted, names = ANSWERS[link.action]
            if link.index not in (-1, index):
                self._flaw(link, f"says that {self.into} has its entry at {link.index}; it is at {index}")
            elif event["action"] != wanted:
                self._flaw(link, f"answers entry {index} of {self.into}, which is no {wanted}")
            elif link.said != tuple(_field(event, name) for name in names):
                self._flaw(link, f"says otherwise than entry {index} of {self.into}: {', '.join(names)}")

    def finish(self, roots: Mapping[int, str], *, begin: int, size: int, blank: Collection[str] = ()) -> list[Flaw]:
        """Return all flaws, after the last entry of the other log.

        Args:
            roots: The other log's root at each of `sizes` that could be computed.
            begin: The index below which entries of the other log went to an archive.
            size: How many entries there are of it.
            blank: Leaf hashes of its entries that were redacted.
        """
        for link in self.links:
            if link.size in roots and roots[link.size] != link.root:
                what = f"was proved under another history of the first {link.size} entries of {self.into}"
                self.flaws.append(Flaw("CFD-A08", link.where, what))
        for link in (link for found in self._open.values() for link in found):
            if link.index >= size or link.size > size or 0 <= link.index < begin or begin == size:
                self.beyond += 1
            elif link.leaf_hash not in blank:
                place = f"entry {link.index} isn't it" if link.index >= 0 else "none of its entries is it"
                self._flaw(link, f"answers an entry that {self.into} doesn't have: {place}")
        return self.flaws

    def _flaw(self, link: Link, what: str) -> None:
        self.flaws.append(Flaw(CODE, link.where, what))


def _field(event: Event, name: str) -> object:
    value: object = event
    for step in name.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    return value
