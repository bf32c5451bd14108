"""`confide site data …`: add, list, show, verify and retire data sets."""

import argparse
import os
import pwd
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from federation.edge.arguments import VerbParser, run_verb
from site_client.command_line import agreed

if TYPE_CHECKING:
    from federation.contract import DataContract
    from federation.edge.clock import Clock
    from site_client.data.data_map import DataMap
    from site_client.data.registration import DataOffice
    from site_client.data.registry import DataSet, DataVersion, Registry, SplitRule
    from site_client.data.wish import Wish

HELP: Final = """confide site data: the data sets that this site may train on

  confide site data add NAME --path FILE_OR_DIR --contract contract.yaml [--map map.yaml] [--entity COLUMN]
      --units N|dp [--same-people-as NAME] [--split COLUMN | --held-out 0.2] [--held-out-public]
      --epsilon E --delta D
        read the files once, check every row under the contract, and register them with a privacy budget;
        for a name that exists with the same contract, entity and split: a new version (no --epsilon, --delta)
  confide site data list [--all] [--format table|json|jsonl]
  confide site data show NAME [--format table|json]       the intake report; for this site's own people
  confide site data verify NAME [--format table|json]     compare the files with the registered version
  confide site data opt-out NAME --entities FILE          people whose rows are left out from now on, one id a line
  confide site data retire NAME [--yes]                   never opened again; the budget's history stays

All take --home DIR. The files are only read, never written to.
--units: the number of units (persons, or rows) that you publish; dp counts them with noise, charged to the budget.
--split: a column with train or held-out; --held-out: that share of the units, chosen by the site's secret key.

Example:
  confide site data add heart --path /data/heart.csv --contract contract.yaml --map map.yaml \\
      --units 300 --held-out 0.2 --epsilon 8 --delta 1e-5
"""
SHORT_VERSION: Final = 12


def main(arguments: list[str]) -> int:
    """Run one verb and return the exit status."""
    return run_verb("site data", VERBS, arguments, help_text=HELP)


def add(arguments: list[str]) -> int:
    """Register a data set or a new version of one."""
    parser = _parser("add", "Read the files once, check every row, and register them.", name=True)
    parser.add_argument("--path", required=True, metavar="FILE_OR_DIR")
    parser.add_argument("--contract", required=True, metavar="FILE", help="the federation's data contract")
    parser.add_argument("--map", metavar="FILE", help="how this site's files differ from the contract")
    parser.add_argument("--entity", metavar="COLUMN", help="rows with the same value are one person")
    parser.add_argument("--units", required=True, metavar="N|dp", help="units that you publish, or a noisy count")
    parser.add_argument("--same-people-as", metavar="NAME", help="a data set on the same persons: one budget")
    side = parser.add_mutually_exclusive_group()
    side.add_argument("--split", metavar="COLUMN", help="column with train or held-out")
    side.add_argument("--held-out", type=float, metavar="SHARE", help="share of the units, 0 to 0.9; default 0.2")
    parser.add_argument("--held-out-public", action="store_true", help="you declare the held-out rows public")
    parser.add_argument("--epsilon", type=float, metavar="E", help="privacy budget of these persons, for ever")
    parser.add_argument("--delta", type=float, metavar="D", help="its delta")
    options = parser.parse_args(arguments)
    from federation.edge.tables import print_record

    wish = _wish(options)
    with _office(options.home) as office:
        version = office.add(wish)
        data_set = office.registry.get(wish.name)
    for warning in version.report["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)
    counted = version.report["train"]["units"]
    if wish.units != "dp" and not counted / 2 <= wish.units <= counted * 2:
        print(f"warning: {wish.units} units declared, {counted} counted for training", file=sys.stderr)
    print_record(_summary(data_set, version), schema="confide/data-set/v1", form=options.format)
    return 0


def list_(arguments: list[str]) -> int:
    """List the data sets."""
    parser = _parser("list", "The data sets of this site.", formats=("table", "json", "jsonl"))
    parser.add_argument("--all", action="store_true", help="retired ones too")
    options = parser.parse_args(arguments)
    from federation.edge.tables import print_rows

    columns = ["name", "contract", "unit", "units_declared", "version", "split", "held_out_public", "state"]
    with _registry(options.home) as registry:
        rows = [_row(found, registry.newest(found.name)) for found in registry.all(retired=options.all)]
    print_rows(rows, columns, schema="confide/data-sets/v1", form=options.format)
    return 0


def show(arguments: list[str]) -> int:
    """Show a data set with its intake report."""
    options = _parser("show", "A data set and its intake report.", name=True).parse_args(arguments)
    from federation.edge.tables import print_record

    with _registry(options.home) as registry:
        data_set, versions = registry.get(options.name), registry.versions(options.name)
    record = _summary(data_set, versions[-1])
    if options.format == "table":
        record |= _columns_for_people(versions[-1].report)
    else:
        record["report"] = versions[-1].report
        record["versions"] = [_version_row(version) for version in versions]
    print_record(record, schema="confide/data-set/v1", form=options.format)
    return 0


def verify(arguments: list[str]) -> int:
    """Compare the files with the registered version."""
    options = _parser("verify", "Compare the files with the registered version.", name=True).parse_args(arguments)
    from federation.edge.tables import print_record

    with _office(options.home) as office:
        checked = office.verify(options.name)
    record = {
        "name": checked.data_set.name,
        "version": checked.version.version,
        "content": "as registered",
        "files": "byte for byte" if checked.files_same else "other bytes, same rows",
        "prepared_rows": "made again" if checked.rows_made_again else "sound",
    }
    print_record(record, schema="confide/data-verification/v1", form=options.format)
    return 0


def opt_out(arguments: list[str]) -> int:
    """Leave people's rows out of a data set from now on."""
    parser = _parser("opt-out", "Leave people's rows out of a data set from now on.", name=True)
    parser.add_argument("--entities", required=True, metavar="FILE", help="ids as in the entity column, one a line")
    options = parser.parse_args(arguments)
    from federation.edge.tables import print_record
    from site_client.data.opt_out import people_in

    people = people_in(Path(options.entities))
    with _office(options.home) as office:
        version = office.opt_out(options.name, people)
        data_set = office.registry.get(options.name)
        kin = _same_people(office.registry, data_set)
    if kin:
        print(f"note: data sets on the same people are not changed by this: {', '.join(kin)}", file=sys.stderr)
    print_record(_summary(data_set, version), schema="confide/data-set/v1", form=options.format)
    return 0


def _same_people(registry: "Registry", data_set: "DataSet") -> list[str]:
    def root(found: "DataSet") -> str:
        return found.name if found.same_people_as is None else root(registry.get(found.same_people_as))

    others = (found for found in registry.all() if found.name != data_set.name)
    return [found.name for found in others if root(found) == root(data_set)]


def retire(arguments: list[str]) -> int:
    """Let a data set be opened no more."""
    parser = _parser("retire", "Let a data set be opened no more.", name=True)
    parser.add_argument("--yes", action="store_true", help="don't ask")
    options = parser.parse_args(arguments)
    if not options.yes and not agreed(f"Retire {options.name}? It can't be undone. [y/N] ", why="this can't be undone"):
        print("nothing was changed", file=sys.stderr)
        return 1
    from federation.edge.tables import print_record

    with _office(options.home) as office:
        data_set = office.retire(options.name)
    print_record({"name": data_set.name, "state": "retired"}, schema="confide/data-set/v1", form=options.format)
    return 0


# --- options --------------------------------------------------------------------------------------------------


def _parser(verb: str, about: str, *, name: bool = False, formats: tuple[str, ...] = ("table", "json")) -> VerbParser:
    parser = VerbParser(f"confide site data {verb}", about=about)
    if name:
        parser.add_argument("name", metavar="NAME", help="the data set")
    parser.add_argument("--format", choices=formats, default="table")
    parser.add_argument("--home", metavar="DIR", default=None)
    return parser


def _wish(options: argparse.Namespace) -> "Wish":
    import re

    from federation.contract import DataContract
    from federation.edge.documents import read_document
    from federation.errors import InvalidInput
    from site_client.data.data_map import DataMap, check_fits, plain_map
    from site_client.data.wish import Wish

    if not re.fullmatch(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", options.name):
        raise InvalidInput(
            "CFD-D20",
            "a data set's name is lower-case letters, digits and dashes, at most 63",
            hint="such as heart-2026",
        )
    contract = read_document(Path(options.contract), DataContract)
    data_map = plain_map(contract) if options.map is None else read_document(Path(options.map), DataMap)
    check_fits(data_map, contract)
    return Wish(
        name=options.name,
        path=Path(os.path.abspath(options.path)),
        contract=contract,
        data_map=data_map,
        entity=_entity(options.entity, contract),
        units=_units(options.units),
        same_people_as=options.same_people_as,
        split=_split(options, data_map),
        held_out_public=options.held_out_public,
        epsilon=options.epsilon,
        delta=options.delta,
    )


def _entity(asked: str | None, contract: "DataContract") -> str | None:
    from federation.errors import InvalidInput

    if asked is not None and contract.entity not in (None, asked):
        raise InvalidInput("CFD-D16", f"--entity {asked}: the contract's entity is {contract.entity}")
    return asked or contract.entity


def _units(text: str) -> Any:
    from federation.errors import InvalidInput

    if text == "dp":
        return text
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 10**12):
        raise InvalidInput("CFD-D25", f"--units {text}: a whole number from 1, or dp")
    return int(text)


def _split(options: argparse.Namespace, data_map: "DataMap") -> "SplitRule":
    from federation.errors import InvalidInput
    from site_client.data.registry import SplitRule

    column = options.split or (data_map.split.column if options.held_out is None else None)
    if column is not None:
        if data_map.split.column not in (None, column):
            raise InvalidInput("CFD-D16", f"--split {column}: the map's split column is {data_map.split.column}")
        return SplitRule(column=column)
    share = 0.2 if options.held_out is None else options.held_out
    if not 0 <= share <= 0.9:
        raise InvalidInput("CFD-D16", f"--held-out {share}: a share from 0 to 0.9")
    return SplitRule(share=share)


# --- the home -------------------------------------------------------------------------------------------------


def _office(home: str | None) -> "DataOffice":
    from federation.edge.clock import SystemClock
    from federation.edge.configuration import resolve_home
    from site_client.data.registration import DataOffice

    clock = SystemClock()
    place = resolve_home("site", home)
    return DataOffice(place, clock=clock, account=_account(), progress=ProgressLine(clock))


@contextmanager
def _registry(home: str | None) -> "Iterator[Registry]":
    from federation.edge.configuration import resolve_home
    from federation.errors import ConfigurationWrong
    from site_client.data.registry import Registry

    place = resolve_home("site", home)
    if not (place / "audit").is_dir():
        raise ConfigurationWrong("CFD-D24", f"{place} is no site's home yet")
    registry = Registry.open(place)
    try:
        yield registry
    finally:
        registry.close()


def _account() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid-{os.getuid()}"


class ProgressLine:
    """Says how far the reading is: a moving line on a terminal, a plain line every ten seconds elsewhere."""

    QUIET_S: Final = 2.0
    EVERY_S: Final = 10.0

    def __init__(self, clock: "Clock") -> None:
        self._clock = clock
        self._begun_s = self._told_s = clock.monotonic_s()
        self._moving = sys.stderr.isatty()

    def __call__(self, done_bytes: int, total_bytes: int) -> None:
        """Take the figures, and print them where it is time."""
        now_s = self._clock.monotonic_s()
        finished = done_bytes >= total_bytes
        if now_s - self._begun_s < self.QUIET_S:
            return
        if now_s - self._told_s < (0.2 if self._moving else self.EVERY_S) and not (finished and self._moving):
            return
        self._told_s = now_s
        share = 100 * done_bytes // max(total_bytes, 1)
        text = f"reading {share} % of {total_bytes / 1e6:.1f} MB"
        end = "" if self._moving and not finished else "\n"
        print(f"\r{text}" if self._moving else text, end=end, file=sys.stderr, flush=True)


# --- what is printed ------------------------------------------------------------------------------------------


def _row(data_set: "DataSet", version: "DataVersion") -> dict[str, Any]:
    split = data_set.split.column or f"{data_set.split.share:g} by key"
    return {
        "name": data_set.name,
        "contract": data_set.contract.name,
        "contract_digest": data_set.contract_digest,
        "unit": data_set.unit,
        "units_declared": version.units_declared,
        "version": version.version[:SHORT_VERSION],
        "split": split,
        "held_out_public": data_set.held_out_public,
        "state": data_set.state,
    }


def _version_row(version: "DataVersion") -> dict[str, Any]:
    from datetime import UTC, datetime

    from federation.edge.clock import rfc3339

    moment = datetime.fromtimestamp(version.registered_us / 1e6, UTC)
    return {
        "number": version.number,
        "version": version.version,
        "units_declared": version.units_declared,
        "registered": rfc3339(moment),
    }


def _summary(data_set: "DataSet", version: "DataVersion") -> dict[str, Any]:
    report = version.report
    dropped = {entry["reason"]: entry["count"] for entry in report["dropped"]}
    return {
        **_row(data_set, version),
        "version": version.version,
        "version_number": version.number,
        "registered": _version_row(version)["registered"],
        "path": os.fsencode(data_set.path).decode("utf-8", "backslashreplace"),
        "entity": data_set.entity,
        "same_people_as": data_set.same_people_as,
        "epsilon": data_set.epsilon,
        "delta": data_set.delta,
        "rows_read": report["rows_read"],
        "rows_used": report["rows_used"],
        "rows_dropped": report["rows_dropped"],
        "dropped": dropped,
        "train": _fold(report["train"]),
        "held_out": _fold(report["held_out"]),
        "warnings": report["warnings"],
    }


def _fold(figures: Mapping[str, Any]) -> dict[str, Any]:
    return {"rows": figures["rows"], "units": figures["units"], "labels": figures["labels"]}


def _columns_for_people(report: Mapping[str, Any]) -> dict[str, Any]:
    lines: dict[str, Any] = {
        "duplicate_rows": report["duplicate_rows"],
        "rows_per_unit": report["rows_per_unit"],
        "ignored_columns": report["ignored_columns"],
        "files": [f"{file['name']} ({file['size_bytes']} bytes)" for file in report["files"]],
    }
    for column in report["columns"]:
        figures = {key: value for key, value in column.items() if key not in ("name", "type")}
        for key in ("mean", "deviation"):
            if key in figures:
                figures[key] = f"{figures[key]:.4g}"
        lines[f"column {column['name']}"] = figures
    return lines


VERBS: Final[dict[str, Callable[[list[str]], int]]] = {
    "add": add,
    "list": list_,
    "show": show,
    "verify": verify,
    "opt-out": opt_out,
    "retire": retire,
}
