"""The Merkle tree by the recursions of RFC 6962 §2.1, as they stand there: the oracle of the audit log's tree.

Nothing here is shared with `audit`, and nothing is iterative, so that both are wrong in the same way only by chance.
"""

import hashlib


class Book:
    """The tree over a list of leaf hashes, for any range of them; subtrees are remembered."""

    def __init__(self, leaf_hashes: list[bytes]) -> None:
        self.leaf_hashes = leaf_hashes
        self._known: dict[tuple[int, int], bytes] = {}

    @classmethod
    def counted(cls, size: int) -> "Book":
        """The tree whose leaf i is the decimal of i."""
        return cls([hashlib.sha256(b"\x00%d" % number).digest() for number in range(size)])

    @staticmethod
    def split(count: int) -> int:
        """The largest power of two smaller than `count`."""
        return 1 << ((count - 1).bit_length() - 1)

    def mth(self, start: int, end: int) -> bytes:
        """MTH(D[start:end])."""
        if start == end:
            return hashlib.sha256(b"").digest()
        if end - start == 1:
            return self.leaf_hashes[start]
        if (start, end) not in self._known:
            k = start + self.split(end - start)
            both = self.mth(start, k) + self.mth(k, end)
            self._known[start, end] = hashlib.sha256(b"\x01" + both).digest()
        return self._known[start, end]

    def root(self, size: int) -> bytes:
        """MTH(D[size])."""
        return self.mth(0, size)

    def path(self, m: int, start: int, end: int) -> list[bytes]:
        """PATH(m, D[start:end])."""
        n = end - start
        if n == 1:
            return []
        k = self.split(n)
        if m < k:
            return [*self.path(m, start, start + k), self.mth(start + k, end)]
        return [*self.path(m - k, start + k, end), self.mth(start, start + k)]

    def proof(self, m: int, n: int) -> list[bytes]:
        """PROOF(m, D[n])."""
        return self.subproof(m, 0, n, whole=True)

    def subproof(self, m: int, start: int, end: int, *, whole: bool) -> list[bytes]:
        """SUBPROOF(m, D[start:end], whole)."""
        n = end - start
        if m == n:
            return [] if whole else [self.mth(start, end)]
        k = self.split(n)
        if m <= k:
            return [*self.subproof(m, start, start + k, whole=whole), self.mth(start + k, end)]
        return [*self.subproof(m - k, start + k, end, whole=False), self.mth(start, start + k)]

    def tile(self, level: int, n: int, width: int) -> bytes:
        """The hashes of a tile by their definition: each the MTH of a run of 256^level leaves."""
        run = 256**level
        return b"".join(self.mth((256 * n + i) * run, (256 * n + i + 1) * run) for i in range(width))
