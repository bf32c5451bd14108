"""Writes or extends a plain directory of tiles (C2SP tlog-tiles), with the trail beside it.

    checkpoint · tile/<level>/<n>[.p/<width>] · tile/entries/<n>[.p/<width>] · policy
    trail/<i>.entry, trail/<i>.tlog-proof

Full tiles never change, so an extension writes what is new and the checkpoint last. A directory of another log, or of a
history that this one doesn't extend, is left alone.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

from audit import checkpoint as checkpoints
from audit import durable, proofs
from audit.errors import AuditError, LogUnreadable, NoteRefused, ProofRefused
from audit.export import bundle
from audit.export.bundle_write import ProvableLog, proof_of
from audit.tiles import TilePath, tile_width


def write_tile_folder(
    out: Path,
    log: ProvableLog,
    signed: checkpoints.OpenedCheckpoint,
    tiles: Iterable[tuple[str, bytes]],
    policy: str,
    *,
    before: Callable[[], None],
) -> int:
    """Write the tree under `signed` into the folder `out`, and return how many files were written.

    Args:
        out: New, or a directory of the same log.
        log: The log.
        signed: Its checkpoint.
        tiles: Path and bytes of all tiles and bundles of entries.
        policy: The text of the trust policy, as information.
        before: Called before the first byte is written.

    Raises:
        LogUnreadable: `out` holds something else, or can't be written.
        AuditError: It holds a longer or another history of this log.
    """
    _check_extends(out, log, signed)
    before()
    try:
        written = sum(_put(out / path, data, replace=".p/" in path) for path, data in tiles)
        for index, leaf in log.trail():
            if index < signed.size:
                written += _put(out / bundle.trail_path(index), leaf, replace=True)
                proof = bytes(proof_of(log, signed, index))
                written += _put(out / bundle.trail_proof_path(index), proof, replace=True)
        written += _put(out / bundle.POLICY, policy.encode(), replace=True)
        durable.replace_file(out / "checkpoint", bytes(signed.signed))
        _remove_partials(out, signed.size)
    except OSError as error:
        raise LogUnreadable(f"{out} can't be written: {error.strerror}") from None
    return written + 1


def _check_extends(out: Path, log: ProvableLog, signed: checkpoints.OpenedCheckpoint) -> None:
    if not out.exists():
        return
    if not out.is_dir() or (any(out.iterdir()) and not (out / "checkpoint").is_file()):
        raise LogUnreadable(f"{out} is no directory of tiles", hint="name a new folder, or one made by --as tiles")
    if not any(out.iterdir()):
        return
    try:
        there = checkpoints.parse((out / "checkpoint").read_bytes())
    except NoteRefused:
        raise LogUnreadable(f"{out / 'checkpoint'} is no checkpoint", hint="name a new folder") from None
    if there.origin != signed.origin:
        raise LogUnreadable(f"{out} holds the log {there.origin}", hint="name a new folder")
    if there.size > signed.size:
        raise AuditError("CFD-A07", f"{out} holds {there.size} entries, the log's checkpoint {signed.size}")
    if there.size and proofs.root_at(log.tree, there.size) != there.root:
        raise AuditError("CFD-A08", f"{out} holds another history of this log", hint="keep it as evidence")


def _put(path: Path, data: bytes, *, replace: bool) -> int:
    if path.is_file() and not replace and path.stat().st_size == len(data):
        return 0
    durable.make_folder(path.parent)
    durable.replace_file(path, data)
    return 1


def _remove_partials(out: Path, size: int) -> None:
    """Remove partial tiles that a larger tree has no place for."""
    for path in list((out / "tile").rglob("*.p/*")):
        try:
            named = TilePath.parse(path.relative_to(out).as_posix())
        except ProofRefused:
            continue
        if tile_width(named.level or 0, named.n, size) != named.width:
            path.unlink()
            if not any(path.parent.iterdir()):
                path.parent.rmdir()
