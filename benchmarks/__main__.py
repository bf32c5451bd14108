"""`make bench`: run the benchmarks, print a table, write `build/bench.json`.

`make bench BENCH="link startup"` runs only those. A module here has `rows() -> list[Row]`; a row says what was
measured, against what, and whether the target holds. No test depends on a time.
"""

import importlib
import json
import sys
from pathlib import Path

from benchmarks.row import Row

MODULES = ("startup", "link", "rounds", "audit", "secagg", "dp", "budget")
OUTPUT = Path(__file__).resolve().parent.parent / "build" / "bench.json"


def main(names: list[str]) -> int:
    """Run the benchmarks named, or all; return 0 also where a target is missed: the table says so."""
    rows: list[Row] = []
    for name in names or MODULES:
        print(f"running {name} …", file=sys.stderr, flush=True)
        rows += importlib.import_module(f"benchmarks.{name}").rows()
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(json.dumps(rows, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        target = "" if row["target"] is None else f"target {row['target']:g}"
        verdict = {True: "holds", False: "MISSED", None: ""}[row["holds"]]
        figure = f"{row['value']:>10.4g} {row['unit']:<14} {target:<14} {verdict:<7}"
        print(f"{row['name']:<{width}}  {figure} {row['against']}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
