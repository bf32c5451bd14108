"""For every contract and every file: the contract alone decides the encoding, and rows alone decide the version."""

import csv
import io
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from federation.contract import (
    CategoryColumn,
    DataContract,
    canonical_bytes,
    digest,
    feature_names,
    from_canonical,
    width,
)
from site_client.data.data_map import DataMap
from site_client.data.definition import SplitByHash
from site_client.data.encode import RowEncoder
from tests.support import data_files as files

WORDS = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S")), min_size=1, max_size=8)
NUMBERS = st.floats(-1e6, 1e6, allow_nan=False).map(lambda number: round(number, 4))
SCALING = st.fixed_dictionaries(
    {"centre": NUMBERS, "scale": st.floats(0.01, 100)}, optional={"clamp": st.floats(0.5, 10)}
)
NONE_HELD_OUT = SplitByHash(share=0.0, key=files.KEY)
RULES = st.sampled_from(["drop-row", "refuse"])


@st.composite
def columns(draw: st.DrawFn, name: str) -> dict[str, Any]:
    kind = draw(st.sampled_from(["number", "integer", "boolean", "category"]))
    column: dict[str, Any] = {"name": name, "type": kind, "scaling": draw(SCALING), "missing": {"rule": draw(RULES)}}
    if kind == "category":
        column["categories"] = draw(st.lists(WORDS, min_size=2, max_size=5, unique_by=str.casefold))
        column["first_level"] = draw(st.sampled_from(["kept", "dropped"]))
    if kind == "number" and draw(st.booleans()):
        column["missing"] = {"rule": draw(st.sampled_from(["impute", "indicator"])), "value": draw(NUMBERS)}
    return column


@st.composite
def contracts(draw: st.DrawFn) -> DataContract:
    count = draw(st.integers(1, 5))
    made = [draw(columns(f"c{index}")) for index in range(count)]
    return files.contract(
        [*made, {"name": "label", "type": "boolean"}], label={"column": "label", "positive": ["true"]}
    )


def cell(draw: st.DrawFn, column: Any) -> str:
    if column.missing.rule in ("impute", "indicator") and draw(st.booleans()):
        return ""
    if isinstance(column, CategoryColumn):
        return draw(st.sampled_from(column.levels))
    if column.type == "boolean":
        return draw(st.sampled_from(["true", "false", "0", "1"]))
    return str(draw(NUMBERS if column.type == "number" else st.integers(-(10**6), 10**6)))


@st.composite
def tables(draw: st.DrawFn) -> tuple[DataContract, list[dict[str, str]]]:
    contract = draw(contracts())
    rows = [{column.name: cell(draw, column) for column in contract.columns} for _ in range(draw(st.integers(1, 6)))]
    return contract, rows


def text_of(rows: list[dict[str, str]], order: list[str], delimiter: str, newline: str, *, decimal: str = ".") -> str:
    out = io.StringIO()
    writer = csv.writer(out, delimiter=delimiter, lineterminator=newline, quoting=csv.QUOTE_ALL)
    writer.writerow(order)
    writer.writerows([row[name].replace(".", decimal) for name in order] for row in rows)
    return out.getvalue()


def intake(content: bytes, contract: DataContract, mapping: DataMap | None = None) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        return files.read(files.write(Path(folder) / "a.csv", content), contract, mapping, split=NONE_HELD_OUT)


@given(contracts())
def test_width_names_and_canonical_bytes_agree(contract: DataContract) -> None:
    assert width(contract) == len(feature_names(contract)) == len(set(feature_names(contract)))
    again = from_canonical(canonical_bytes(contract))
    assert (again, digest(again), feature_names(again)) == (contract, digest(contract), feature_names(contract))


@given(tables(), st.randoms(use_true_random=False))
@settings(max_examples=30)
def test_every_row_has_the_width_of_the_contract_whatever_the_order_of_columns(
    table: tuple[DataContract, list[dict[str, str]]],
    random: Any,  # hypothesis's own seeded generator
) -> None:
    contract, rows = table
    straight = [column.name for column in contract.columns]
    shuffled = random.sample(straight, len(straight))
    one = intake(text_of(rows, straight, ",", "\n").encode(), contract)
    two = intake(text_of(rows, shuffled, ",", "\n").encode(), contract)
    assert one.prepared.features.shape == (len(rows), width(contract))
    assert np.array_equal(one.prepared.features, two.prepared.features)
    assert one.version == two.version


@given(
    tables(),
    st.sampled_from([";", "\t", "|", ","]),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
)
@settings(max_examples=30)
def test_the_version_is_blind_to_marks_line_ends_delimiters_and_encodings(
    table: tuple[DataContract, list[dict[str, str]]], delimiter: str, newline: str, encoding: str
) -> None:
    contract, rows = table
    order = [column.name for column in contract.columns]
    plain = intake(text_of(rows, order, ",", "\n").encode(), contract)
    form = {"delimiter": delimiter, "encoding": "utf-16" if encoding == "utf-16" else "utf-8"}
    other = text_of(rows, order, delimiter, newline).encode(encoding)
    assert intake(other, contract, files.data_map(contract, form=form)).version == plain.version


@given(tables(), st.data())
@settings(max_examples=30)
def test_one_changed_value_is_another_version(table: tuple[DataContract, list[dict[str, str]]], data: Any) -> None:
    contract, rows = table
    order = [column.name for column in contract.columns]
    before = intake(text_of(rows, order, ",", "\n").encode(), contract).version
    place = data.draw(st.integers(0, len(rows) - 1))
    rows[place]["label"] = {"true": "0", "1": "0", "false": "1", "0": "1"}[rows[place]["label"]]
    assert intake(text_of(rows, order, ",", "\n").encode(), contract).version != before


@given(contracts(), st.data())
def test_clamped_features_stay_within_their_clamp(contract: DataContract, data: Any) -> None:
    encoder = RowEncoder(contract)
    for position, column in enumerate(contract.columns[:-1]):
        clamp = getattr(column, "scaling").clamp  # noqa: B009 (identifiers have none; these columns do)
        if clamp is None or column.type not in ("number", "integer"):
            continue
        value = data.draw(st.floats(-1e300, 1e300, allow_nan=False))
        assert abs(encoder.cell_features(position, value)[0]) <= clamp
