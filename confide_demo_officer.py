"""What the demo shows an officer: one answer of one log, one entry that proves itself, one lie that is caught.

The commands are `confide audit report | prove | check | verify`, as an officer would give them. The proof is checked
with keys that another party holds. The lie is one bit of one byte of one entry in a copy of the log's database.
"""

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

SITE: Final = "cleveland"
DATASET: Final = "heart"

Confide = Callable[..., str]
"""Runs one command, expects its status, and returns what it printed."""


class LieNotCaught(Exception):
    """A changed entry was not named, or a proof didn't hold; the demo has failed."""


def ask(confide: Confide, home: Path, folder: Path) -> list[str]:
    """Return the lines that answer who used the data set, what for, under whose approval, at what cost, what left."""
    out = folder / "report.json"
    confide("audit", "report", str(home), "--dataset", DATASET, "--out", str(out))
    report = json.loads(out.read_text(encoding="utf-8"))
    sections = report["sections"]
    lines = [f"an officer asks the log of {SITE}: who used the data set {DATASET}? (officer/{out.name})"]
    for job in sections["summary"]:
        approving = next(row for row in sections["approvals"] if row["job"] == job["job"])
        kinds = [row["what"] for row in sections["disclosures"] if row["job"] == job["job"]]
        left = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
        lines += [
            f"  who and when      {job['job']}, opened {job['openings']} times, {job['span']}",
            f"  what for          {job['purpose']}",
            f"  under             {job['under']} of policy {approving['policy'][:23]}…, entry {approving['entry']}",
            f"  privacy cost      epsilon {job['spent']} per {job['unit']}",
            f"  what left         {left}; {job['left_bytes']} bytes to the coordinator",
        ]
    return lines


def prove(confide: Confide, home: Path, others: Path, folder: Path) -> tuple[int, list[str]]:
    """Prove the first update that left, check the proof with keys that another party holds; return entry and lines.

    Raises:
        LieNotCaught: The proof is about something else.
    """
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    entry = next(int(row["entry"]) for row in report["sections"]["disclosures"] if row["what"] == "masked-update")
    proof = folder / f"entry-{entry}.tlog-proof"
    proof.unlink(missing_ok=True)
    confide("audit", "prove", str(home), str(entry), "--out", str(proof))
    keys = others / "trust" / f"{SITE}.policy"
    found = json.loads(confide("audit", "check", str(proof), "--trust", str(keys), "--format", "json"))
    if (found["index"], found["event"]["action"]) != (entry, "update.sent"):
        raise LieNotCaught(f"{proof} proves entry {found['index']}, {found['event']['action']}")
    witnesses = ", ".join(name.split("/")[1] if "/" in name else name for name in found["witnesses"])
    return entry, [
        f"one row proves itself: entry {entry}, the first update that left (officer/{proof.name})",
        f"  proved            it is in the log, unchanged, under a checkpoint of {found['checkpoint']['size']} entries",
        f"  witnessed by      {witnesses or 'nobody yet'}; keys as the coordinator holds them",
    ]


def altered_copy(home: Path, entry: int, copy: Path) -> None:
    """Write a copy of the log in `home` to `copy`, with one bit of one entry changed in its database."""
    if copy.exists():
        shutil.rmtree(copy)
    epoch = copy / "audit" / "1"
    epoch.mkdir(parents=True, mode=0o700)
    shutil.copytree(home / "trust", copy / "trust")
    # The checkpoint first: the database of a log that grows meanwhile holds at least what it signs.
    shutil.copyfile(home / "audit" / "1" / "checkpoint", epoch / "checkpoint")
    source = sqlite3.connect(f"file:{home / 'audit' / '1' / 'log.db'}?mode=ro", uri=True)
    with closing(source), closing(sqlite3.connect(epoch / "log.db")) as target:
        source.backup(target)
        (leaf,) = target.execute("SELECT leaf FROM entry WHERE idx = ?", (entry,)).fetchone()
        changed = bytearray(leaf)
        changed[len(changed) // 2] ^= 1
        target.execute("UPDATE entry SET leaf = ? WHERE idx = ?", (bytes(changed), entry))
        target.commit()
    (epoch / "log.db").chmod(0o600)


def catch(confide: Confide, home: Path, entry: int, folder: Path) -> list[str]:
    """Change a copy of the log, verify it, and return the lines that say how it was caught.

    Raises:
        LieNotCaught: The change was not named.
    """
    copy = folder / f"{SITE}-altered"
    altered_copy(home, entry, copy)
    verified: dict[str, Any] = json.loads(confide("audit", "verify", str(copy), "--format", "json", status=1))
    named = [flaw for flaw in verified["flaws"] if flaw["where"] == f"entry {entry}"]
    if verified["verdict"] != "flawed" or not named:
        raise LieNotCaught(f"one byte of entry {entry} was changed in {copy}, and `verify` says {verified['verdict']}")
    first = named[0]
    return [
        f"one byte of entry {entry} is changed in a copy of the log (officer/{copy.name})",
        f"  verify says       {verified['verdict']}: {first['code']} {first['where']}: {first['what']}",
    ]
