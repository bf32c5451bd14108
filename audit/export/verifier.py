"""Makes `verify.py`: one file with the sources of the modules that check a bundle, word for word.

They import the standard library, `cryptography` and each other. Whoever doubts the file reads it, or compares it with
the sources of the program of that version.
"""

import ast
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
START: Final = "audit.export.standalone"
_PACKAGES: Final = ("audit", "audit.export")
_HEAD: Final = '''#!/usr/bin/env python3
"""Checks an exported bundle of an audit log. Needs Python 3.11 or newer and the package `cryptography`; no network.

    python3 verify.py [BUNDLE] [--trust POLICY] [--complete] [--against CHECKPOINT] [--json]

Below are the sources of the modules that the program `confide` checks a bundle with, word for word, and at the end the
few lines that load them. This file comes with the bundle that it checks: whoever doesn't trust the bundle takes it
from elsewhere, or reads it.
"""

import sys
import types
from pathlib import Path

if sys.version_info < (3, 11):
    sys.exit("verify.py needs Python 3.11 or newer")

SOURCES = {}
'''
_TAIL: Final = '''

def load() -> types.ModuleType:
    """Make the modules above, in their order, and return the last."""
    module = types.ModuleType("")
    for name, source in SOURCES.items():
        module = types.ModuleType(name)
        if not source:
            module.__path__ = []
        sys.modules[name] = module
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, module)
        exec(compile(source, f"verify.py ({name})", "exec"), module.__dict__)
    return module


if __name__ == "__main__":
    sys.exit(load().main(sys.argv[1:], Path(__file__).resolve().parent))
'''


def _path(name: str) -> Path:
    return ROOT / (name.replace(".", "/") + ".py")


def imports_of(source: str) -> list[str]:
    """Return the modules that a source imports, in order; of ours, the modules and not their names."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module in _PACKAGES:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.append(node.module)
    return found


@cache
def modules() -> dict[str, str]:
    """Return the sources of the modules of `verify.py` by name, each behind those that it imports."""
    ordered: dict[str, str] = {}

    def add(name: str) -> None:
        if name in ordered:
            return
        source = _path(name).read_text(encoding="utf-8")
        for other in imports_of(source):
            if other.split(".")[0] == "audit":
                add(other)
        ordered[name] = source

    add(START)
    return ordered


@cache
def verifier_source() -> bytes:
    """Return the bytes of `verify.py`."""
    parts = [_HEAD]
    parts += [f'SOURCES["{name}"] = ""\n' for name in _PACKAGES]
    for name, source in modules().items():
        parts.append(f"\nSOURCES[\"{name}\"] = r'''\n{source}'''\n")
    return ("".join(parts) + _TAIL).encode()
