"""Other checkpoints of a bundle's log, its own and a reader's, held against the one that everything leads to; pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from audit import checkpoint as checkpoints
from audit import proofs
from audit.errors import AuditError, NoteRefused, ProofRefused
from audit.export import bundle, container
from audit.export.container import BundleFiles
from audit.export.tile_files import TileFiles
from audit.findings import Flaw, Verification
from audit.note import VerifierKey
from audit.quorum import Quorum
from audit.tiles import TrustedTiles

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class OtherCheckpoints:
    """What they are checked with.

    Attributes:
        files: The container.
        prefix: Where its tiles are.
        signed: The checkpoint that everything leads to.
        keys: The log's.
        judge: What cosignatures amount to, None where no policy is known.
        flaw: Takes code, place and sentence of what is wrong.
        result: Takes notes, and what is proved and not.
        times: Takes size and time in seconds of each checkpoint with a quorum.
    """

    files: BundleFiles
    prefix: str
    signed: checkpoints.OpenedCheckpoint
    keys: tuple[VerifierKey, ...]
    judge: Callable[[checkpoints.OpenedCheckpoint], Quorum | None]
    flaw: Callable[[str, str, str], None]
    result: Verification
    times: list[tuple[int, int]]

    def check_own(self) -> None:
        """Check the checkpoints that the bundle has beside the one that everything leads to."""
        signed = self.signed
        for size in bundle.numbered(self.files.sizes, "checkpoints", "checkpoint"):
            where = bundle.checkpoint_path(size)
            try:
                data = container.read(self.files, where, limit_bytes=_CHUNK_BYTES)
                other = checkpoints.open_checkpoint(data, origin=signed.origin, log_keys=self.keys)
                if other.size != size:
                    raise NoteRefused(f"is one of {other.size} entries")
                found = self.judge(other)
            except NoteRefused as refused:
                self.flaw("CFD-A05", where, refused.message)
                continue
            try:
                lines = container.read(self.files, bundle.consistency_path(size), limit_bytes=_CHUNK_BYTES)
                proof = proofs.parse_hashes(lines.decode("ascii", "replace").split("\n")[:-1])
                smaller, larger = (other, signed) if size < signed.size else (signed, other)
                proofs.check_consistency(smaller, larger, proof)
            except (NoteRefused, ProofRefused) as refused:
                self.flaw("CFD-A08", bundle.consistency_path(size), refused.message)
                continue
            if found is not None and found.witnessed and found.time_s is not None:
                self.times.append((size, found.time_s))

    def check_readers(self, against: Mapping[str, bytes]) -> None:
        """Check the checkpoints that the reader brings, by the name to show."""
        signed = self.signed
        for name, data in against.items():
            try:
                other = checkpoints.open_checkpoint(data, origin=signed.origin, log_keys=self.keys)
            except NoteRefused as refused:
                self.flaw("CFD-A05", name, refused.message)
                continue
            if other.size == signed.size:
                if other.root != signed.root:
                    self.flaw("CFD-A08", name, f"forked: another history of the first {other.size} entries was signed")
                else:
                    self.result.proved.append(f"the checkpoint of {other.size} entries in {name} is the bundle's own")
            else:
                self._extend(name, other)

    def _extend(self, name: str, other: checkpoints.OpenedCheckpoint) -> None:
        signed = self.signed
        if other.size > signed.size:
            self.result.notes.append(
                Flaw("CFD-A45", name, f"newer than the bundle: {other.size} entries, the bundle shows {signed.size}")
            )
            return
        files = TileFiles(self.files, self.prefix, signed.size)
        try:
            root = proofs.root_at(TrustedTiles(files, signed.size, signed.root), other.size)
        except AuditError:
            self.result.not_proved.append(f"that the log extends {name}: the bundle has not the tiles for it")
            return
        if root != other.root:
            self.flaw("CFD-A08", name, f"forked: another history of the first {other.size} entries was signed")
        else:
            self.result.proved.append(f"extends the checkpoint of {other.size} entries in {name}")
