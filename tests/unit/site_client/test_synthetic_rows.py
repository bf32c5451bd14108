"""Rows that nobody has: deterministic, within the contract, and with something to learn."""

import json

import numpy as np
import pytest

from federation.contract import DataContract, feature_names, width
from site_client.synthetic_rows import SyntheticRows


def a_contract(**changes):
    fields = {
        "apiVersion": "confide/v1",
        "kind": "DataContract",
        "name": "made-up/v1",
        "columns": [
            {"name": "who", "type": "text-id"},
            {"name": "age", "type": "integer", "range": [18, 99]},
            {"name": "pressure", "type": "number", "range": [0, 350], "scaling": {"centre": 130, "scale": 20}},
            {"name": "open", "type": "number"},
            {"name": "smoker", "type": "boolean"},
            {"name": "pain", "type": "category", "categories": ["none", "some"], "other": "else"},
            {
                "name": "seen",
                "type": "date",
                "encoding": "days",
                "origin": "2020-01-01",
                "range": ["2020-01-01", "2020-12-31"],
            },
            {"name": "gap", "type": "number", "range": [0, 1], "missing": {"rule": "indicator", "value": 0.5}},
            {"name": "ill", "type": "boolean"},
        ],
        "label": {"column": "ill", "positive": ["true"]},
        "entity": "who",
        **changes,
    }
    return DataContract.model_validate_json(json.dumps(fields))


def rows(contract=None, *, seed=7, site="site-1", train=300, held_out=100, entities=False):
    made = SyntheticRows(contract or a_contract(), seed=seed, entities=entities)
    return made.of(site, train=train, held_out=held_out)


def column(found, name):
    return found.features[:, feature_names(a_contract()).index(name)]


def test_the_same_contract_seed_and_site_give_the_same_rows():
    first, again = rows(), rows()
    assert first.features.tobytes() == again.features.tobytes()
    assert first.labels.tobytes() == again.labels.tobytes()


@pytest.mark.parametrize("change", [{"seed": 8}, {"site": "site-2"}, {"contract": a_contract(title="another")}])
def test_another_seed_site_or_contract_gives_other_rows(change):
    assert rows().features.tobytes() != rows(**change).features.tobytes()


def test_values_stay_within_the_contract():
    found = rows()
    assert found.features.shape == (400, width(a_contract()))
    assert np.isfinite(found.features).all()
    assert column(found, "age").min() >= 18
    assert column(found, "age").max() <= 99
    assert set(column(found, "age")) == set(np.floor(column(found, "age")))
    assert np.abs(column(found, "pressure")).max() <= 2.0  # within two scales of the centre
    assert np.abs(column(found, "open")).max() <= 2.0
    assert set(column(found, "smoker")) == {0.0, 1.0}
    assert column(found, "seen").min() >= 0
    assert column(found, "seen").max() <= 365
    assert not column(found, "gap missing").any()


def test_every_level_of_a_category_occurs_and_exactly_one_at_a_time():
    found = rows()
    levels = np.stack([column(found, f"pain={level}") for level in ("none", "some", "else")])
    assert (levels.sum(axis=0) == 1).all()
    assert levels.sum(axis=1).min() > 60


def test_a_range_far_from_the_centre_wins_over_the_scale():
    far = a_contract(
        columns=[
            {"name": "x", "type": "number", "range": [10, 11], "scaling": {"centre": 100, "scale": 1}},
            {"name": "n", "type": "integer", "range": [3, 3]},
            {"name": "day", "type": "date", "encoding": "days", "origin": "2020-01-01"},
            {"name": "ill", "type": "boolean"},
        ],
        entity=None,
    )
    found = rows(far)
    assert found.features[:, 0].min() >= -90
    assert found.features[:, 0].max() <= -89
    assert set(found.features[:, 1]) == {3.0}
    assert found.features[:, 2].min() >= 0
    assert found.features[:, 2].max() <= 3650


def a_linear_guess(known, asked, classes):
    """Least squares on one site's rows, right how often on another's."""
    scale = np.where(known.features.std(axis=0) > 0, known.features.std(axis=0), 1)

    def design(found):
        standard = (found.features - known.features.mean(axis=0)) / scale
        return np.hstack([standard, np.ones((len(standard), 1))])

    wanted = np.eye(classes)[known.labels]
    fitted, *_ = np.linalg.lstsq(design(known), wanted, rcond=None)
    return float(np.mean(np.argmax(design(asked) @ fitted, axis=1) == asked.labels))


def test_what_one_site_learns_holds_at_another():
    assert a_linear_guess(rows(), rows(site="site-2"), 2) > 0.75


def test_several_classes_all_occur_and_can_be_learnt():
    several = a_contract(
        columns=[
            *a_contract().model_dump(mode="json", by_alias=True)["columns"][1:5],
            {"name": "grade", "type": "category", "categories": ["a", "b", "c"]},
        ],
        label={"column": "grade", "classes": ["a", "b", "c"]},
        entity=None,
    )
    found = rows(several)
    assert set(found.labels) == {0, 1, 2}
    assert a_linear_guess(found, rows(several, site="site-2"), 3) > 0.6


def test_a_record_is_one_row_and_the_held_out_ones_are_as_many_as_asked():
    found = rows(train=30, held_out=10)
    assert found.units.tolist() == list(range(40))
    assert (found.units_count(held_out=False), found.units_count(held_out=True)) == (30, 10)


def test_an_entity_has_one_to_three_rows_all_on_one_side():
    found = rows(train=60, held_out=20, entities=True)
    assert set(np.bincount(found.units)) == {1, 2, 3}
    assert (found.units_count(held_out=False), found.units_count(held_out=True)) == (60, 20)
    assert ((found.units >= 60) == found.held_out).all()
