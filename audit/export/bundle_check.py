"""What a bundle proves, from nothing but its bytes and the reader's keys; the core of `verify.py`; pure.

It reads through the container that it is handed, in memory independent of the number of entries but for the ids of a
complete range. Every file is held against the manifest, and, beyond that, everything that can be proved is: the
checkpoint by the log's key and its witnesses, each entry by its path or its tile and by its writer's signature, the
rows against the entries, what is complete by replaying the filter. What nothing covers, such as a rendering, is named.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from audit import checkpoint as checkpoints
from audit import proofs, tiles
from audit.canonical import Event
from audit.columns import Selection
from audit.errors import AuditError, EntryRefused, LogUnreadable, NoteRefused, ProofRefused
from audit.export import bundle, container
from audit.export.bundle import Manifest
from audit.export.bundle_brackets import bracket_text
from audit.export.bundle_checkpoints import OtherCheckpoints
from audit.export.bundle_order import EntryOrder
from audit.export.bundle_private import PrivateValues
from audit.export.container import BundleFiles
from audit.export.tile_files import TileFiles
from audit.findings import Flaw, Verification
from audit.frame import TRAIL_ACTIONS, hash_text, keyring_of, newest_origin, open_frame
from audit.keyring import Keyring
from audit.merkle import leaf_hash
from audit.note import VerifierKey
from audit.proof_file import MAX_BYTES as MAX_PROOF_BYTES
from audit.proof_file import ProofFile
from audit.pruning import pruning_of
from audit.quorum import Quorum, judge
from audit.redactions import Redaction, is_redacted, redaction_of
from audit.tiles import HASHES_PER_TILE, TrustedTiles
from audit.trust import TrustPolicy, parse_policy

MAX_FLAWS: Final = 1000
_CHUNK_BYTES: Final = 1 << 20
SELECTED: Final = "that no entry is missing from this selection: only a complete bundle shows that"
RENDERED: Final = "that {} say what the entries say: make them anew from the bundle"


@dataclass(frozen=True, slots=True)
class BundleReader:
    """What a reader brings along.

    Attributes:
        policy: The keys that the reader trusts, if any were found.
        pinned_by: Where they came from; empty for none.
        complete: The reader asks for all entries that match, not for some.
        against: Checkpoints of this log from elsewhere, by the name to show.
    """

    policy: TrustPolicy | None = None
    pinned_by: str = ""
    complete: bool = False
    against: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(slots=True)
class BundleCheck:
    """The check of one container; `run` it once.

    Attributes:
        files: The container.
        reader: What the reader brings.
        result: What was found.
    """

    files: BundleFiles
    reader: BundleReader
    result: Verification = field(default_factory=Verification)
    _redacted: dict[int, Redaction] = field(default_factory=dict)
    _manifest: Manifest | None = None
    _checkpoint: checkpoints.OpenedCheckpoint | None = None
    _keyring: Keyring = field(default_factory=Keyring)
    _trail: dict[int, bytes] = field(default_factory=dict)
    _named: set[tuple[str, str]] = field(default_factory=set)
    _times: list[tuple[int, int]] = field(default_factory=list)
    _matched: int = 0
    _begin: int = 0
    _private: PrivateValues = field(default_factory=PrivateValues)

    def run(self) -> Verification:
        """Return what the container proves.

        Raises:
            LogUnreadable: It has no manifest and no checkpoint, or its form is another.
        """
        names = self.files.sizes
        if bundle.MANIFEST in names:
            data = container.read(self.files, bundle.MANIFEST, limit_bytes=bundle.MAX_MANIFEST_BYTES)
            self._manifest = Manifest.parse(data)
            self._check_sums(self._manifest)
        elif "checkpoint" not in names:
            raise LogUnreadable("neither a bundle nor a directory of tiles", hint="name a zip, or its folder")
        try:
            self._check_checkpoint()
            self._check_trail()
            self._check_entries()
            self._add(self._private.left())
            signed = self._signed()
            others = OtherCheckpoints(
                self.files, self._prefix(), signed, self._keys(signed.origin), self._judge, self._flaw, self.result,
                self._times,
            )  # fmt: skip
            others.check_own()
            others.check_readers(self.reader.against)
        except _Stop:
            pass
        self._conclude()
        return self.result

    def _flaw(self, code: str, where: str, what: str) -> None:
        if (code, where) not in self._named and len(self.result.flaws) < MAX_FLAWS:
            self._named.add((code, where))
            self.result.flaws.append(Flaw(code, where, what))

    def _add(self, flaws: Iterable[Flaw]) -> None:
        for flaw in flaws:
            self._flaw(flaw.code, flaw.where, flaw.what)

    def _note(self, code: str, where: str, what: str) -> None:
        self.result.notes.append(Flaw(code, where, what))

    # --- files ------------------------------------------------------------------------------------------------

    def _check_sums(self, manifest: Manifest) -> None:
        """Name every file that isn't the one that the manifest lists."""
        listed = manifest.files
        for name in sorted(self.files.sizes.keys() - listed.keys() - {bundle.MANIFEST}):
            self._flaw("CFD-A14", name, "isn't one of the bundle's files")
        for name, wanted in listed.items():
            size = self.files.sizes.get(name)
            if size is None:
                self._flaw("CFD-A02", name, "missing: the manifest lists it")
            elif size != wanted.size_bytes or self._sum(name) != wanted.sha256:
                self._flaw("CFD-A14", name, "isn't the file that the manifest lists")

    def _sum(self, name: str) -> str:
        hashed = hashlib.sha256()
        with self.files.open(name) as stream:
            while piece := stream.read(_CHUNK_BYTES):
                hashed.update(piece)
        return "sha256:" + hashed.hexdigest()

    # --- whose, and how long ----------------------------------------------------------------------------------

    def _check_checkpoint(self) -> None:
        where = bundle.CHECKPOINT if self._manifest is not None else "checkpoint"
        data = container.read(self.files, where, limit_bytes=_CHUNK_BYTES)
        try:
            origin = checkpoints.parse(data).origin
            keys = self._keys(origin)
            signed = checkpoints.open_checkpoint(data, origin=origin, log_keys=keys)
        except (NoteRefused, EntryRefused) as refused:
            self._flaw("CFD-A05", where, refused.message)
            raise _Stop from None
        result, manifest = self.result, self._manifest
        result.origin, result.size, result.root = signed.origin, signed.size, hash_text(signed.root)
        if manifest is not None and (manifest.origin, manifest.size, manifest.root) != (
            signed.origin,
            signed.size,
            signed.root,
        ):
            self._flaw("CFD-A14", bundle.MANIFEST, "names another log, size or root than the checkpoint")
        self._checkpoint = signed
        self._check_quorum(signed, where)

    def _keys(self, origin: str) -> tuple[VerifierKey, ...]:
        pinned = self.reader.policy.for_origin(origin) if self.reader.policy is not None else ()
        if pinned:
            self.result.pinned_by = self.reader.pinned_by
            return pinned
        own = self._own_policy()
        if own is not None and own.for_origin(origin):
            return own.for_origin(origin)
        first = container.read(self.files, bundle.trail_path(0), limit_bytes=MAX_PROOF_BYTES)
        return keyring_of([(0, first)], newest_origin(first)).log_keys()

    def _own_policy(self) -> TrustPolicy | None:
        try:
            return parse_policy(container.read(self.files, bundle.POLICY, limit_bytes=_CHUNK_BYTES).decode())
        except (NoteRefused, UnicodeDecodeError, LogUnreadable):
            return None

    def _judge(self, signed: checkpoints.OpenedCheckpoint) -> Quorum | None:
        policy = self.reader.policy if self.result.pinned_by else self._own_policy()
        return None if policy is None or not policy.for_origin(signed.origin) else judge(signed, policy)

    def _check_quorum(self, signed: checkpoints.OpenedCheckpoint, where: str) -> None:
        try:
            found = self._judge(signed)
        except NoteRefused as refused:
            self._flaw("CFD-A05", where, refused.message)
            return
        needed = 0 if found is None else found.needed
        self.result.quorum = needed
        if found is None or not needed:
            self._note("CFD-A45", where, "not yet witnessed: the policy asks for no other party's word")
            return
        if found.met:
            self.result.cosigned = signed.size
            if found.time_s is not None:
                self._times.append((signed.size, found.time_s))
            return
        said = f"not yet witnessed: {len(found.heard)} of {needed} cosignatures, missing {', '.join(found.missing)}"
        if self.result.pinned_by:
            self._flaw("CFD-A06", where, said)
        else:
            self._note("CFD-A45", where, said)

    # --- what judges the entries ------------------------------------------------------------------------------

    def _check_trail(self) -> None:
        if self._manifest is None and not any(name.startswith("trail/") for name in self.files.sizes):
            self._gather_trail()  # another project's directory of tiles has none beside its entries
        else:
            for index in bundle.numbered(self.files.sizes, "trail", "entry"):
                leaf = self._proved(index, bundle.trail_path(index), bundle.trail_proof_path(index))
                if leaf is not None:
                    self._trail[index] = leaf
        try:
            self._keyring = keyring_of(sorted(self._trail.items()), self.result.origin)
        except EntryRefused as refused:
            self._flaw(refused.code, "trail", refused.message)
            raise _Stop from None
        signed = self._signed()
        if set(signed.signers).isdisjoint(self._keyring.log_keys_at(signed.size)):
            what = f"no log key that signed it was in force at {signed.size} entries"
            self._flaw("CFD-A10", bundle.CHECKPOINT if self._manifest is not None else "checkpoint", what)
        for index, leaf in sorted(self._trail.items()):
            event = self._opened(index, leaf)
            if event is not None:
                self._take_redaction(index, event)
                self._take_pruning(index, event)

    def _gather_trail(self) -> None:
        tree = TileFiles(self.files, self._prefix(), self._signed().size)
        for n in range(-(-tree.size // HASHES_PER_TILE)):
            for index, leaf in enumerate(tree.leaves(n), n * HASHES_PER_TILE):
                if any(b'"action":"%b"' % action.encode() in leaf for action in TRAIL_ACTIONS):
                    self._trail[index] = leaf

    def _take_redaction(self, index: int, event: Event) -> None:
        found = redaction_of(index, event)
        if found is not None:
            self._redacted.setdefault(found.index, found)
            alone = "" if found.approvers > 1 else ", approved by one person alone"
            self._note("CFD-A41", f"entry {found.index}", f"redacted, record {index}{alone}")

    def _take_pruning(self, index: int, event: Event) -> None:
        found = pruning_of(index, event)
        if found is not None:
            self._begin = max(self._begin, found.below)
            alone = "" if found.approvers > 1 else ", approved by one person alone"
            what = f"pruned, record {index}, archive {found.archive}{alone}"
            self._note("CFD-A42", f"entries 0 to {found.below - 1}", what)

    def _signed(self) -> checkpoints.OpenedCheckpoint:
        if self._checkpoint is None:
            raise _Stop
        return self._checkpoint

    def _proved(self, index: int, leaf_path: str, proof_path: str) -> bytes | None:
        """Return the leaf in a file whose proof leads to the bundle's checkpoint."""
        signed = self._signed()
        leaf = container.read(self.files, leaf_path, limit_bytes=MAX_PROOF_BYTES)
        try:
            proof = ProofFile.parse(container.read(self.files, proof_path, limit_bytes=MAX_PROOF_BYTES))
            if bytes(proof.checkpoint.signed) != bytes(signed.signed):
                raise NoteRefused("leads to another checkpoint than the bundle's")
            if proof.index != index:
                raise NoteRefused(f"is about entry {proof.index}")
        except NoteRefused as refused:
            self._flaw("CFD-A02" if proof_path not in self.files.sizes else "CFD-A14", proof_path, refused.message)
            return None
        try:
            proofs.check_inclusion(leaf_hash(leaf), index, proof.path, signed)
        except ProofRefused:
            self._flaw("CFD-A01", f"entry {index}", f"{leaf_path} and its proof don't lead to the checkpoint")
            return None
        return leaf

    def _opened(self, index: int, leaf: bytes) -> Event | None:
        try:
            return open_frame(leaf, origin=self.result.origin, index=index, keyring=self._keyring)
        except EntryRefused as refused:
            self._flaw(refused.code, f"entry {index}", refused.message)
            return None

    # --- entries ----------------------------------------------------------------------------------------------

    def _check_entries(self) -> None:
        manifest = self._manifest
        self._add(self._private.read(self.files))
        if manifest is None:
            signed = self._signed()
            whole = Manifest(signed.origin, signed.size, signed.root, True, self._begin, signed.size, {})
            for _ in self._range(whole):
                pass
        elif manifest.complete:
            self._check_fences(manifest)
        else:
            if self.reader.complete:
                self._flaw("CFD-A18", bundle.MANIFEST, "a selection: it can't show that nothing is missing")
            self._check_rows(self._selected(manifest))

    def _selected(self, manifest: Manifest) -> Iterator[tuple[int, str, Event]]:
        selection = Selection(manifest.filters)
        indices = bundle.numbered(self.files.sizes, "entries", "entry")
        for index in indices:
            leaf = self._proved(index, bundle.entry_path(index), bundle.proof_path(index))
            event = None if leaf is None else self._opened(index, leaf)
            if leaf is None or event is None:
                continue
            if not selection.may(event) or not manifest.first <= index < manifest.end:
                self._flaw("CFD-A14", f"entry {index}", "isn't one that was asked for")
            yield index, hash_text(leaf_hash(leaf)), event
        if not indices and manifest.files.get(bundle.ROWS, None) is None:
            self._flaw("CFD-A02", bundle.ROWS, "missing")

    def _check_rows(self, wanted: Iterator[tuple[int, str, Event]]) -> None:
        """Compare `rows.jsonl`, line by line, with the entries that were proved."""
        if bundle.ROWS not in self.files.sizes:
            self._flaw("CFD-A02", bundle.ROWS, "missing")
            for _ in wanted:
                self._matched += 1
            return
        with self.files.open(bundle.ROWS) as stream:
            for index, hashed, event in wanted:
                self._matched += 1
                self._add(self._private.check(index, event))
                line = stream.readline(MAX_PROOF_BYTES)
                if line != bundle.row_line(index, hashed, event):
                    self._flaw("CFD-A14", bundle.ROWS, f"line {self._matched} isn't the row of entry {index}")
            if stream.read(1):
                self._flaw("CFD-A14", bundle.ROWS, "goes on behind the rows of the entries")

    def _check_fences(self, manifest: Manifest) -> None:
        times: dict[int, int] = {}
        selection = Selection(manifest.filters)

        def matching() -> Iterator[tuple[int, str, Event]]:
            for index, hashed, event in self._range(manifest):
                if index in (manifest.first, manifest.end - 1):
                    times[index] = event["t_us"]
                if selection.take(event):
                    yield index, hashed, event

        self._check_rows(matching())
        since, until = int(manifest.filters.get("since_us", -1)), int(manifest.filters.get("until_us", 1 << 63))
        if manifest.first not in (0, self._begin) and times.get(manifest.first, since) >= since:
            what = "the range begins behind the log's first entry, and with none from before the time asked"
            self._flaw("CFD-A18", f"entry {manifest.first}", what)
        if manifest.end < manifest.size and times.get(manifest.end - 1, -1) < until:
            what = "the range ends before the log does, and with no entry from behind the time asked"
            self._flaw("CFD-A18", f"entry {manifest.end - 1}", what)

    def _range(self, manifest: Manifest) -> Iterator[tuple[int, str, Event]]:
        """Yield every entry of the range with everything checked; what is redacted is passed over."""
        signed = self._signed()
        files = TileFiles(self.files, self._prefix(), signed.size)
        try:
            tree = TrustedTiles(files, signed.size, signed.root)
        except AuditError as refused:
            self._flaw("CFD-A03", "tile", refused.message)
            return
        files.check_upper(tree, lambda where, what: self._flaw("CFD-A03", where, what))
        order = EntryOrder(from_start=manifest.first == 0)
        for n in range(manifest.first // HASHES_PER_TILE, -(-manifest.end // HASHES_PER_TILE)):
            hashes, leaves = self._tile(files, tree, n)
            for index, (hashed, leaf) in enumerate(zip(hashes, leaves, strict=False), n * HASHES_PER_TILE):
                if not manifest.first <= index < manifest.end:
                    if leaf:
                        self._flaw("CFD-A14", f"entry {index}", "lies outside of the range and isn't blank")
                    continue
                event = self._in_tree(index, hashed, leaf, order)
                if event is None:
                    continue
                self._add(order.take(index, event, hashed))
                if event["action"] in TRAIL_ACTIONS and self._trail.get(index) != leaf:
                    self._flaw("CFD-A14", f"entry {index}", "the trail has another copy of it, or none")
                yield index, hash_text(hashed), event

    def _tile(self, files: TileFiles, tree: TrustedTiles, n: int) -> tuple[list[bytes], list[bytes]]:
        width = tiles.tile_width(0, n, self._signed().size)
        try:
            hashes = tiles.split_hashes(tree.tile(0, n, width))
        except AuditError as refused:
            self._flaw("CFD-A03", tiles.tile_path(0, n, width), refused.message)
            return [], []
        try:
            return hashes, list(files.leaves(n))
        except AuditError as refused:
            self._flaw("CFD-A02", tiles.entries_path(n, width), refused.message)
            return [], []

    def _in_tree(self, index: int, hashed: bytes, leaf: bytes, order: EntryOrder) -> Event | None:
        if not leaf:
            known = self._redacted.get(index)
            if known is None or not is_redacted(leaf, hashed, known):
                self._flaw("CFD-A02", f"entry {index}", "blank, and no later entry records why")
            else:
                order.pass_over(known)
            return None
        if leaf_hash(leaf) != hashed:
            self._flaw("CFD-A01", f"entry {index}", "was altered")
            order.forget()
            return None
        event = self._opened(index, leaf)
        if event is None:
            order.forget()
        return event

    def _prefix(self) -> str:
        return bundle.TILES if self._manifest is not None else ""

    # --- end --------------------------------------------------------------------------------------------------

    def _conclude(self) -> None:
        result, manifest = self.result, self._manifest
        rendered = [name for name in bundle.RENDERINGS if name in self.files.sizes]
        if manifest is not None and not manifest.complete:
            result.not_proved.insert(0, SELECTED)
        if rendered:
            result.not_proved.append(RENDERED.format(", ".join(rendered)))
        if result.flaws or self._checkpoint is None:
            result.proved.clear()
            return
        signed = self._checkpoint
        witnessed = f", cosigned up to {result.cosigned} (quorum {result.quorum})" if result.cosigned else ""
        if manifest is None:
            result.proved.insert(0, f"{signed.size} entries{witnessed}; all bytes, signatures, chains and times agree")
            return
        span = f"a log of {signed.size} entries{witnessed}"
        if manifest.complete:
            what = f"entries {manifest.first} to {manifest.end - 1} of {span}, and that these {self._matched} are all"
            what += " that match the filter"
        else:
            what = f"{self._matched} entries of {span}, unchanged and signed by their writers"
        result.proved.insert(0, what)
        result.proved.append(bracket_text(self._times, manifest.first, manifest.end))


class _Stop(Exception):
    """Nothing further can be judged."""


def check_files(files: BundleFiles, reader: BundleReader) -> Verification:
    """Return what a bundle, or a directory of tiles, proves to `reader`.

    Raises:
        LogUnreadable: It is neither.
    """
    return BundleCheck(files, reader).run()
