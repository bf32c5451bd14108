"""How given rows are divided among virtual sites, and how their ledger charges."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from federation.errors import InvalidInput
from site_client.virtual_files import RowFiles
from site_client.virtual_ledger import Charged, VirtualLedger
from site_client.virtual_rows import Rows, divide
from site_client.virtual_sites import declared_units


def some_rows(units, held_out_units=()):
    units = np.asarray(units, dtype=np.int64)
    number = np.arange(len(units))
    return Rows(
        features=np.stack([number, number * 2], axis=1).astype(np.float32),
        labels=(number % 2).astype(np.int64),
        units=units,
        held_out=np.isin(units, list(held_out_units)),
    )


def names(count):
    return [f"site-{number}" for number in range(count)]


@given(
    units=st.lists(st.integers(0, 40), min_size=1, max_size=200),
    sites=st.integers(1, 12),
    held_out=st.integers(0, 10),
    seed=st.integers(0, 3),
)
def test_every_row_is_at_one_site_every_unit_whole_and_no_site_has_two_units_more_than_another(
    units, sites, held_out, seed
):
    rows = some_rows(units, held_out_units=range(held_out))
    if rows.units_count(held_out=False) < sites:
        with pytest.raises(InvalidInput) as refusal:
            list(divide(rows, names(sites), seed=seed))
        assert refusal.value.code == "CFD-J17"
        return
    parts = dict(divide(rows, names(sites), seed=seed))
    assert list(parts) == names(sites)
    assert sorted(np.concatenate([part.features[:, 0] for part in parts.values()])) == list(range(len(units)))
    owners = [set(part.units) for part in parts.values()]
    assert sum(map(len, owners)) == len(set(units))
    for side in (False, True):
        counts = [part.units_count(held_out=side) for part in parts.values()]
        assert max(counts) - min(counts) <= 1


def test_rows_keep_their_label_unit_and_side():
    rows = some_rows([3, 1, 1, 0, 2, 2], held_out_units=[1])
    for _, part in divide(rows, names(2), seed=1):
        for place, number in enumerate(part.features[:, 0].astype(int)):
            assert part.features[place, 1] == 2 * number
            assert part.labels[place] == rows.labels[number]
            assert part.units[place] == rows.units[number]
            assert part.held_out[place] == rows.held_out[number]


def test_the_seed_decides_who_gets_what():
    def owners(seed):
        return [tuple(part.units) for _, part in divide(some_rows(range(60)), names(3), seed=seed)]

    assert owners(1) == owners(1)
    assert owners(1) != owners(2)


def test_rows_come_back_from_their_files_site_by_site(tmp_path):
    parts = list(divide(some_rows([0, 0, 1, 2, 2, 3, 4]), names(3), seed=7))
    written = RowFiles.write(tmp_path / "rows", iter(parts))
    for files in (written, RowFiles(tmp_path / "rows")):
        for site, part in parts:
            found = files.site(site)
            for name in ("features", "labels", "units", "held_out"):
                assert getattr(found, name).tobytes() == getattr(part, name).tobytes()
                assert getattr(found, name).dtype == getattr(part, name).dtype
    with pytest.raises(KeyError):
        written.site("nobody")


def test_a_declared_size_has_two_digits_and_counts_training_units_only():
    assert declared_units(some_rows(range(123), held_out_units=range(6))) == 120


def test_a_ledger_gives_what_was_reserved_and_no_step_more():
    charged = Charged()
    ledger = VirtualLedger(charged, train=7, evaluate=1)
    assert [ledger.charge("train", 5), ledger.charge("train", 5), ledger.charge("train", 1)] == [5, 2, 0]
    assert [ledger.charge("evaluate", 1), ledger.charge("evaluate", 1)] == [1, 0]
    assert (charged.train, charged.evaluate) == (7, 1)
    assert (ledger.remaining("train"), ledger.remaining("evaluate")) == (0, 0)
