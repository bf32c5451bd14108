"""Updates and models as tensors: what is checked of an update, their exact mean, and the digest of a state.

An **update** is `local - global` for the averaged tensors of the manifest, in the manifest's types. It is matched by
name, type and shape; nothing is ever broadcast, and the tensor at fault is named. Tensors that are not averaged
(counters, masks, tables of ids) are constants: kept from the global model, in no update, and local training that
changed one is refused at the site. Float buffers are averaged like weights.

The **mean** is weighted by public positive integers over the sites whose updates arrived, and over nobody else. It is
accumulated in binary64 in the order of site ids and cast once to the manifest's types, so it depends neither on who
came first nor on the number of sites invited, and every party that recomputes it gets the same bits. It is taken
window by window: memory depends neither on the size of the model nor on the number of sites.
"""

import hashlib
import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from federation.canonical import MAX_INTEGER
from federation.errors import InvalidInput, PeerMisbehaved
from federation.tensor_file import (
    Array,
    Manifest,
    TensorFile,
    TensorFileRefused,
    TensorSpec,
    TensorWriter,
    TypeNotAveraged,
    windows,
    write_tensors,
)

__all__ = [
    "Array",
    "Manifest",
    "NotFinite",
    "TensorFile",
    "TensorFileRefused",
    "TensorSpec",
    "TensorWriter",
    "TypeNotAveraged",
    "UpdateFigures",
    "UpdateRefused",
    "check_update",
    "make_update",
    "state_digest",
    "weighted_mean",
    "windows",
    "write_tensors",
]

_WRAPPER_PREFIX: Final = "_module."
_MAX_OPEN_FILES: Final = 256


class UpdateRefused(PeerMisbehaved):
    """One site's update doesn't fit the model; the round goes on without that site."""

    def __init__(self, site: str, text: str, *, code: str = "CFD-R03") -> None:
        super().__init__(code, f"{site}: {text}")
        self.site: Final = site


class NotFinite(InvalidInput):
    """A computation would give infinity or NaN; nothing was written and the last good model stays."""

    def __init__(self, what: str) -> None:
        super().__init__("CFD-R61", what)


@dataclass(frozen=True, slots=True)
class UpdateFigures:
    """What was seen of an update while it was checked.

    Attributes:
        norm: L2 norm over all tensors, in binary64.
        size_bytes: Raw size of its tensors.
    """

    norm: float
    size_bytes: int


def check_update(path: Path, manifest: Manifest, *, site: str, max_norm: float | None = None) -> UpdateFigures:
    """Return the figures of a site's update if it fits the averaged tensors of `manifest` and is finite throughout.

    Args:
        path: The update's tensor file.
        manifest: That of the model.
        site: Whose update it is, for messages.
        max_norm: The largest L2 norm that is let in, if there is a bound.

    Raises:
        UpdateRefused: Names the site and the tensor; `CFD-R03` for the wrong form or non-finite values, `CFD-R04`
            over `max_norm`.
    """
    try:
        with TensorFile(path) as update:
            _check_layout(update.manifest, manifest.floats, site)
            squares = math.fsum(_squares(update, name, spec, site) for name, spec in update.manifest.tensors)
    except (TensorFileRefused, TypeNotAveraged) as problem:
        raise UpdateRefused(site, problem.message) from None
    norm = math.sqrt(squares)
    if max_norm is not None and norm > max_norm:
        raise UpdateRefused(site, f"norm of the update is {norm:.3g}, at most {max_norm:.3g}", code="CFD-R04")
    return UpdateFigures(norm, manifest.floats.size_bytes)


def _check_layout(found: Manifest, wanted: Manifest, site: str) -> None:
    expected = wanted.specs
    for name, spec in found.tensors:
        if name not in expected:
            bare = name.replace(_WRAPPER_PREFIX, "")
            if bare != name and bare in expected:
                raise UpdateRefused(
                    site, f"tensor {name} carries a wrapper's prefix {_WRAPPER_PREFIX}, expected {bare}"
                )
            raise UpdateRefused(site, f"tensor {name} is not in the model")
        if spec.shape != expected[name].shape:
            raise UpdateRefused(site, f"tensor {name} is {spec.shape}, expected {expected[name].shape}")
        if spec.dtype != expected[name].dtype:
            raise UpdateRefused(site, f"tensor {name} is {spec.dtype}, expected {expected[name].dtype}")
    missing = sorted(set(expected) - set(found.names))
    if missing:
        raise UpdateRefused(site, f"tensor {missing[0]} is missing")


def _squares(update: TensorFile, name: str, spec: TensorSpec, site: str) -> float:
    bad, total = 0, 0.0
    for start, stop in windows(spec):
        values = update.window(name, start, stop)
        bad += int(np.count_nonzero(~np.isfinite(values)))
        if not bad:
            wide = values.astype(np.float64)
            total += float(np.dot(wide, wide))
    if bad:
        raise UpdateRefused(site, f"tensor {name} has {bad} values that are not finite")
    if not math.isfinite(total):
        raise UpdateRefused(site, f"tensor {name} is too large for its norm to be a number")
    return total


def make_update(base: Mapping[str, Array], trained: Mapping[str, Array], *, site: str) -> dict[str, Array]:
    """Return the update `trained - base` in the base model's types, for the site's own check before anything leaves.

    The difference is taken in binary64 and cast once.

    Raises:
        UpdateRefused: Another set of tensors, another type or shape, a changed constant, or a non-finite value.
    """
    manifest, found = Manifest.of_arrays(base), _trained_manifest(trained, site)
    _check_layout(found, manifest, site)
    update: dict[str, Array] = {}
    for name, spec in manifest.tensors:
        if not spec.is_float:
            if not np.array_equal(base[name], trained[name]):
                raise UpdateRefused(site, f"tensor {name} is a constant of the model, and training changed it")
            continue
        with np.errstate(over="ignore", invalid="ignore"):
            wide = trained[name].astype(np.float64) - base[name].astype(np.float64)
            update[name] = wide.astype(spec.numpy)
        bad = int(np.count_nonzero(~np.isfinite(update[name])))
        if bad:
            raise UpdateRefused(site, f"tensor {name} has {bad} values that are not finite")
    return update


def _trained_manifest(trained: Mapping[str, Array], site: str) -> Manifest:
    try:
        return Manifest.of_arrays(trained)
    except TypeNotAveraged as problem:
        raise UpdateRefused(site, problem.message) from None


def weighted_mean(
    updates: Mapping[str, Path],
    weights: Mapping[str, int],
    manifest: Manifest,
    out: Path,
    *,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write the weighted mean of `updates` to `out`: Σ wᵢ·uᵢ / Σ wᵢ over exactly the sites in `updates`.

    Args:
        updates: Site id → its update, already checked by `check_update`.
        weights: Site id → public positive integer; other sites' weights are not looked at.
        manifest: That of the model.
        out: The tensor file to write, whole or not at all.
        metadata: Of the file.

    Raises:
        InvalidInput: No updates, or a weight that is no positive integer.
        UpdateRefused: A file no longer fits the manifest.
        NotFinite: The mean isn't a number; `out` isn't written.
    """
    sites = sorted(updates, key=lambda site: site.encode("utf-8"))
    if not sites:
        raise InvalidInput("CFD-R62", "a mean of no updates")
    total = 0
    for site in sites:
        weight = weights.get(site)
        if type(weight) is not int or not 0 < weight <= MAX_INTEGER:
            raise InvalidInput("CFD-R62", f"{site}: weight {weight!r}, a positive integer is wanted")
        total += weight
    floats = manifest.floats
    with ExitStack() as open_files:
        parts: list[tuple[TensorFile, float]] = []
        for site in sites:
            file = open_files.enter_context(TensorFile(updates[site], keep_open=len(sites) <= _MAX_OPEN_FILES))
            _check_layout(file.manifest, floats, site)
            parts.append((file, float(weights[site])))
        writer = open_files.enter_context(TensorWriter(out, floats, metadata=metadata))
        for name, spec in floats.tensors:
            for start, stop in windows(spec):
                wide = np.zeros(stop - start, dtype=np.float64)
                with np.errstate(over="ignore", invalid="ignore"):
                    for part, factor in parts:
                        wide += part.window(name, start, stop).astype(np.float64) * factor
                writer.write(name, start, cast_once(wide / float(total), spec, name))


def cast_once(wide: Array, spec: TensorSpec, name: str) -> Array:
    """Return binary64 `wide` in the type of `spec`.

    Raises:
        NotFinite: A value is not finite before or after the cast; the tensor is named.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = wide.astype(spec.numpy)
    if not np.isfinite(narrow).all():
        bad = int(np.count_nonzero(~np.isfinite(narrow)))
        raise NotFinite(f"tensor {name} would hold {bad} values that are not finite as {spec.dtype}")
    return narrow


def state_digest(model: Path, state: Path | None, *, step: int) -> str:
    """Return the digest of a model, its server state and the number of server steps behind it, 64 hex digits.

    SHA-256 over ``confide-state/v1\\n`` ‖ u64be(step), then for the model and for the state: u64be(number of tensors)
    and for each tensor by name u32be(length) ‖ name ‖ u8(length) ‖ type ‖ u8(dimensions) ‖ u64be each ‖ its raw
    little-endian bytes. A state of None counts as one without tensors.
    """
    hasher = hashlib.sha256(b"confide-state/v1\n" + step.to_bytes(8, "big"))
    for path in (model, state):
        if path is None:
            hasher.update((0).to_bytes(8, "big"))
            continue
        with TensorFile(path) as tensors:
            hasher.update(len(tensors.manifest.tensors).to_bytes(8, "big"))
            for name, spec in tensors.manifest.tensors:
                hasher.update(_framed(name, spec))
                for start, stop in windows(spec):
                    hasher.update(tensors.window(name, start, stop).tobytes())
    return hasher.hexdigest()


def _framed(name: str, spec: TensorSpec) -> bytes:
    text, dtype = name.encode("utf-8"), spec.dtype.encode("ascii")
    shape = b"".join(size.to_bytes(8, "big") for size in spec.shape)
    return (
        len(text).to_bytes(4, "big")
        + text
        + len(dtype).to_bytes(1, "big")
        + dtype
        + len(spec.shape).to_bytes(1, "big")
        + shape
    )
