"""Flower's strategies that need each site's own update, for plans without secure sums.

Of a strategy only the aggregation is called, on updates that `tensors.check_update` has let in: flwr compares key names
only, would broadcast shapes and let NaN through.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from federation.errors import InvalidInput
from federation.flower import load_server, update_message
from federation.plan_fields import (
    Bulyan,
    FedMedian,
    FedTrimmedAvg,
    Krum,
    MultiKrum,
    RobustStrategy,
)
from federation.tensor_file import Array, Manifest, TensorFile, TensorWriter, windows, write_tensors
from federation.tensors import UpdateRefused, cast_once


def robust_mean(
    strategy: RobustStrategy,
    updates: Mapping[str, Path],
    weights: Mapping[str, int],
    manifest: Manifest,
    out: Path,
    *,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write what flwr's own `strategy` makes of the sites' updates, computed in binary64 and cast once.

    FedMedian and FedTrimmedAvg work by coordinate, so one tensor of all sites is in memory at a time; Krum, MultiKrum
    and Bulyan compare whole updates and hold all of them.

    Args:
        strategy: With its parameters.
        updates: Site id → update, already checked by `tensors.check_update`.
        weights: Site id → public positive integer.
        manifest: That of the model.
        out: The tensor file to write, whole or not at all.
        metadata: Of the file.

    Raises:
        InvalidInput: Too few updates for the strategy.
        UpdateRefused: A file no longer fits the manifest.
        NotFinite: The result isn't a number; `out` isn't written.
    """
    floats = manifest.floats
    sites = sorted(updates, key=lambda site: site.encode("utf-8"))
    _require_enough(strategy, len(sites))
    if isinstance(strategy, FedMedian | FedTrimmedAvg):
        with TensorWriter(out, floats, metadata=metadata) as writer:
            for name, spec in floats.tensors:
                tensors = [{name: _wide(updates[site], floats, site, name)} for site in sites]
                wide = _aggregate(strategy, sites, tensors, weights)[name].reshape(-1)
                for start, stop in windows(spec):
                    writer.write(name, start, cast_once(wide[start:stop], spec, name))
        return
    whole = [{name: _wide(updates[site], floats, site, name) for name in floats.names} for site in sites]
    result = _aggregate(strategy, sites, whole, weights)
    arrays = {name: cast_once(result[name], spec, name).reshape(spec.shape) for name, spec in floats.tensors}
    write_tensors(out, arrays, metadata=metadata)


def _require_enough(strategy: RobustStrategy, count: int) -> None:
    match strategy:
        case Krum(num_malicious_nodes=f) | MultiKrum(num_malicious_nodes=f):
            needed = 2 * f + 3
        case Bulyan(num_malicious_nodes=f):
            needed = 4 * f + 3
        case _:
            needed = 1
    if count < needed:
        raise InvalidInput("CFD-P04", f"{strategy.strategy} needs {needed} updates, {count} arrived")


def _wide(path: Path, floats: Manifest, site: str, name: str) -> Array:
    with TensorFile(path) as update:
        if name not in update.manifest or update.manifest[name] != floats[name]:
            raise UpdateRefused(site, f"tensor {name} no longer fits the model")
        return update.read(name).astype(np.float64)


def _aggregate(
    strategy: RobustStrategy,
    sites: Sequence[str],
    updates: Sequence[Mapping[str, Array]],
    weights: Mapping[str, int],
) -> dict[str, Array]:
    replies = [update_message(site, update, weights[site]) for site, update in zip(sites, updates, strict=True)]
    with np.errstate(over="ignore", invalid="ignore"):
        arrays, _ = _flower_strategy(strategy).aggregate_train(1, replies)
    if arrays is None:
        raise InvalidInput("CFD-P04", f"{strategy.strategy} gave no result for {len(sites)} updates")
    return {name: array.numpy() for name, array in arrays.items()}


def _flower_strategy(strategy: RobustStrategy) -> Any:
    known = load_server().strategy
    match strategy:
        case Krum(num_malicious_nodes=f):
            return known.Krum(num_malicious_nodes=f)
        case MultiKrum(num_malicious_nodes=f, num_nodes_to_select=m):
            return known.MultiKrum(num_malicious_nodes=f, num_nodes_to_select=m)
        case Bulyan(num_malicious_nodes=f):
            return known.Bulyan(num_malicious_nodes=f)
        case FedMedian():
            return known.FedMedian()
        case FedTrimmedAvg(beta=beta):
            return known.FedTrimmedAvg(beta=beta)
