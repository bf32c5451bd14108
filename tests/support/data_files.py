"""Contracts, maps and small files for tests of reading data, with only what matters to a test."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from federation.contract import DataContract
from federation.errors import InvalidInput
from site_client.data.data_map import DataMap, plain_map
from site_client.data.definition import Definition, Split, SplitByHash
from site_client.data.intake import Intake, find, take_in
from site_client.data.registry import SplitRule
from site_client.data.wish import Wish

KEY = b"k" * 32
BLOOD_COLUMNS: list[dict[str, Any]] = [
    {"name": "patient_id", "type": "text-id"},
    {"name": "age", "type": "integer", "range": [0, 120]},
    {"name": "sex", "type": "category", "categories": ["M", "F"]},
    {"name": "hb_g_dl", "type": "number"},
    {"name": "crea_mg_dl", "type": "number"},
    {"name": "label", "type": "integer", "range": [0, 1], "missing": {"rule": "drop-row"}},
]
BLOOD_HEADER = "patient_id,age,sex,hb_g_dl,crea_mg_dl,label"


def contract(columns: list[dict[str, Any]], label: Any = "label", **fields: Any) -> DataContract:
    """Return a contract with `columns` whose label column's value 1 is positive, unless `label` is a label rule."""
    rule = {"column": label, "positive": ["1"]} if isinstance(label, str) else label
    document = {
        "apiVersion": "confide/v1",
        "kind": "DataContract",
        "name": "blood/v1",
        "columns": columns,
        "label": rule,
        **fields,
    }
    return DataContract.model_validate_json(json.dumps(document))


def blood(**fields: Any) -> DataContract:
    """Return the contract of the blood counts."""
    return contract(BLOOD_COLUMNS, **fields)


def data_map(for_contract: DataContract, **fields: Any) -> DataMap:
    """Return a map with `fields`; `form` is its format."""
    if "form" in fields:
        fields["format"] = {"kind": "csv", **fields.pop("form")}
    document = {"apiVersion": "confide/v1", "kind": "DataMap", "contract": for_contract.name, **fields}
    return DataMap.model_validate_json(json.dumps(document))


def read(
    path: Path,
    for_contract: DataContract,
    mapping: DataMap | None = None,
    *,
    entity: str | None = None,
    split: Split | None = None,
    order_key: bytes | None = None,
) -> Intake:
    """Return the intake of the files at `path`."""
    definition = Definition(
        for_contract, mapping or plain_map(for_contract), entity, split or SplitByHash(share=0.2, key=KEY), order_key
    )
    return take_in(find(path, definition), definition)


def refusal(*arguments: Any, **options: Any) -> InvalidInput:
    """Return the error of an intake that must be refused."""
    with pytest.raises(InvalidInput) as caught:
        read(*arguments, **options)
    return caught.value


def blood_rows(count: int = 40) -> list[list[str]]:
    """Return rows of blood counts, both classes among them."""
    return [
        [f"P{i:05d}", str(20 + i % 60), "MF"[i % 2], f"{9 + i % 9}.{i % 10}", f"0.{51 + i % 40}", str(i % 3 % 2)]
        for i in range(1, count + 1)
    ]


def csv_text(rows: list[list[str]], header: str = BLOOD_HEADER) -> str:
    """Return a plain CSV file of `rows`."""
    return "\n".join([header, *(",".join(row) for row in rows)]) + "\n"


def write(path: Path, content: str | bytes) -> Path:
    """Write `content` to `path`, text as UTF-8 without changing its line ends, and return `path`."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return path


def blood_wish(path: Path, **changes: Any) -> Wish:
    """Return the wish to add the blood counts at `path`, with `changes`."""
    plain = Wish(
        name="blood",
        path=path,
        contract=blood(),
        data_map=plain_map(blood()),
        entity=None,
        units=40,
        same_people_as=None,
        split=SplitRule(share=0.25),
        held_out_public=False,
        epsilon=2.0,
        delta=1e-3,
    )
    return replace(plain, **changes)
