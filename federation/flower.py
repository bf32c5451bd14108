"""The seam to Flower: what is switched off before it is imported, conversions and messages.

`flwr` is imported inside functions only, and only after `quieten_flower` has switched off telemetry and the update
check in this process (children inherit it); without that, every function here refuses. Only flwr's public packages
are used (`flwr.app`, `flwr.clientapp`, `flwr.serverapp`, and the entry point of `flwr.simulation`).

Messages carry explicit metadata: a bare `Message(...)` would take its run from a global of the process, and one
coordinator runs many jobs at once. Flower's own round loop, sampling, waiting and differential-privacy strategies are
never used.
"""

import hashlib
import importlib
import importlib.util
import logging
import sys
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from federation.edge import configuration
from federation.errors import InvalidInput, OutOfOrder, PeerMisbehaved
from federation.messages import SUM_PHASES, Body, MessageRefused, Phase, decode_body, encode_body, kind_of
from federation.tensor_file import Array, Manifest

SWITCHES: Final[Mapping[str, str]] = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
_ARRAYS: Final = "arrays"
_METRICS: Final = "metrics"
_WEIGHT: Final = "num-examples"
_BODY: Final = "body"
_VIRTUAL_SITE: Final = "virtual-site"
_VIRTUAL_FILE: Final = "virtual-file"
_NAME: Final = "name"
_LOGGERS: Final = ("flwr", "flwr-telemetry")
_MESSAGE_TYPES: Final[Mapping[Phase, str]] = {
    Phase.TRAIN: "train",
    Phase.EVALUATE: "evaluate",
    **{phase: f"query.secure_{phase.value}" for phase in SUM_PHASES},
}


def quiet_variables(home: Path) -> dict[str, str]:
    """Return the variables that keep Flower and Ray silent and inside `home`; for this process or a child's."""
    return {**SWITCHES, "FLWR_HOME": str(home / "flower")}


def quieten_flower(home: Path) -> None:
    """Switch off telemetry and the update check and keep Flower's files inside `home`; before the first import.

    Raises:
        OutOfOrder: Flower was imported before, so that its telemetry may be on.
    """
    if "flwr" in sys.modules and not _is_quiet():
        raise OutOfOrder("CFD-G01", "flwr was imported before its telemetry was switched off")
    configuration.set_variables(quiet_variables(home))


def _is_quiet() -> bool:
    found = configuration.environment()
    return all(found.get(name) == value for name, value in SWITCHES.items())


def _load(name: str) -> Any:
    """Return the public package `name` of flwr, without its handlers that print to standard error.

    Raises:
        OutOfOrder: Nobody has switched off its telemetry in this process.
    """
    if not _is_quiet():
        raise OutOfOrder("CFD-G01", "flwr may not be imported before quieten_flower")
    if name in sys.modules:
        return sys.modules[name]
    with warnings.catch_warnings():
        # Deprecations between the libraries that flwr itself imports are not for our users.
        warnings.simplefilter("ignore", DeprecationWarning)
        package = importlib.import_module(name)
    _silence_loggers()
    return package


def load_app() -> Any:
    """Return `flwr.app`, quiet."""
    return _load("flwr.app")


def load_server() -> Any:
    """Return `flwr.serverapp`, quiet."""
    return _load("flwr.serverapp")


def load_client() -> Any:
    """Return `flwr.clientapp`, quiet."""
    return _load("flwr.clientapp")


def _silence_loggers() -> None:
    """Remove flwr's own handlers: they print metrics, node ids and error texts. The process's log reduces the rest."""
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        for handler in list(logger.handlers):
            logger.removeHandler(handler)
        logger.propagate = True
        logger.setLevel(logging.WARNING)


# --- names ----------------------------------------------------------------------------------------------------


def number_of(name: str) -> int:
    """Return the positive 63-bit integer that stands for a job or a site where Flower wants a number."""
    return int.from_bytes(hashlib.sha256(b"confide-flower/v1\n" + name.encode("utf-8")).digest()[:8], "big") >> 1 or 1


def numbers_of(names: Iterable[str]) -> dict[int, str]:
    """Return number → name.

    Raises:
        InvalidInput: Two names share a number; one of them has to be another.
    """
    result: dict[int, str] = {}
    for name in sorted(set(names)):
        number = number_of(name)
        if number in result:
            raise InvalidInput("CFD-P04", f"{result[number]} and {name} share a number; rename one of them")
        result[number] = name
    return result


def message_type_of(phase: Phase) -> str:
    """Return Flower's message type for a phase of a round."""
    return _MESSAGE_TYPES[phase]


# --- conversions ----------------------------------------------------------------------------------------------


def arrays_to_record(arrays: Mapping[str, Array]) -> Any:
    """Return an `ArrayRecord` with `arrays`, whose types were checked when they became a manifest."""
    app = load_app()
    Manifest.of_arrays(arrays)
    return app.ArrayRecord({name: app.Array(np.asarray(array, order="C")) for name, array in arrays.items()})


def record_to_arrays(record: Any, manifest: Manifest) -> dict[str, Array]:
    """Return the arrays of an `ArrayRecord`, each decoded once, if they have exactly the layout of `manifest`.

    Raises:
        PeerMisbehaved: Another set of names, another type or shape, or an array that can't be decoded.
    """
    if set(record) != set(manifest.names):
        raise PeerMisbehaved("CFD-R03", "the record doesn't hold the tensors of the model")
    arrays: dict[str, Array] = {}
    for name, spec in manifest.tensors:
        try:
            array = record[name].numpy()
        except (TypeError, ValueError, OSError, EOFError):
            raise PeerMisbehaved("CFD-R03", f"tensor {name} can't be decoded") from None
        if array.shape != spec.shape or array.dtype != spec.numpy:
            raise PeerMisbehaved(
                "CFD-R03", f"tensor {name} is {array.dtype} {array.shape}, expected {spec.numpy} {spec.shape}"
            )
        arrays[name] = array
    return arrays


def body_to_content(message: Body) -> Any:
    """Return a `RecordDict` that carries a protocol message: its kind as the record's name, its canonical bytes."""
    app = load_app()
    return app.RecordDict({kind_of(message): app.ConfigRecord({_BODY: encode_body(message)})})


def content_to_body(content: Any, *, kind: str) -> Body:
    """Return the protocol message of `kind` in a `RecordDict`.

    Raises:
        PeerMisbehaved: It holds anything else.
    """
    records = dict(content)
    record = records.get(kind)
    data = record.get(_BODY) if isinstance(record, load_app().ConfigRecord) else None
    if len(records) != 1 or not isinstance(data, bytes):
        raise PeerMisbehaved("CFD-R02", f"a message of kind {kind} was expected")
    try:
        return decode_body(kind, data)
    except MessageRefused as problem:
        raise PeerMisbehaved("CFD-R02", str(problem)) from None


# --- messages -------------------------------------------------------------------------------------------------


def build_message(
    content: Any,
    *,
    job: str,
    source: int,
    destination: int,
    message_id: str,
    group: str,
    message_type: str,
    created_at_s: float,
    ttl_s: float,
    reply_to: str = "",
    run: int | None = None,
) -> Any:
    """Return a Flower `Message` whose metadata come from the arguments alone, never from a global of the process.

    Args:
        content: A `RecordDict`.
        job: The job, which is Flower's run.
        source: Number of the sending node; see `number_of`.
        destination: Number of the receiving node.
        message_id: The federation-wide id.
        group: The round and attempt, as text.
        message_type: ``train``, ``evaluate`` or ``query.NAME``.
        created_at_s: Seconds since 1970, from the caller's clock.
        ttl_s: Seconds until the phase's deadline.
        reply_to: The id of the message that this one answers.
        run: Flower's own number for the run, where an engine chose it; by default the job's.
    """
    app = load_app()
    metadata = app.Metadata(
        run_id=number_of(job) if run is None else run,
        message_id=message_id,
        src_node_id=source,
        dst_node_id=destination,
        reply_to_message_id=reply_to,
        group_id=group,
        created_at=created_at_s,
        ttl=ttl_s,
        message_type=message_type,
    )
    return app.Message(content=content, metadata=metadata)


def build_reply(message: Any, content: Any, *, message_id: str, created_at_s: float) -> Any:
    """Return the `Message` that answers `message`, with what is left of its time to live."""
    asked = message.metadata
    app = load_app()
    metadata = app.Metadata(
        run_id=asked.run_id,
        message_id=message_id,
        src_node_id=asked.dst_node_id,
        dst_node_id=asked.src_node_id,
        reply_to_message_id=asked.message_id,
        group_id=asked.group_id,
        created_at=created_at_s,
        ttl=max(0.0, asked.ttl - (created_at_s - asked.created_at)),
        message_type=asked.message_type,
    )
    return app.Message(content=content, metadata=metadata)


def build_silence(message: Any, *, code: int, reason: str, created_at_s: float) -> Any:
    """Return the error `Message` that stands for the missing answer to `message`, from the node that was asked."""
    asked = message.metadata
    app = load_app()
    metadata = app.Metadata(
        run_id=asked.run_id,
        message_id=f"{asked.message_id}/none",
        src_node_id=asked.dst_node_id,
        dst_node_id=asked.src_node_id,
        reply_to_message_id=asked.message_id,
        group_id=asked.group_id,
        created_at=created_at_s,
        ttl=0.0,
        message_type=asked.message_type,
    )
    return app.Message(error=app.Error(code=code, reason=reason), metadata=metadata)


def update_message(site: str, update: Mapping[str, Array], weight: int) -> Any:
    """Return a site's update with its weight as the message that flwr's strategies aggregate."""
    app = load_app()
    content = app.RecordDict({_ARRAYS: arrays_to_record(update), _METRICS: app.MetricRecord({_WEIGHT: weight})})
    return build_message(
        content,
        job="aggregation",
        source=number_of(site),
        destination=1,
        message_id=site,
        group="0",
        message_type="train",
        created_at_s=0.0,
        ttl_s=1.0,
    )


def context_for(job: str, site: str) -> Any:
    """Return an empty `Context` of a site in a job; state is kept in our own store, not in Flower's."""
    app = load_app()
    return app.Context(
        run_id=number_of(job), node_id=number_of(site), node_config={}, state=app.RecordDict({}), run_config={}
    )


# --- virtual sites on Flower's simulation engine --------------------------------------------------------------


def config_record(values: Mapping[str, int | str | bytes]) -> Any:
    """Return a `ConfigRecord` of plain values."""
    return load_app().ConfigRecord(dict(values))


def empty_content() -> Any:
    """Return a `RecordDict` without records."""
    return load_app().RecordDict({})


def address(content: Any, site: str) -> None:
    """Say in a message's content which virtual site it is for; the numbers of an engine's nodes mean nothing."""
    content[_VIRTUAL_SITE] = config_record({_NAME: site})


def take_address(content: Any) -> str:
    """Take out of a message's content which virtual site it is for.

    Raises:
        PeerMisbehaved: It says nothing of one.
    """
    return _take_name(content, _VIRTUAL_SITE) or _refuse_unaddressed()


def attach_file(content: Any, name: str) -> None:
    """Say in a reply's content which file of the shared folder holds the update that the reply announces."""
    content[_VIRTUAL_FILE] = config_record({_NAME: name})


def take_file(content: Any) -> str:
    """Take out of a reply's content the name of its update's file; empty where it brings none."""
    return _take_name(content, _VIRTUAL_FILE)


def _take_name(content: Any, kind: str) -> str:
    record = content.pop(kind) if kind in content else None
    name = record.get(_NAME) if isinstance(record, load_app().ConfigRecord) else None
    return name if isinstance(name, str) else ""


def _refuse_unaddressed() -> str:
    raise PeerMisbehaved("CFD-R02", "a message for no virtual site")


def has_simulation() -> bool:
    """Return whether Flower's simulation engine is installed; nothing is imported."""
    return importlib.util.find_spec("flwr") is not None and importlib.util.find_spec("ray") is not None


def run_virtual_nodes(server_app: Any, client_app: Any, *, nodes_count: int, backend: Mapping[str, Any]) -> None:
    """Run a `ServerApp` and a `ClientApp` on Flower's simulation engine until the `ServerApp` ends.

    Call it in a process that does nothing else: the engine sets globals of the process, starts Ray, and may end the
    process that it runs in. `has_simulation` is to be asked before.

    Args:
        server_app: From `coordinator.flower_server.make_server_app`.
        client_app: For every node; goes by pickle to the engine's own workers on this machine.
        nodes_count: How many virtual nodes there are.
        backend: Flower's `backend_config`: arguments of `ray.init`, and the resources of one node.

    Raises:
        OutOfOrder: CFD-J12, the engine ended with an error of its own.
    """
    simulation = _load("flwr.simulation")
    try:
        simulation.run_simulation(
            server_app=server_app, client_app=client_app, num_supernodes=nodes_count, backend_config=dict(backend)
        )
    except SystemExit as ended:
        raise OutOfOrder("CFD-J12", f"the simulation engine ended the process (status {ended.code})") from None
    except RuntimeError as problem:
        raise OutOfOrder("CFD-J12", "the simulation engine ended with an error") from problem
