"""What this version can't read is refused by content, in one sentence, with the way out; folders stay untouched."""

import os
from pathlib import Path

import pytest

from tests.support import data_files as files

PIXELS = bytes(64)
FOREIGN = {
    "scan.dcm": (bytes(128) + b"DICM" + PIXELS, "a DICOM object"),
    "renamed.png": (bytes(128) + b"DICM" + PIXELS, "a DICOM object"),
    "old.dcm": (b"\x08\x00\x05\x00CS\x0a\x00ISO_IR 100" + PIXELS, "a DICOM object"),
    "image.csv": (b"\x89PNG\r\n\x1a\n" + PIXELS, "a PNG image"),
    "photo.csv": (b"\xff\xd8\xff\xe0" + PIXELS, "a JPEG image"),
    "slide.csv": (b"II*\x00" + PIXELS, "a TIFF image"),
    "book.csv": (b"PK\x03\x04" + PIXELS, "an Excel workbook"),
    "old.csv": (b"\xd0\xcf\x11\xe0" + PIXELS, "an old Excel workbook"),
    "packed.csv": (b"\x1f\x8b\x08" + PIXELS, "compressed with gzip"),
    "lines.jsonl": (b'{"age": 3, "label": 1}\n', "JSON"),
    "lines.csv": (b'{"age": 3, "label": 1}\n', "JSON"),
    "base.csv": (b"SQLite format 3\x00" + PIXELS, "an SQLite database"),
}


@pytest.mark.parametrize("name", sorted(FOREIGN))
def test_a_file_of_another_kind_is_refused_by_its_content(tmp_path: Path, name: str) -> None:
    content, kind = FOREIGN[name]
    error = files.refusal(files.write(tmp_path / name, content), files.blood())
    assert error.code == "CFD-D11"
    assert kind in error.message
    assert "this version reads CSV" in error.hint


def test_a_folder_of_images_is_refused_with_what_is_supported(tmp_path: Path) -> None:
    for place in ("normal", "malignant"):
        (tmp_path / place).mkdir()
        files.write(tmp_path / place / "a.png", b"\x89PNG" + PIXELS)
    files.write(tmp_path / "normal" / ".DS_Store", b"\x00")
    files.write(tmp_path / "normal" / "Thumbs.db", b"\x00")
    error = files.refusal(tmp_path, files.blood())
    assert "2 files are not .csv" in error.message
    assert "Parquet" in error.hint


def test_a_csv_file_declared_as_parquet_is_refused(tmp_path: Path) -> None:
    path = files.write(tmp_path / "a.parquet", files.csv_text(files.blood_rows()))
    error = files.refusal(path, files.blood(), files.data_map(files.blood(), format={"kind": "parquet"}))
    assert "no Parquet file" in error.message


def test_nothing_there_an_empty_folder_and_a_pipe_are_told_apart(tmp_path: Path) -> None:
    assert "No such file" in files.refusal(tmp_path / "gone.csv", files.blood()).message
    assert "the folder holds no .csv" in files.refusal(tmp_path, files.blood()).message
    os.mkfifo(tmp_path / "pipe")
    assert "neither a file nor a folder" in files.refusal(tmp_path / "pipe", files.blood()).message


def test_reading_leaves_a_folder_as_it_was(tmp_path: Path) -> None:
    files.write(tmp_path / "a.csv", files.csv_text(files.blood_rows()))
    before = [(place.name, place.stat().st_mtime_ns) for place in sorted(tmp_path.iterdir())]
    tmp_path.chmod(0o500)
    try:
        files.read(tmp_path, files.blood())
    finally:
        tmp_path.chmod(0o700)
    assert [(place.name, place.stat().st_mtime_ns) for place in sorted(tmp_path.iterdir())] == before
