"""The site's data sets and their versions, as tables of `site.db`.

A data set has a name, a contract, a map, a path and a split, fixed when it is added; a version is what its files held
at one reading, named by its content hash. Versions are only added. A retired data set is opened no more, and its name
is never given again. Each method is one transaction that is on disk when it returns, or did nothing; several processes
may use the file. Which figures other parties may see is decided elsewhere: reports are for the site's people.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Engine,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from federation.contract import DataContract, canonical_bytes, digest, from_canonical
from federation.edge.database import open_engine, read, sqlite_url, transact
from federation.errors import InvalidInput
from site_client.data.data_map import DataMap
from site_client.data.intake import Intake
from site_client.data.source import RawFile
from site_client.migrations import bring_up

METADATA: Final = MetaData()
DATA_SET: Final = Table(
    "data_set",
    METADATA,
    Column("name", String(63), primary_key=True),
    Column("contract", LargeBinary, nullable=False),
    Column("data_map", String, nullable=False),
    Column("path", LargeBinary, nullable=False),
    Column("entity", String(256), nullable=True),
    Column("split", String, nullable=False),
    Column("held_out_public", Boolean, nullable=False),
    Column("same_people_as", String(63), nullable=True),
    Column("epsilon", String(32), nullable=False),
    Column("delta", String(32), nullable=False),
    Column("state", String(16), nullable=False),
    Column("added_us", BigInteger, nullable=False),
)
DATA_VERSION: Final = Table(
    "data_version",
    METADATA,
    Column("name", String(63), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("version", String(64), nullable=False),
    Column("units_declared", BigInteger, nullable=False),
    Column("report", String, nullable=False),
    Column("files", String, nullable=False),
    Column("registered_us", BigInteger, nullable=False),
)

State = Literal["active", "retired"]


@dataclass(frozen=True, slots=True)
class SplitRule:
    """How rows are divided: by the file's `column`, or `share` of the units by the site's keyed hash."""

    column: str | None = None
    share: float = 0.0


@dataclass(frozen=True, slots=True)
class DataSet:
    """A data set as it was added.

    Attributes:
        name: The name under which plans, policies and people speak of it at this site.
        unit: ``entity`` where an entity column is set, else ``record``; what one person's data are here.
        epsilon, delta: The budget that its people were promised when it was added.
    """

    name: str
    contract: DataContract
    data_map: DataMap
    path: Path
    entity: str | None
    split: SplitRule
    held_out_public: bool
    same_people_as: str | None
    epsilon: float
    delta: float
    state: State
    added_us: int

    @property
    def contract_digest(self) -> str:
        """Return the digest of the contract, by which a plan's contract is compared."""
        return digest(self.contract)

    @property
    def unit(self) -> Literal["record", "entity"]:
        """Return whose data one unit is."""
        return "record" if self.entity is None else "entity"


@dataclass(frozen=True, slots=True)
class DataVersion:
    """One reading of a data set. `version` is 64 hex digits; `report` is for the site's own people only."""

    name: str
    number: int
    version: str
    units_declared: int
    report: dict[str, Any]
    files: tuple[RawFile, ...]
    registered_us: int


class Registry:
    """The data sets of one site."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        bring_up(engine)

    @classmethod
    def open(cls, home: Path, *, allow_network_filesystem: bool = False) -> "Registry":
        """Return the registry in ``home/site.db``, made if it isn't there.

        Raises:
            ConfigurationWrong: The database can't be opened.
        """
        url = sqlite_url(home / "site.db")
        return cls(open_engine(url, allow_network_filesystem=allow_network_filesystem))

    def close(self) -> None:
        """Give the database back."""
        self._engine.dispose()

    def add(self, data_set: DataSet, intake: Intake, *, units_declared: int, registered_us: int) -> DataVersion:
        """Add a data set with its first version.

        Raises:
            InvalidInput: The name was given before, also to a data set that is retired; nothing is changed.
        """
        row = {
            "name": data_set.name,
            "contract": canonical_bytes(data_set.contract),
            "data_map": data_set.data_map.model_dump_json(by_alias=True),
            "path": os.fsencode(data_set.path),
            "entity": data_set.entity,
            "split": json.dumps(asdict(data_set.split)),
            "held_out_public": data_set.held_out_public,
            "same_people_as": data_set.same_people_as,
            "epsilon": data_set.epsilon.hex(),
            "delta": data_set.delta.hex(),
            "state": data_set.state,
            "added_us": data_set.added_us,
        }
        version = _version(data_set.name, 1, intake, units_declared, registered_us)

        def work(connection: Any) -> None:
            connection.execute(insert(DATA_SET).values(row))
            connection.execute(insert(DATA_VERSION).values(_version_row(version)))

        try:
            transact(self._engine, work)
        except IntegrityError:
            raise InvalidInput("CFD-D20", f"the name {data_set.name} is taken by another data set") from None
        return version

    def add_version(self, name: str, intake: Intake, *, units_declared: int, registered_us: int) -> DataVersion:
        """Add a version to an active data set and return it; the newest one again if its content is the same.

        Raises:
            InvalidInput: No such data set, or it is retired.
        """
        self._active(name)
        if self.newest(name).version == intake.version:
            return self.newest(name)

        def work(connection: Any) -> DataVersion:
            last = connection.scalar(select(func.max(DATA_VERSION.c.number)).where(DATA_VERSION.c.name == name))
            version = _version(name, last + 1, intake, units_declared, registered_us)
            connection.execute(insert(DATA_VERSION).values(_version_row(version)))
            return version

        return transact(self._engine, work)

    def all(self, *, retired: bool = False) -> list[DataSet]:
        """Return the active data sets by name, with `retired` the retired ones too."""
        with read(self._engine) as connection:
            rows = connection.execute(select(DATA_SET).order_by(DATA_SET.c.name)).mappings().all()
        return [found for row in rows if (found := _data_set(row)).state == "active" or retired]

    def get(self, name: str) -> DataSet:
        """Return the data set called `name`, active or retired.

        Raises:
            InvalidInput: There is none.
        """
        with read(self._engine) as connection:
            row = connection.execute(select(DATA_SET).where(DATA_SET.c.name == name)).mappings().one_or_none()
        if row is None:
            raise InvalidInput("CFD-D20", f"there is no data set {name} here")
        return _data_set(row)

    def newest(self, name: str) -> DataVersion:
        """Return the newest version of a data set.

        Raises:
            InvalidInput: No such data set.
        """
        self.get(name)
        return self.versions(name)[-1]

    def versions(self, name: str) -> list[DataVersion]:
        """Return all versions of a data set, oldest first."""
        query = select(DATA_VERSION).where(DATA_VERSION.c.name == name).order_by(DATA_VERSION.c.number)
        with read(self._engine) as connection:
            rows = connection.execute(query).mappings().all()
        return [_data_version(row) for row in rows]

    def retire(self, name: str) -> DataSet:
        """Let a data set be opened no more, and return it; again is harmless.

        Raises:
            InvalidInput: No such data set.
        """
        self.get(name)
        transact(
            self._engine,
            lambda connection: (
                connection.execute(update(DATA_SET).where(DATA_SET.c.name == name).values(state="retired")).rowcount
            ),
        )
        return self.get(name)

    def _active(self, name: str) -> DataSet:
        found = self.get(name)
        if found.state != "active":
            raise InvalidInput("CFD-D20", f"the data set {name} is retired")
        return found


def _version(name: str, number: int, intake: Intake, units_declared: int, registered_us: int) -> DataVersion:
    report = intake.report.as_json()
    return DataVersion(name, number, intake.version, units_declared, report, intake.files, registered_us)


def _version_row(version: DataVersion) -> dict[str, Any]:
    return {
        "name": version.name,
        "number": version.number,
        "version": version.version,
        "units_declared": version.units_declared,
        "report": json.dumps(version.report),
        "files": json.dumps([asdict(file) for file in version.files]),
        "registered_us": version.registered_us,
    }


def _data_set(row: Any) -> DataSet:
    return DataSet(
        name=row["name"],
        contract=from_canonical(row["contract"]),
        data_map=DataMap.model_validate_json(row["data_map"]),
        path=Path(os.fsdecode(row["path"])),
        entity=row["entity"],
        split=SplitRule(**json.loads(row["split"])),
        held_out_public=row["held_out_public"],
        same_people_as=row["same_people_as"],
        epsilon=float.fromhex(row["epsilon"]),
        delta=float.fromhex(row["delta"]),
        state=row["state"],
        added_us=row["added_us"],
    )


def _data_version(row: Any) -> DataVersion:
    return DataVersion(
        name=row["name"],
        number=row["number"],
        version=row["version"],
        units_declared=row["units_declared"],
        report=json.loads(row["report"]),
        files=tuple(RawFile(**file) for file in json.loads(row["files"])),
        registered_us=row["registered_us"],
    )
