"""Flower is reached by its public packages only, and only where its adapters are."""

import ast
from collections.abc import Iterator
from pathlib import Path

import confide_cli

ROOT = Path(confide_cli.__file__).parent
PUBLIC = {"flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.simulation"}
ADAPTERS = {"federation/flower.py", "coordinator/flower_server.py", "site_client/flower_client.py"}
SOURCES = [
    *sorted(ROOT.glob("confide_*.py")),
    *(
        path
        for package in ("audit", "privacy", "federation", "site_client", "coordinator")
        for path in sorted((ROOT / package).rglob("*.py"))
    ),
]


def modules_named(text: str) -> Iterator[str]:
    """Yield each module of flwr that `text` imports, and each that it names where a module is loaded by its name."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom(module=str(module), level=0):
                if module == "flwr":
                    yield from (f"flwr.{alias.name}" for alias in node.names)
                else:
                    yield module
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[ast.Constant(value=str(value)), *_]):
                if name in ("_load", "import_module", "__import__"):
                    yield value


def flower_modules(text: str) -> set[str]:
    return {name for name in modules_named(text) if name.split(".")[0] in ("flwr", "flwr_datasets", "ray")}


def test_every_way_of_reaching_flower_is_seen() -> None:
    text = """
import flwr.server
from flwr import common
from flwr.proto.fleet_pb2 import Message
def later():
    importlib.import_module("flwr.supercore")
    _load("flwr.app")
    import ray
"""
    assert flower_modules(text) == {
        "flwr.server",
        "flwr.common",
        "flwr.proto.fleet_pb2",
        "flwr.supercore",
        "flwr.app",
        "ray",
    }


def test_only_flowers_public_packages_are_used_and_only_by_the_adapters() -> None:
    found = {str(path.relative_to(ROOT)): flower_modules(path.read_text(encoding="utf-8")) for path in SOURCES}
    used = {name: modules for name, modules in found.items() if modules}
    assert set(used) <= ADAPTERS
    assert set().union(*used.values()) <= PUBLIC
    assert used["federation/flower.py"] == PUBLIC
