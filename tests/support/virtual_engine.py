"""Flower's simulation engine without Ray: the nodes' app is called in this process, message after message."""

import copy
import json
import uuid
from types import SimpleNamespace
from typing import Any

from coordinator.simulation import Order
from federation import flower
from federation.contract import DataContract

RUN = 4711


class InProcessEngine:
    """What `VirtualGrid` asks of the engine's own grid.

    Args:
        client_app: Answers every message.
        count: Number of nodes.
        silent: Nodes, counted from 0, that never answer.
        broken: Nodes, counted from 0, whose worker dies.
        reverse: Whether messages are worked on from the last to the first.
    """

    def __init__(
        self,
        client_app: Any,
        count: int,
        *,
        silent: set[int] | None = None,
        broken: set[int] | None = None,
        reverse: bool = False,
    ) -> None:
        self.run = SimpleNamespace(run_id=RUN)
        self.nodes = [2**40 + 17 * number for number in range(count)]
        self.pushed: list[Any] = []
        self._app = client_app
        self._silent = {self.nodes[number] for number in silent or ()}
        self._broken = {self.nodes[number] for number in broken or ()}
        self._reverse = reverse
        self._contexts = {node: flower.context_for("simulation", str(node)) for node in self.nodes}
        self._replies: dict[str, Any] = {}

    def get_node_ids(self) -> list[int]:
        return list(reversed(self.nodes))

    def push_messages(self, messages: Any) -> list[str]:
        pushed = list(messages)
        for message in pushed:
            message.metadata.__dict__["_message_id"] = str(uuid.uuid4())  # as the engine does
        for message in reversed(pushed) if self._reverse else pushed:
            self._work_on(message)
        self.pushed += pushed
        return [message.metadata.message_id for message in pushed]

    def _work_on(self, message: Any) -> None:
        asked = message.metadata
        if asked.dst_node_id in self._silent and not asked.message_type.startswith("query."):
            return
        if asked.dst_node_id in self._broken and not asked.message_type.startswith("query."):
            reply = flower.build_silence(message, code=2, reason="worker died", created_at_s=asked.created_at)
        else:
            # Ray hands a copy to the worker.
            reply = self._app(copy.deepcopy(message), self._contexts[asked.dst_node_id])
        self._replies[asked.message_id] = reply

    def pull_messages(self, message_ids: Any) -> list[Any]:
        return [self._replies.pop(name) for name in list(message_ids) if name in self._replies]


def an_order(plan: Any, contract: Any, folder: Any, **changes: Any) -> Order:
    """Return an order for a resolved plan, with only the fields that matter to a test."""
    from federation import contract as contracts
    from federation import plan as plans

    folder.mkdir(exist_ok=True)
    fields: dict[str, Any] = {
        "job": f"{plan.name}-00ff00",
        "plan": plans.canonical_bytes(plan).hex(),
        "contract": contracts.canonical_bytes(contract).hex(),
        "data": None,
        "units": 40,
        "folder": str(folder),
        "engine_folder": str(folder),
        "out": None,
        "workers": 2,
        "up_s": 5.0,
    }
    return Order(**{**fields, **changes})


def a_small_contract(**changes: Any) -> DataContract:
    """Return the contract of the tests' plans with one feature."""
    fields: dict[str, Any] = {
        "apiVersion": "confide/v1",
        "kind": "DataContract",
        "name": "heart-disease/v1",
        "columns": [{"name": "age", "type": "integer", "range": [18, 99]}, {"name": "disease", "type": "boolean"}],
        "label": {"column": "disease", "positive": ["true"]},
        **changes,
    }
    return DataContract.model_validate_json(json.dumps(fields))
