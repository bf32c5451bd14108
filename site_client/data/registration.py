"""Adding, checking and retiring a data set: each act recorded in the site's log before it happens.

The order of adding: `data.opened` is durable, then the files are read, then `data.closed`; if the rows are in order,
the privacy ledger gets population, budget and version, the encoded rows are stored, `data.registered` is durable, and
last the registry shows the data set. A crash between any two leaves a data set that nobody can use and an addition
that can be repeated; it never leaves rows in use that the log or the ledger doesn't know. Counts and paths enter the
log as commitments only.
"""

import secrets
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self

from audit import events
from audit.private import PrivateStore
from audit.recording import record
from federation.contract import DataContract
from federation.edge.clock import Clock
from federation.edge.files import make_folder, read_secret, write_whole
from federation.errors import CheckFailed, ConfideError, ConfigurationWrong, InvalidInput
from privacy.accounting.events import Gaussian
from privacy.errors import PrivacyError
from site_client.budget.registration import NewDataSet
from site_client.budget.store import BudgetStore
from site_client.budget.witnessed import recorded_in
from site_client.data import opt_out
from site_client.data.data_map import DataMap
from site_client.data.definition import Definition, Split, SplitByColumn, SplitByHash
from site_client.data.intake import Intake, find, take_in
from site_client.data.noisy_count import COUNT_NOISE, noisy_count
from site_client.data.prepared import is_sound, remove_rows, replace_rows, store_rows
from site_client.data.registry import DataSet, DataVersion, Registry, SplitRule
from site_client.data.source import Progress, hash_file
from site_client.data.wish import Wish, check_budget, unchanged

NO_VERSION: Final = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
"""The hash of no bytes: names the content of a data set that wasn't read yet."""
SPLIT_KEY: Final = "split.key"
BROKE: Final = "CFD-G01"


@dataclass(frozen=True, slots=True)
class Checked:
    """What `verify` found: `files_same` where every byte is as registered; `rows_made_again` where that was needed."""

    data_set: DataSet
    version: DataVersion
    files_same: bool
    rows_made_again: bool


class DataOffice:
    """The acts on data sets of one home, each with its entries.

    Args:
        home: The site's home, enrolled.
        clock: Wall and monotonic time.
        account: The operating system's account of the person who asks.
        progress: Told what was read.
    """

    def __init__(self, home: Path, *, clock: Clock, account: str, progress: Progress | None = None) -> None:
        if not (home / "audit").is_dir():
            raise ConfigurationWrong(
                "CFD-D24", f"{home} is no site's home yet", hint="run `confide site enrol` first, or give --home DIR"
            )
        self._home = home
        self._clock = clock
        self._account = account
        self._progress = progress
        self._exit = ExitStack()
        self.registry: Final = Registry.open(home)
        self._exit.callback(self.registry.close)
        self._private = PrivateStore(home / "audit", clock=clock, random_bytes=secrets.token_bytes)
        self._exit.callback(self._private.close)
        self._actor = events.Actor(kind="person", id=self._private.pseudonym(account), role="operator", auth="local")

    def close(self) -> None:
        """Give the databases back."""
        self._exit.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- add --------------------------------------------------------------------------------------------------

    def add(self, wish: Wish) -> DataVersion:
        """Add a data set, or a new version of one that has the same contract, entity and split; return the version.

        Raises:
            ConfideError: Refused; the registry, the ledger and the prepared rows are as they were.
        """
        known = self._known(wish)
        definition = self._definition(wish.contract, wish.data_map, wish.entity, wish.split, wish.name)
        before = NO_VERSION if known is None else _hash(self.registry.newest(wish.name).version)
        intake = self._read(wish.name, before, wish.path, definition, mode="intake")
        if known is None:
            self._refuse_known_people(wish, intake)
            return self._first(wish, intake)
        return self._another(known, wish, intake)

    def _known(self, wish: Wish) -> DataSet | None:
        """Return the data set that gets a new version, or None for a new name; refuse what can't be meant."""
        names = {found.name for found in self.registry.all(retired=True)}
        if wish.name not in names:
            check_budget(wish)
            if wish.same_people_as is not None and wish.same_people_as not in names:
                raise InvalidInput("CFD-D20", f"--same-people-as: there is no data set {wish.same_people_as} here")
            return None
        known = self.registry.get(wish.name)
        if known.state != "active":
            raise InvalidInput("CFD-D20", f"the name {wish.name} belongs to a retired data set")
        same = {
            "contract": known.contract == wish.contract,
            "entity": known.entity == wish.entity,
            "split": known.split == wish.split,
            "held-out rows' publicity": known.held_out_public == wish.held_out_public,
            "epsilon": wish.epsilon in (None, known.epsilon),
            "delta": wish.delta in (None, known.delta),
        }
        changed = [name for name, equal in same.items() if not equal]
        if changed:
            raise InvalidInput(
                "CFD-D20",
                f"data set {wish.name} exists with another {', '.join(changed)}",
                hint="a new version keeps all of these; choose another name, or change the budget: `site budget raise`",
            )
        return known

    def _refuse_known_people(self, wish: Wish, intake: Intake) -> None:
        """Refuse a second budget for people who have one here: those of the same rows, or of the same file.

        A retired data set counts too: what was released about its people stays released.
        """
        if wish.same_people_as is not None:
            return
        for known in self.registry.all(retired=True):
            same_rows = any(kept.version == intake.version for kept in self.registry.versions(known.name))
            if same_rows or known.path == wish.path:
                what = "rows" if same_rows else "file"
                raise InvalidInput(
                    "CFD-D20",
                    f"the data set {known.name} has the same {what}, and its people have one privacy budget",
                    hint=f"give --same-people-as {known.name}, so that both draw on it",
                )

    def _first(self, wish: Wish, intake: Intake) -> DataVersion:
        epsilon, delta = float(wish.epsilon or 0), float(wish.delta or 0)
        now_us = self._now_us()
        data_set = DataSet(
            name=wish.name,
            contract=wish.contract,
            data_map=wish.data_map,
            path=wish.path,
            entity=wish.entity,
            split=wish.split,
            held_out_public=wish.held_out_public,
            same_people_as=wish.same_people_as,
            epsilon=epsilon,
            delta=delta,
            state="active",
            added_us=now_us,
        )
        with self._ledger() as store:
            # Already there if an addition was cut off after the ledger knew of it; then it is finished here.
            if wish.name not in store.refresh().versions:
                store.register_data_set(
                    NewDataSet(
                        wish.name,
                        version=NO_VERSION if wish.units == "dp" else _hash(intake.version),
                        contract=wish.contract.name,
                        unit=data_set.unit,
                        epsilon=epsilon,
                        delta=delta,
                        units_declared=1 if wish.units == "dp" else wish.units,
                        declared_by=self._actor.id,
                        entity_column=wish.entity or "",
                        held_out=intake.report.held_out.rows > 0,
                        held_out_public=wish.held_out_public,
                        same_people_as=wish.same_people_as,
                    )
                )
            units = self._declare(store, wish, intake)
            store_rows(self._home, wish.name, intake.version, data_set.contract_digest, intake.prepared)
            self._record(
                events.DataRegistered,
                dataset=_dataset(wish.name, intake.version),
                contract=wish.contract.name,
                budget=_budget_part(store, wish.name, data_set),
                units_declared=units,
                private=self._commitments(records=str(intake.report.rows_read), path=str(wish.path)),
            )
        return self.registry.add(data_set, intake, units_declared=units, registered_us=now_us)

    def _another(
        self, known: DataSet, wish: Wish, intake: Intake, basis: Literal["opted-out"] | None = None
    ) -> DataVersion:
        newest = self.registry.newest(known.name)
        if newest.version == intake.version:
            store_rows(self._home, known.name, intake.version, known.contract_digest, intake.prepared)
            return newest
        with self._ledger() as store:
            units = self._declare(store, wish, intake)
        store_rows(self._home, known.name, intake.version, known.contract_digest, intake.prepared)
        self._record(
            events.DataVersioned,
            dataset=_dataset(known.name, intake.version),
            previous=_hash(newest.version),
            units_declared=units,
            basis=basis,
            private=self._commitments(records=str(intake.report.rows_read)),
        )
        return self.registry.add_version(known.name, intake, units_declared=units, registered_us=self._now_us())

    def _declare(self, store: BudgetStore, wish: Wish, intake: Intake) -> int:
        """Have the version in the ledger, and return its declared number of units.

        The number is the operator's, or a noisy count of the units for training that is charged before it is made.
        """
        newest = store.refresh().versions[wish.name][-1]
        if newest.version == _hash(intake.version):
            return newest.units_declared
        units = wish.units if wish.units != "dp" else self._noisy_count(store, wish, intake)
        declared_by = "a count with noise" if wish.units == "dp" else self._actor.id
        store.add_dataset_version(
            wish.name, version=_hash(intake.version), units_declared=units, declared_by=declared_by
        )
        return units

    def _noisy_count(self, store: BudgetStore, wish: Wish, intake: Intake) -> int:
        try:
            store.charge(
                f"{wish.name}/units/{secrets.token_hex(8)}",
                wish.name,
                Gaussian(noise_multiplier=float(COUNT_NOISE)),
                purpose="number of units",
            )
        except PrivacyError as problem:
            self._record(
                events.BudgetExhausted,
                decision="refused",
                code=problem.code,
                cause=problem.cause,
                dataset=_dataset(wish.name, intake.version),
                budget=_budget_part(store, wish.name, None),
            )
            raise
        self._record(
            events.BudgetCharged,
            dataset=_dataset(wish.name, intake.version),
            budget=_budget_part(store, wish.name, None),
            kind="single",
        )
        return noisy_count(intake.report.train.units)

    # --- opt out ----------------------------------------------------------------------------------------------

    def opt_out(self, name: str, people: list[str]) -> DataVersion:
        """Make a version without the rows of `people`, take the earlier ones away, and return the newest version.

        The list grows first, so that no version made from then on has their rows, whatever happens next; after a
        refusal or a crash the same call finishes it. Where no row is theirs the version stays.

        Args:
            name: The data set; it has an entity column.
            people: Ids as they stand in that column.

        Raises:
            InvalidInput: The rows don't say whose they are, or the files break the contract; the list has grown then.
        """
        data_set = self._active(name)
        if data_set.entity is None:
            raise InvalidInput(
                "CFD-D26",
                f"the rows of data set {name} don't say whose they are",
                hint="take the rows out of the files and run `confide site data add` again",
            )
        opted = opt_out.read(self._home, name, split_key(self._home)).with_people(people)
        opt_out.keep(self._home, name, opted)
        newest = self.registry.newest(name)
        definition = self._definition(data_set.contract, data_set.data_map, data_set.entity, data_set.split, name)
        intake = self._read(name, _hash(newest.version), data_set.path, definition, mode="intake")
        if intake.version != newest.version:
            wish = unchanged(data_set, newest)
            newest = self._another(data_set, wish, intake, basis="opted-out")
        earlier = [one.version for one in self.registry.versions(name) if one.version != newest.version]
        replace_rows(self._home, name, earlier)
        return newest

    # --- verify, retire ---------------------------------------------------------------------------------------

    def verify(self, name: str) -> Checked:
        """Compare the files with the newest version, make damaged prepared rows again, and return what was found.

        Raises:
            CheckFailed: The content differs from the version (CFD-D21); the version and its prepared rows stay.
        """
        data_set = self._active(name)
        version = self.registry.newest(name)
        definition = self._definition(data_set.contract, data_set.data_map, data_set.entity, data_set.split, name)
        opened = self._open(name, _hash(version.version), "verify")
        sound = is_sound(self._home, name, version.version)
        try:
            parts = find(data_set.path, definition)
            files_same = tuple(hash_file(part) for part in parts) == version.files
            intake = None if files_same and sound else take_in(parts, definition, self._progress)
        except ConfideError as fault:
            self._close(opened, name, _hash(version.version), code=fault.code)
            self._verified(name, version.version, same=False)
            raise CheckFailed("CFD-D21", f"data set {name} can't be read as registered: {fault.message}") from None
        self._close(opened, name, _hash(version.version))
        same = intake is None or intake.version == version.version
        if same and intake is not None:
            store_rows(self._home, name, version.version, data_set.contract_digest, intake.prepared)
        self._verified(name, version.version, same=same)
        if not same:
            raise CheckFailed(
                "CFD-D21", f"the rows of data set {name} differ from version {version.number} ({version.version[:12]})"
            )
        return Checked(data_set, version, files_same, rows_made_again=not sound)

    def retire(self, name: str) -> DataSet:
        """Let a data set be opened no more, and remove its prepared rows; the budget's history stays."""
        data_set = self._active(name)
        version = self.registry.newest(name)
        self._record(events.DataRetired, dataset=_dataset(name, version.version))
        self.registry.retire(name)
        remove_rows(self._home, name)
        return data_set

    # --- what the acts share ----------------------------------------------------------------------------------

    def _active(self, name: str) -> DataSet:
        found = self.registry.get(name)
        if found.state != "active":
            raise InvalidInput("CFD-D20", f"the data set {name} is retired")
        return found

    def _definition(
        self, contract: DataContract, data_map: DataMap, entity: str | None, rule: SplitRule, name: str
    ) -> Definition:
        key = split_key(self._home)
        split: Split = SplitByColumn(rule.column) if rule.column is not None else SplitByHash(rule.share, key)
        opted = opt_out.read(self._home, name, key)
        return Definition(contract, data_map, entity, split, order_key=key, opt_outs=opted)

    def _read(self, name: str, before: str, path: Path, definition: Definition, *, mode: str) -> Intake:
        """Read the files between `data.opened` and `data.closed`."""
        opened = self._open(name, before, mode)
        code: str | None = BROKE
        records: int | None = None
        try:
            intake = take_in(find(path, definition), definition, self._progress)
            records, code = intake.report.rows_read, None
        except ConfideError as problem:
            code = problem.code
            raise
        finally:
            self._close(opened, name, before, records, code=code)
        return intake

    def _open(self, name: str, version: str, mode: str) -> int:
        return self._record(events.DataOpened, dataset=events.Dataset(id=name, version=version), mode=mode)

    def _close(
        self, opened: int, name: str, version: str, records: int | None = None, *, code: str | None = None
    ) -> None:
        private = None if records is None else self._commitments(records=str(records))
        self._record(
            events.DataClosed,
            decision="allowed" if code is None else "failed",
            code=code,
            opened=opened,
            dataset=events.Dataset(id=name, version=version),
            private=private,
        )

    def _verified(self, name: str, version: str, *, same: bool) -> None:
        self._record(
            events.DataVerified,
            decision="allowed" if same else "failed",
            code=None if same else "CFD-D21",
            dataset=_dataset(name, version),
        )

    def _record(self, draft: Callable[..., events.Draft], *, decision: str = "allowed", **fields: Any) -> int:
        event_id = events.new_event_id(self._clock, secrets.token_bytes)
        entry = draft(id=event_id, decision=decision, actor=self._actor, **fields)
        index, _ = record(self._home / "audit", entry, clock=self._clock)
        return index

    def _commitments(self, **values: str) -> dict[str, str]:
        return {name: self._private.commit(name, value) for name, value in values.items()}

    def _ledger(self) -> "_OpenLedger":
        return _OpenLedger(self._home, self._clock)

    def _now_us(self) -> int:
        return int(self._clock.now().timestamp() * 1_000_000)


class _OpenLedger:
    """The privacy ledger for the time of one act."""

    def __init__(self, home: Path, clock: Clock) -> None:
        self._store = BudgetStore.open(home / "ledger.db", clock=clock, actor="operator")
        self._store.hold_to(lambda: recorded_in(home))

    def __enter__(self) -> BudgetStore:
        return self._store

    def __exit__(self, *_: object) -> None:
        self._store.close()


def split_key(home: Path) -> bytes:
    """Return the site's secret key of the division into training and held-out units, made at its first use.

    One key serves all data sets, so a person is on the same side in each of them. The order of an entity's rows has
    the same key and a domain of its own.
    """
    path = home / "keys" / SPLIT_KEY
    if not path.exists():
        make_folder(path.parent)
        write_whole(path, secrets.token_bytes(32), replace=False)
    return read_secret(path)


def _hash(version: str) -> str:
    return f"sha256:{version}"


def _dataset(name: str, version: str) -> events.Dataset:
    return events.Dataset(id=name, version=_hash(version))


def _budget_part(store: BudgetStore, name: str, data_set: DataSet | None) -> events.Budget:
    """Return the budget of a data set as the log writes it: what was promised, and what is spent and left."""
    part = store.data_set_part(name)
    if data_set is None:
        part["eps_nano"] = part["total_eps_nano"]
    return events.Budget.model_validate(part)
