"""The data contract: what it refuses, its canonical bytes, and its features."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pydantic import ValidationError

from federation import canonical
from federation.contract import (
    DataContract,
    canonical_bytes,
    digest,
    feature_names,
    from_canonical,
    width,
)
from federation.edge.documents import parse_yaml, read_document
from tests.support import data_files as files

DEMO = Path("deploy/demo/contract.yaml")
LABEL = {"name": "label", "type": "integer"}


def problem(columns: list[dict[str, Any]], **fields: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        files.contract(columns, **fields)
    return str(caught.value)


def test_the_demo_has_the_thirteen_features_of_fed_heart_disease() -> None:
    contract = read_document(DEMO, DataContract)
    assert width(contract) == 13
    assert feature_names(contract) == (
        "age", "sex", "cp=2", "cp=3", "cp=4", "trestbps", "chol", "fbs", "restecg=1", "restecg=2", "thalach", "exang",
        "oldpeak",
    )  # fmt: skip


def test_the_demo_scales_by_the_public_constants() -> None:
    contract = read_document(DEMO, DataContract)
    found = {
        column.name: (column.scaling.centre, column.scaling.scale, column.scaling.clamp)
        for column in contract.columns
        if column.type != "text-id" and column.name != "disease"
    }
    half = (0.5, 0.5, None)
    assert found == {
        "age": (55, 10, 4), "sex": half, "cp": half, "trestbps": (130, 20, 4), "chol": (200, 100, 4), "fbs": half,
        "restecg": half, "thalach": (140, 25, 4), "exang": half, "oldpeak": (1, 1, 4),
    }  # fmt: skip


def test_canonical_bytes_come_back_as_the_same_contract() -> None:
    contract = read_document(DEMO, DataContract)
    assert from_canonical(canonical_bytes(contract)) == contract
    assert digest(from_canonical(canonical_bytes(contract))) == digest(contract)


def test_bytes_that_are_canonical_and_leave_a_default_out_are_refused() -> None:
    value = canonical.decode(canonical_bytes(read_document(DEMO, DataContract)))
    del value["title"]
    with pytest.raises(canonical.NotCanonical):
        from_canonical(canonical.encode(value))


def test_a_category_that_looks_like_a_number_stays_text_in_canonical_bytes() -> None:
    column = {
        "name": "cp",
        "type": "category",
        "categories": ["1", "02", "x"],
        "missing": {"rule": "impute", "value": "02"},
    }
    contract = files.contract([column, LABEL])
    assert from_canonical(canonical_bytes(contract)) == contract


def test_one_changed_constant_changes_the_digest() -> None:
    text = DEMO.read_text("utf-8")
    changed = json.loads(json.dumps(parse_yaml(text.replace("scale: 25", "scale: 25.5").encode()).value))
    assert digest(DataContract.model_validate_json(json.dumps(changed))) != digest(read_document(DEMO, DataContract))


def test_minus_zero_is_zero() -> None:
    columns = [{"name": "a", "type": "number", "scaling": {"centre": zero}} for zero in (0.0, -0.0)]
    assert digest(files.contract([columns[0], LABEL])) == digest(files.contract([columns[1], LABEL]))


def test_label_and_entity_are_never_features() -> None:
    columns = [
        {"name": "who", "type": "text-id"},
        {"name": "age", "type": "integer"},
        {"name": "kind", "type": "category", "categories": ["a", "b"]},
    ]
    contract = files.contract(columns, label={"column": "kind", "positive": ["b"]}, entity="who")
    assert feature_names(contract) == ("age",)


def test_indicators_and_an_other_category_have_their_place() -> None:
    columns = [
        {"name": "a", "type": "number", "missing": {"rule": "indicator", "value": 3}},
        {"name": "b", "type": "category", "categories": ["x", "y"], "other": "else"},
        LABEL,
    ]
    assert feature_names(files.contract(columns)) == ("a", "a missing", "b=x", "b=y", "b=else")


def test_categories_may_be_written_as_whole_numbers() -> None:
    contract = files.contract([{"name": "a", "type": "category", "categories": [1, 2]}, LABEL])
    assert feature_names(contract) == ("a=1", "a=2")


NUMBER = {"name": "a", "type": "number"}
CATEGORY = {"name": "a", "type": "category", "categories": ["x", "y"]}
WRONG: dict[str, tuple[list[dict[str, Any]], dict[str, Any], str]] = {
    "range": ([{**NUMBER, "range": [3, 2]}, LABEL], {}, "the range ends before it begins"),
    "scale": ([{**NUMBER, "scaling": {"scale": 0}}, LABEL], {}, "greater than 0"),
    "not finite": ([{**NUMBER, "scaling": {"centre": "nan"}}, LABEL], {}, "valid number"),
    "constant of another type": ([{**NUMBER, "missing": {"rule": "impute", "value": "x"}}, LABEL], {}, "doesn't fit"),
    "constant without rule": ([{**NUMBER, "missing": {"rule": "drop-row", "value": 1}}, LABEL], {}, "belongs to them"),
    "rule without constant": ([{**NUMBER, "missing": {"rule": "impute"}}, LABEL], {}, "belongs to them"),
    "constant of no category": ([{**CATEGORY, "missing": {"rule": "impute", "value": "z"}}, LABEL], {}, "doesn't fit"),
    "equal categories": ([{**CATEGORY, "categories": ["x", "X"], "case": "ignore"}, LABEL], {}, "are the same"),
    "only category dropped": ([{**CATEGORY, "categories": ["x"], "first_level": "dropped"}, LABEL], {}, "without the"),
    "column twice": ([NUMBER, NUMBER, LABEL], {}, "column a is declared twice"),
    "no label column": ([NUMBER], {}, "label column label isn't among"),
    "no entity column": ([NUMBER, LABEL], {"entity": "who"}, "entity column who isn't among"),
    "entity as feature": ([NUMBER, {"name": "b", "type": "integer"}, LABEL], {"entity": "b"}, "encoding: none"),
    "label is a number": ([NUMBER, {"name": "b", "type": "integer"}], {"label": "a"}, "category, an integer or a bool"),
    "label value unknown": ([NUMBER, CATEGORY | {"name": "k"}], {"label": "k"}, "'1' is not a value of column k"),
    "imputed label": (
        [NUMBER, {**LABEL, "missing": {"rule": "impute", "value": 1}}],
        {},
        "a missing label can't be imputed",
    ),
    "two label rules": (
        [NUMBER, LABEL],
        {"label": {"column": "label", "positive": [1], "classes": [0, 1]}},
        "a label has either `positive`",
    ),
    "no feature": ([LABEL], {}, "encode to 0 features"),
    "days without origin": ([{"name": "d", "type": "date", "encoding": "days"}, NUMBER, LABEL], {}, "`origin` belongs"),
    "no such day": ([{"name": "d", "type": "date", "range": ["2021-02-30", "2021-03-01"]}, NUMBER, LABEL], {}, "day"),
    "imputed identifier": (
        [{"name": "i", "type": "text-id", "missing": {"rule": "impute", "value": "x"}}, NUMBER, LABEL],
        {},
        "an identifier can't be imputed",
    ),
    "line break in a title": ([{**NUMBER, "title": "a\nb"}, LABEL], {}, "pattern"),
    "name of a contract": ([NUMBER, LABEL], {"name": "Heart"}, "pattern"),
}


@pytest.mark.parametrize("case", sorted(WRONG))
def test_a_contract_that_contradicts_itself_is_refused(case: str) -> None:
    columns, fields, expected = WRONG[case]
    assert expected in problem(columns, **fields)


def test_the_json_schema_accepts_the_demo_and_refuses_an_unknown_key() -> None:
    schema = DataContract.model_json_schema()
    document = parse_yaml(DEMO.read_bytes()).value
    document["label"]["positive"] = [str(value) for value in document["label"]["positive"]]
    jsonschema.validate(document, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**document, "columnz": []}, schema)
