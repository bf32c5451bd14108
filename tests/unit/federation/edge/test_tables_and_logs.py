import io
import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
import structlog

from federation.edge.logs import Log, open_log
from federation.edge.tables import print_record, print_rows, visible


class FixedClock:
    def now(self) -> datetime:
        return datetime(2026, 3, 1, 12, 0, 5, 999, tzinfo=UTC)

    def monotonic_s(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        raise AssertionError("a log line waits for nothing")


@pytest.fixture(autouse=True)
def _undo() -> Iterator[None]:
    """Leave the process's logging as it was for the tests that follow."""
    before = list(logging.getLogger().handlers)
    yield
    logging.captureWarnings(capture=False)
    logging.getLogger().handlers[:] = before
    structlog.reset_defaults()


def lines_of(level: str = "info") -> tuple[Log, io.StringIO]:
    stream = io.StringIO()
    return open_log(level=level, to=stream, clock=FixedClock()), stream


def test_a_line_is_json_with_the_fields_in_their_order() -> None:
    log, stream = lines_of()
    log.info("site.connected", site="st-anna", job="heart-1a2b3c", round=7, ref="aa")
    assert stream.getvalue() == (
        '{"ts": "2026-03-01T12:00:05Z", "level": "info", "event": "site.connected", "job": "heart-1a2b3c", '
        '"round": 7, "site": "st-anna", "ref": "aa"}\n'
    )


def test_fields_that_no_line_has_are_refused() -> None:
    log, stream = lines_of()
    with pytest.raises(TypeError, match="fields that no log line has"):
        log.warning("update.refused", norm="12.5")
    with pytest.raises(ValueError, match="name of an event"):
        log.info("Site st-anna connected")
    assert stream.getvalue() == ""


def test_a_value_can_not_forge_a_line() -> None:
    log, stream = lines_of()
    log.warning("link.refused", site="x\n{}\x1b[2J", code="CFD-L01")
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["site"] == "x\\x0a{}\\x1b[2J"


def test_lines_below_the_level_are_not_written() -> None:
    log, stream = lines_of("warning")
    log.info("a.b")
    log.debug("a.b")
    log.error("a.c")
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["a.c"]


def test_an_unexpected_exception_is_logged_by_its_places_and_not_by_its_text() -> None:
    log, stream = lines_of()
    try:
        int("patient 4711")
    except ValueError as problem:
        reference = log.internal("job.crashed", problem, job="heart-1a2b3c")
    line = json.loads(stream.getvalue())
    assert line["ref"] == reference
    assert line["trace"][0] == "ValueError"
    assert "test_tables_and_logs.py" in line["trace"][1]
    assert "4711" not in stream.getvalue()


def test_a_library_is_reduced_to_where_it_spoke() -> None:
    _, stream = lines_of()
    logging.getLogger("some.library").warning("row %s was odd", "4711")
    line = json.loads(stream.getvalue())
    assert line["event"] == "library.message"
    assert line["reason"].startswith("some.library:")
    assert "4711" not in stream.getvalue()


def test_a_logger_asked_for_by_name_speaks_through_the_same_log() -> None:
    _, stream = lines_of()
    structlog.get_logger("confide.link").info("call refused", code="CFD-L05", secret="s")
    line = json.loads(stream.getvalue())
    assert (line["event"], line["code"]) == ("call refused", "CFD-L05")
    assert "secret" not in line


def test_what_starts_processes_is_told_whatever_the_level_and_a_person_reads_a_sentence() -> None:
    quiet, terminal = io.StringIO(), io.StringIO()
    ready = {"event": "service.ready", "sentence": "ready: link on 0.0.0.0:9443", "address": "0.0.0.0:9443"}
    log = open_log(to=quiet, clock=FixedClock(), level="error")
    log.announce(**ready)
    log.info("site.connected", site="st-anna")
    assert [json.loads(line) for line in quiet.getvalue().splitlines()] == [
        {"ts": "2026-03-01T12:00:05Z", "level": "info", "event": "service.ready", "address": "0.0.0.0:9443"}
    ]
    open_log(to=terminal, clock=FixedClock(), level="error", lines=False).announce(**ready)
    assert terminal.getvalue() == "ready: link on 0.0.0.0:9443\n"


def test_a_terminal_gets_plain_lines() -> None:
    stream = io.StringIO()
    open_log(to=stream, clock=FixedClock(), lines=False).info("site.connected", site="st-anna")
    assert stream.getvalue() == "2026-03-01T12:00:05Z info    site.connected site=st-anna\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("St. Anna, Zürich 東京", "St. Anna, Zürich 東京"),
        ("a\x1b[31mb", "a\\x1b[31mb"),
        ("a\nb\tc\rd\x7f", "a\\x0ab\\x09c\\x0dd\\x7f"),
        ("a\u202eb\u2028c\u200b", "a\\u202eb\\u2028c\\u200b"),
        ("\x9b31m", "\\x9b31m"),
        ("\U000e0041", "\\U000e0041"),
        ("\ud800", "\\ud800"),
    ],
)
def test_what_a_terminal_could_obey_is_shown_as_an_escape(text: str, shown: str) -> None:
    assert visible(text) == shown


ROWS = [{"site": "st-anna", "ok": True, "until": None, "names": ["a", "b"]}, {"site": "b\x1b[2J", "ok": False}]


def test_a_table_has_aligned_columns_and_no_control_characters() -> None:
    out = io.StringIO()
    print_rows(ROWS, ("site", "ok", "until", "names"), schema="confide/x/v1", to=out)
    assert out.getvalue().splitlines() == [
        "site      ok   until  names",
        "st-anna   yes  -      a, b",
        "b\\x1b[2J  no   -      -",
    ]


def test_json_names_its_schema_and_holds_every_key() -> None:
    out = io.StringIO()
    print_rows(ROWS, ("site",), schema="confide/x/v1", form="json", to=out)
    assert json.loads(out.getvalue()) == {"schema": "confide/x/v1", "rows": ROWS}
    assert "\x1b" not in out.getvalue()


def test_json_lines_carry_the_schema_on_each() -> None:
    out = io.StringIO()
    print_rows(ROWS, ("site",), schema="confide/x/v1", form="jsonl", to=out)
    assert [json.loads(line) for line in out.getvalue().splitlines()] == [
        {"schema": "confide/x/v1", **row} for row in ROWS
    ]


def test_a_record_is_a_line_for_each_key_or_one_document() -> None:
    out = io.StringIO()
    print_record({"site_id": "a", "map": {"k": "v"}, "x": "\x7f"}, schema="confide/y/v1", to=out)
    assert out.getvalue() == "site id  a\nmap      k=v\nx        \\x7f\n"
    out = io.StringIO()
    print_record({"x": "\x7f"}, schema="confide/y/v1", form="json", to=out)
    assert out.getvalue() == '{"schema": "confide/y/v1", "x": "\\u007f"}\n'
