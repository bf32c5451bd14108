"""Adding, checking and retiring data sets: what is recorded, in which order, and what a refusal leaves behind."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from federation.edge.clock import SystemClock
from federation.errors import CheckFailed, ConfigurationWrong, InvalidInput
from privacy.errors import PrivacyError
from site_client.budget.store import BudgetStore
from site_client.data.noisy_count import noisy_count, two_digits
from site_client.data.prepared import FOLDER, load_rows
from site_client.data.registration import NO_VERSION, DataOffice, split_key
from site_client.data.registry import SplitRule
from tests.support import data_files as files
from tests.support import site_homes
from tests.support.audit_logs import bytes_of


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return site_homes.make(tmp_path / "home")


@pytest.fixture
def office(home: Path) -> Iterator[DataOffice]:
    with DataOffice(home, clock=SystemClock(), account="alice") as opened:
        yield opened


@pytest.fixture
def blood(tmp_path: Path) -> Path:
    return files.write(tmp_path / "blood.csv", files.csv_text(files.blood_rows()))


wish = files.blood_wish


def ledger(home: Path) -> BudgetStore:
    return BudgetStore.open(home / "ledger.db", clock=SystemClock())


def test_opening_is_recorded_before_reading_and_registration_after_the_ledger(
    home: Path, office: DataOffice, blood: Path
) -> None:
    version = office.add(wish(blood))
    opened, closed, registered = site_homes.events(home)
    assert [opened["action"], closed["action"], registered["action"]] == [
        "data.opened",
        "data.closed",
        "data.registered",
    ]
    assert (opened["mode"], opened["dataset"]["version"]) == ("intake", NO_VERSION)
    assert closed["opened"] == opened["index"]
    assert registered["dataset"] == {"id": "blood", "version": f"sha256:{version.version}"}
    store = ledger(home)
    assert store.show("blood").version == f"sha256:{version.version}"
    assert registered["budget"]["head"]["hash"] == f"sha256:{store.head().hash}"
    assert registered["budget"]["eps_nano"] == 2_000_000_000
    store.close()


def test_no_count_no_path_and_no_name_of_a_person_stands_in_the_log(
    home: Path, office: DataOffice, blood: Path
) -> None:
    office.add(wish(blood))
    log = bytes_of(home / "audit")
    assert b"blood.csv" not in log
    assert b"alice" not in log
    registered = site_homes.events(home)[-1]
    assert sorted(registered["private"]) == ["path", "records"]
    assert all(value.startswith("c1:") for value in registered["private"].values())
    assert registered["actor"]["id"].startswith("p1:")


def test_a_refused_file_is_opened_and_closed_in_the_log_and_leaves_nothing_else(home: Path, office: DataOffice) -> None:
    bad = files.write(home.parent / "bad.csv", files.csv_text([["P1", "x", "M", "1", "1", "1"]]))
    with pytest.raises(InvalidInput, match="is not a number"):
        office.add(wish(bad))
    assert site_homes.actions(home) == ["data.opened", "data.closed"]
    closed = site_homes.events(home)[-1]
    assert (closed["decision"], closed["code"][:5]) == ("failed", "CFD-D")
    assert office.registry.all() == []
    assert not (home / FOLDER).exists()
    assert not (home / "ledger.db").exists()


def test_a_home_without_a_log_reads_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationWrong) as caught:
        DataOffice(tmp_path, clock=SystemClock(), account="alice")
    assert caught.value.exit_status == 78
    assert list(tmp_path.iterdir()) == []


def test_files_of_the_home_are_private(home: Path, office: DataOffice, blood: Path) -> None:
    office.add(wish(blood))
    for place in [*(home / FOLDER).rglob("*"), home / "keys" / "split.key", home / "site.db", home / "ledger.db"]:
        assert place.stat().st_mode & 0o077 == 0, place


def test_the_same_files_again_are_the_same_version_and_new_rows_a_new_one(
    home: Path, office: DataOffice, blood: Path
) -> None:
    first = office.add(wish(blood))
    assert office.add(wish(blood, epsilon=None, delta=None)) == first
    files.write(blood, files.csv_text(files.blood_rows(60)))
    second = office.add(wish(blood, epsilon=None, delta=None, units=60))
    assert (second.number, second.units_declared) == (2, 60)
    assert office.registry.newest("blood") == second
    versioned = site_homes.events(home)[-1]
    assert versioned["action"] == "data.versioned"
    assert versioned["previous"] == f"sha256:{first.version}"
    store = ledger(home)
    assert store.show("blood").units_declared == 60
    assert [policy.epsilon for policy in store.show("blood").policies if policy.use == "train"] == [2.0]
    store.close()


def test_a_new_version_keeps_each_unit_on_its_side(home: Path, office: DataOffice, blood: Path) -> None:
    first = office.add(wish(blood))
    files.write(blood, files.csv_text(list(reversed(files.blood_rows(60)))))
    second = office.add(wish(blood, epsilon=None, delta=None))
    sides: list[set[tuple[float, ...]]] = []
    for version in (first, second):
        rows = load_rows(home, "blood", version.version).prepared
        sides.append({tuple(row) for row in rows.features[rows.held_out].tolist()})
    assert sides[0] <= sides[1]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"epsilon": 3.0}, "epsilon"),
        ({"delta": 1e-4}, "delta"),
        ({"split": SplitRule(share=0.5)}, "split"),
        ({"entity": "patient_id"}, "entity"),
        ({"contract": files.blood(title="x")}, "contract"),
        ({"held_out_public": True}, "publicity"),
    ],
)
def test_a_version_may_change_rows_only(office: DataOffice, blood: Path, changes: dict[str, Any], word: str) -> None:
    office.add(wish(blood))
    with pytest.raises(InvalidInput, match=f"exists with another {'.*' + word}"):
        office.add(wish(blood, **changes))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"epsilon": None}, "needs --epsilon and --delta"),
        ({"epsilon": float("inf")}, "positive and finite"),
        ({"epsilon": float("nan")}, "positive and finite"),
        ({"epsilon": -1.0}, "positive and finite"),
        ({"delta": 0.0}, "between 0 and 1"),
        ({"delta": 1.0}, "between 0 and 1"),
        ({"delta": 0.025}, "publishes whole people"),
        ({"same_people_as": "nobody"}, "there is no data set nobody"),
    ],
)
def test_a_budget_out_of_range_is_refused_before_a_file_is_opened(
    home: Path, office: DataOffice, blood: Path, changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidInput, match=re.escape(text)):
        office.add(wish(blood, **changes))
    assert site_homes.actions(home) == []


@pytest.mark.parametrize("copied", [True, False])
def test_the_same_people_get_no_second_budget_under_another_name(
    home: Path, office: DataOffice, blood: Path, tmp_path: Path, copied: bool
) -> None:
    office.add(wish(blood))
    office.retire("blood")
    again = tmp_path / "copy.csv" if copied else blood
    again.write_bytes(blood.read_bytes())
    with pytest.raises(InvalidInput, match="blood has the same rows") as refused:
        office.add(wish(again, name="blood-2"))
    assert refused.value.hint == "give --same-people-as blood, so that both draw on it"
    assert "blood-2" not in ledger(home).refresh().versions


def test_a_file_that_changed_gets_no_second_budget_under_another_name(office: DataOffice, blood: Path) -> None:
    office.add(wish(blood))
    lines = blood.read_text(encoding="utf-8").splitlines(keepends=True)
    blood.write_text("".join(lines[:-1]), encoding="utf-8")
    with pytest.raises(InvalidInput, match="blood has the same file"):
        office.add(wish(blood, name="blood-2"))


def test_data_sets_on_the_same_people_share_one_budget(home: Path, office: DataOffice, blood: Path) -> None:
    office.add(wish(blood, entity="patient_id"))
    office.add(wish(blood, name="blood-2", entity="patient_id", same_people_as="blood"))
    store = ledger(home)
    assert store.show("blood").population == store.show("blood-2").population
    store.close()


def test_a_count_that_the_budget_does_not_cover_is_refused_on_the_record(
    home: Path, office: DataOffice, blood: Path
) -> None:
    with pytest.raises(PrivacyError):
        office.add(wish(blood, units="dp", epsilon=1e-3))
    exhausted = site_homes.events(home)[-1]
    assert (exhausted["action"], exhausted["decision"], exhausted["cause"]) == (
        "budget.exhausted", "refused", "DP_BUDGET"
    )  # fmt: skip
    assert exhausted["budget"]["total_eps_nano"] == 0


def test_a_noisy_count_is_charged_and_recorded_before_it_is_told(home: Path, office: DataOffice, blood: Path) -> None:
    version = office.add(wish(blood, units="dp"))
    assert version.units_declared >= 1
    assert version.units_declared == two_digits(version.units_declared)
    assert site_homes.actions(home)[-2:] == ["budget.charged", "data.registered"]
    store = ledger(home)
    figures = store.show("blood")
    assert figures.units_declared == version.units_declared
    assert next(policy.epsilon_spent for policy in figures.policies if policy.use == "train") > 0
    store.close()


def test_a_noisy_count_has_two_digits_and_is_never_below_one() -> None:
    assert [two_digits(number) for number in (1, 9, 99, 104, 105, 1949, 1950, 99_500)] == [
        1, 9, 99, 100, 110, 1900, 2000, 100_000,
    ]  # fmt: skip
    assert all(noisy_count(0) >= 1 for _ in range(20))


def test_an_addition_that_was_cut_off_after_the_ledger_is_finished_by_repeating_it(
    home: Path, office: DataOffice, blood: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(*_: object, **__: object) -> None:
        raise OSError("power cut")

    with monkeypatch.context() as patch:
        patch.setattr("site_client.data.registration.store_rows", cut_off)
        with pytest.raises(OSError, match="power cut"):
            office.add(wish(blood))
    assert office.registry.all() == []
    version = office.add(wish(blood))
    assert office.registry.newest("blood") == version
    assert site_homes.actions(home)[-1] == "data.registered"


def test_verify_tells_same_bytes_same_rows_and_other_rows_apart(home: Path, office: DataOffice, blood: Path) -> None:
    office.add(wish(blood))
    assert office.verify("blood").files_same
    files.write(blood, b"\xef\xbb\xbf" + blood.read_bytes().replace(b"\n", b"\r\n"))
    checked = office.verify("blood")
    assert not checked.files_same
    files.write(blood, files.csv_text(files.blood_rows(39)))
    with pytest.raises(CheckFailed, match="differ from version 1"):
        office.verify("blood")
    assert [event["decision"] for event in site_homes.events(home) if event["action"] == "data.verified"] == [
        "allowed", "allowed", "failed",
    ]  # fmt: skip


def test_verify_says_that_the_files_are_gone(home: Path, office: DataOffice, blood: Path) -> None:
    office.add(wish(blood))
    blood.unlink()
    with pytest.raises(CheckFailed, match="can't be read as registered"):
        office.verify("blood")
    assert site_homes.actions(home)[-2:] == ["data.closed", "data.verified"]


def test_verify_makes_damaged_prepared_rows_again(home: Path, office: DataOffice, blood: Path) -> None:
    version = office.add(wish(blood))
    path = home / FOLDER / "blood" / f"{version.version}.safetensors"
    before = path.read_bytes()
    files.write(path, before[:-1] + bytes([before[-1] ^ 1]))
    with pytest.raises(CheckFailed, match="missing or damaged"):
        load_rows(home, "blood", version.version)
    assert office.verify("blood").rows_made_again
    assert path.read_bytes() == before


def test_a_retired_data_set_is_gone_from_the_list_and_its_name_stays_taken(
    home: Path, office: DataOffice, blood: Path
) -> None:
    office.add(wish(blood))
    office.retire("blood")
    assert office.registry.all() == []
    assert [found.name for found in office.registry.all(retired=True)] == ["blood"]
    assert not (home / FOLDER / "blood").exists()
    for act in (lambda: office.add(wish(blood)), lambda: office.verify("blood"), lambda: office.retire("blood")):
        with pytest.raises(InvalidInput, match="retired"):
            act()
    assert site_homes.actions(home)[-1] == "data.retired"


def test_one_split_key_serves_all_data_sets(home: Path) -> None:
    key = split_key(home)
    assert len(key) == 32
    assert split_key(home) == key


def test_a_split_key_that_others_may_read_is_refused(home: Path) -> None:
    split_key(home)
    (home / "keys" / "split.key").chmod(0o644)
    with pytest.raises(ConfigurationWrong, match="open to other accounts"):
        split_key(home)
