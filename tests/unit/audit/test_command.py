"""`confide audit` as a person and as a program use it."""

import csv
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from audit import edge
from audit.command import HELP, VERBS, main
from audit.errors import AppendFailed, AuditError, LogUnreadable
from audit.events import ACTIONS, Actor, DataVersioned
from audit.events.schema import SHIPPED, made_from_models
from audit.reading import find_log, read_rows
from tests.support.audit_logs import (
    HASH,
    HEART,
    ORIGIN,
    budget,
    bytes_of,
    closed_home,
    create,
    draft,
    event_id,
    leaves_of,
    opening,
    set_leaf,
)

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _no_home_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {
        "CONFIDE_HOME": "",
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }.items():
        monkeypatch.setenv(name, value)


def copy_of(home: Path) -> Path:
    copied = home.with_name(home.name + "-copy")
    shutil.copytree(home, copied)
    return copied


def run(capsys: Captured, *arguments: object) -> tuple[int, str, str]:
    status = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def actions_of(home: Path) -> list[str]:
    return [row.event["action"] for row in read_rows(find_log(home))]


def test_the_shipped_schema_is_the_one_of_the_models() -> None:
    assert SHIPPED.read_bytes() == made_from_models()


def test_every_written_entry_fits_the_shipped_schema(tmp_path: Path) -> None:
    with create(tmp_path) as log:
        log.append(opening(budget=budget(1_310_000_000)))
        log.append(draft(decision="refused", code="CFD-S01"))
    schema = jsonschema.Draft202012Validator(json.loads(SHIPPED.read_bytes()))
    for row in read_rows(find_log(tmp_path)):
        schema.validate(row.event)
        assert not schema.is_valid({**row.event, "name": "alice"})


def test_every_action_of_the_specification_has_its_model() -> None:
    assert len(ACTIONS) == 80
    assert all(model.model_fields["action"].default == action for action, model in ACTIONS.items())
    assert all(model.__doc__ for model in ACTIONS.values())


def test_the_help_names_each_verb_and_option_that_exists(capsys: Captured) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == HELP
    for verb in (*VERBS, "check"):
        assert f"\n  {verb}" in HELP
    with pytest.raises(SystemExit) as refused:
        main(["delete"])
    assert refused.value.code == 2


def test_query_filters_and_pages(tmp_path: Path, capsys: Captured) -> None:
    home = tmp_path / "home"
    with create(home) as log:
        for number in range(5):
            log.append(opening(round=number, job="heart-risk-7f3a91"))
        log.append(draft(dataset_id="lungs", decision="refused", code="CFD-S01"))
    copied = copy_of(home)
    status, out, err = run(capsys, "query", copied, "--action", "data.opened", "--limit", 2, "--format", "json")
    page = json.loads(out)
    assert status == 0
    assert page["schema"] == "confide/audit-entries/v1"
    assert page["log"] == ORIGIN
    assert [row["event"]["round"] for row in page["rows"]] == [0, 1]
    assert f"--after {page['after']}" in err
    _, out, _ = run(capsys, "query", copied, "--action", "data", "--after", page["after"], "--format", "jsonl")
    assert [json.loads(line)["event"].get("round") for line in out.splitlines()] == [2, 3, 4, None]
    _, out, _ = run(capsys, "query", copied, "--decision", "refused", "--format", "jsonl")
    assert [json.loads(line)["event"]["dataset"]["id"] for line in out.splitlines()] == ["lungs"]
    for option, value, count in (
        ("--dataset", "heart", 5),
        ("--version", HASH, 6),
        ("--job", "heart-risk-7f3a91", 5),
        ("--site", "cleveland", 9),
        ("--site", "hungary", 0),
        ("--purpose", "DUO:0000007", 5),
        ("--actor", "daemon", 9),
        ("--since", "2026-01-01", 9),
        ("--until", "2026-01-01T00:00:00Z", 0),
        ("--until", "2026-01-01T01:00:00+00:30", 9),
    ):
        _, out, _ = run(capsys, "query", copied, option, value, "--format", "jsonl")
        assert len(out.splitlines()) == count, (option, value)


def test_the_json_rows_name_time_and_leaf(tmp_path: Path, capsys: Captured) -> None:
    copied = copy_of(closed_home(tmp_path / "home"))
    _, out, _ = run(capsys, "query", copied, "--format", "json")
    for number, row in enumerate(json.loads(out)["rows"]):
        assert row["index"] == number
        assert row["time"] == "2026-01-01T00:00:00.000000Z"
        assert row["leaf_hash"].startswith("sha256:")
        assert row["event"]["v"] == 1


def test_the_table_stops_at_a_hundred_rows_and_says_so(tmp_path: Path, capsys: Captured) -> None:
    copied = copy_of(closed_home(tmp_path / "home", entries=120))
    _, out, err = run(capsys, "query", copied)
    assert "100 entries" in err
    assert "--after 99" in err
    assert out.count("data.retired") == 98


def test_csv_is_quoted_and_ends_lines_as_spreadsheets_do(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with create(home) as log:
        log.append(opening(budget=budget(1_310_000_000)))
    copied = copy_of(home)
    done = subprocess.run(
        [sys.executable, "-c", f"from audit.command import main; main(['query', {str(copied)!r}, '--format', 'csv'])"],
        capture_output=True,
        check=True,
    )
    assert done.stdout.count(b"\r\n") == done.stdout.count(b"\n") == 5
    rows = list(csv.DictReader(io.StringIO(done.stdout.decode(), newline="")))
    assert rows[2]["eps_nano"] == "1310000000"
    assert rows[2]["purpose"] == "DUO:0000007"
    assert rows[2]["rule"] == "rules/0"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--action", "nothing"],
        ["--decision", "perhaps"],
        ["--since", "2026-01-01T00:00:00"],
        ["--since", "yesterday"],
        ["--since", "2026-02-30"],
        ["--limit", "0"],
        ["--dataset", "'; DROP TABLE entry; --"],
        ["--format", "xml"],
    ],
)
def test_a_filter_that_is_not_understood_is_a_usage_error(
    tmp_path: Path, capsys: Captured, arguments: list[str]
) -> None:
    home = closed_home(tmp_path / "home")
    before = leaves_of(home)
    with pytest.raises(SystemExit) as refused:
        main(["query", str(home), *arguments])
    assert refused.value.code == 2
    assert leaves_of(home) == before
    assert capsys.readouterr().out == ""


def test_every_read_is_recorded_before_its_rows(tmp_path: Path, capsys: Captured) -> None:
    home = closed_home(tmp_path / "home")
    main(["query", str(home), "--dataset", "d1", "--format", "csv"])
    main(["show", str(home), "3"])
    main(["verify", str(home)])
    capsys.readouterr()
    read, shown, verified = list(read_rows(find_log(home)))[-3:]
    assert read.event["action"] == "audit.read"
    assert (read.event["query"], read.event["matched"], read.event["output"]) == ({"dataset": "d1"}, 1, "csv")
    assert read.event["actor"]["id"].startswith("p1:")
    assert edge.account() not in read.leaf.decode()
    assert shown.event["query"] == {"entry": "3"}
    assert (verified.event["action"], verified.event["flaws_count"]) == ("audit.verified", 0)
    assert read.event["writer"].endswith("/writer/cli")


def test_a_read_that_cannot_be_recorded_shows_nothing(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = closed_home(tmp_path / "home")
    (home / "audit" / "keys" / "writer-cli.key").unlink()
    with pytest.raises(AuditError):
        main(["query", str(home)])
    assert capsys.readouterr().out == ""


def test_a_reading_while_the_daemon_runs_goes_through_it(tmp_path: Path, capsys: Captured) -> None:
    home = tmp_path / "home"
    with create(home, serve_socket=True) as log:
        before = log.size
        assert main(["query", str(home), "--format", "jsonl"]) == 0
        assert log.size == before + 1
    capsys.readouterr()
    assert actions_of(home)[-2:] == ["audit.read", "log.closed"]
    assert all(row.event["writer"].endswith("/daemon") for row in read_rows(find_log(home)))


def test_nothing_is_written_into_a_copy(tmp_path: Path, capsys: Captured) -> None:
    copied = copy_of(closed_home(tmp_path / "home"))
    before = {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()}
    for arguments in (["query"], ["verify", "--complete"], ["checkpoint"], ["query", "--actor", "alice"]):
        assert main([arguments[0], str(copied), *arguments[1:]]) == 0
    main(["show", str(copied), "1"])
    capsys.readouterr()
    assert {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()} == before


def test_a_frozen_log_is_read_like_a_copy_and_says_so(tmp_path: Path, capsys: Captured) -> None:
    home = closed_home(tmp_path / "home")
    (home / "audit" / "1" / "frozen").touch()
    before = leaves_of(home)
    status, _, err = run(capsys, "query", home)
    assert status == 0
    assert "not recorded" in err
    assert leaves_of(home) == before


def test_a_login_is_looked_up_and_never_written(tmp_path: Path, capsys: Captured) -> None:
    home = tmp_path / "home"
    with create(home) as log:
        alice = Actor(kind="person", id=log.private.pseudonym("alice"), role="operator", auth="password")
        log.append(draft(actor=alice))
    _, out, _ = run(capsys, "query", home, "--actor", "alice", "--format", "jsonl")
    assert [json.loads(line)["event"]["actor"]["id"] for line in out.splitlines()] == [alice.id]
    _, out, _ = run(capsys, "query", home, "--actor", "bob", "--format", "jsonl")
    assert out == ""
    data = bytes_of(home / "audit")
    assert b"alice" not in data
    assert b"bob" not in data


def test_hostile_text_is_kept_exactly_and_shown_harmlessly(tmp_path: Path, capsys: Captured) -> None:
    hostile = "a\x1b[31m\u202e\u2028\x00\n— fake line\r\n=1+1"
    home = tmp_path / "home"
    with create(home) as log:
        receipt = log.append(
            DataVersioned(
                id=event_id(),
                decision="allowed",
                actor=Actor(kind="service", id="daemon"),
                dataset=HEART,
                previous=HASH,
                private={
                    "path": log.private.commit("path", hostile),
                    "records": log.private.commit("records", b"\xff"),
                },
            )
        )
        assert log.private.value_of(receipt.event["private"]["path"]) == hostile.encode()
        assert log.private.value_of(receipt.event["private"]["records"]) == b"\xff"
    assert b"fake line" not in bytes_of(home / "audit")
    _, out, _ = run(capsys, "show", home, receipt.index)
    line = next(line for line in out.splitlines() if line.startswith("path"))
    assert line.split(None, 1)[1] == (
        r"a\u{1b}[31m\u{202e}\u{2028}\u{0}\u{a}— fake line\u{d}\u{a}=1+1 (opens its commitment)"
    )
    assert "\x1b" not in out


@pytest.mark.parametrize("entry", ["4", "1/4", "id"])
def test_show_finds_an_entry_by_index_epoch_or_id(tmp_path: Path, capsys: Captured, entry: str) -> None:
    copied = copy_of(closed_home(tmp_path / "home"))
    rows = list(read_rows(find_log(copied)))
    name = rows[4].event["id"] if entry == "id" else entry
    _, out, _ = run(capsys, "show", copied, name, "--format", "json")
    shown: dict[str, Any] = json.loads(out)
    assert (shown["schema"], shown["index"], shown["leaf"]) == ("confide/audit-entry/v1", 4, rows[4].leaf.decode())


@pytest.mark.parametrize("entry", ["99", "2/4", "nothing", "-4", "４"])
def test_show_says_when_there_is_no_such_entry(tmp_path: Path, entry: str) -> None:
    copied = copy_of(closed_home(tmp_path / "home"))
    with pytest.raises((LogUnreadable, SystemExit)):
        main(["show", str(copied), entry])


def test_verify_prints_what_is_proved_and_what_is_not(tmp_path: Path, capsys: Captured) -> None:
    copied = copy_of(closed_home(tmp_path / "home"))
    status, out, _ = run(capsys, "verify", copied)
    lines = out.splitlines()
    assert status == 0
    assert lines[0] == f"log         {ORIGIN}, keys pinned by {copied}/trust/cleveland.policy"
    assert lines[1] == "proved      9 entries; all bytes, signatures, chains and times agree"
    assert lines[-2] == "not proved  that nothing was left unrecorded; that what was written is true"
    assert lines[-1] == "verified"


def test_verify_names_the_altered_entry(tmp_path: Path, capsys: Captured) -> None:
    copied = copy_of(closed_home(tmp_path / "home"))
    set_leaf(copied, 5, leaves_of(copied)[5].replace(b"d3", b"d4"))
    status, out, _ = run(capsys, "verify", copied)
    assert status == 1
    assert "flaw        CFD-A01 entry 5:" in out
    assert out.splitlines()[-1] == "flawed"
    status, out, _ = run(capsys, "verify", copied, "--format", "json")
    report = json.loads(out)
    assert report["schema"] == "confide/audit-verification/v1"
    assert (report["verdict"], report["flaws"][0]["code"], report["flaws"][0]["where"]) == (
        "flawed",
        "CFD-A01",
        "entry 5",
    )
    with pytest.raises(AuditError) as refused:
        main(["query", str(copied)])
    assert refused.value.exit_status == 1


def test_an_audit_folder_alone_is_unpinned_until_keys_are_given(tmp_path: Path, capsys: Captured) -> None:
    home = closed_home(tmp_path / "home")
    alone = tmp_path / "elsewhere" / "log"
    shutil.copytree(home / "audit", alone)
    status, out, err = run(capsys, "verify", alone)
    assert (status, out.splitlines()[-1]) == (3, "unpinned")
    assert "CFD-A20" in err
    assert run(capsys, "verify", alone, "--trust", home)[0] == 0
    assert run(capsys, "verify", alone, "--trust", home / "trust" / "cleveland.policy")[0] == 0
    (tmp_path / "config" / "confide").mkdir(parents=True)
    shutil.copytree(home / "trust", tmp_path / "config" / "confide" / "trust")
    assert run(capsys, "verify", alone)[0] == 0


def test_the_policy_of_another_log_pins_nothing(tmp_path: Path, capsys: Captured) -> None:
    home = closed_home(tmp_path / "home")
    create(tmp_path / "other", party="coordinator").close()
    copied = copy_of(home)
    status, _, _ = run(capsys, "verify", copied, "--trust", tmp_path / "other" / "trust" / "coordinator.policy")
    assert status == 3


def test_checkpoint_prints_the_note_alone(tmp_path: Path, capsys: Captured) -> None:
    copied = copy_of(closed_home(tmp_path / "home"))
    status, out, err = run(capsys, "checkpoint", copied)
    assert (status, out) == (0, (copied / "audit" / "1" / "checkpoint").read_text(encoding="utf-8"))
    assert "signature checked" in err
    (tmp_path / "kept").write_text(out, encoding="utf-8")
    assert run(capsys, "verify", copied, "--against", tmp_path / "kept")[0] == 0


def test_the_home_is_found_as_every_command_finds_it(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LogUnreadable):
        main(["verify"])
    closed_home(tmp_path / "data" / "confide" / "site")
    assert run(capsys, "verify")[0] == 0
    create(tmp_path / "data" / "confide" / "coordinator", party="coordinator").close()
    with pytest.raises(LogUnreadable):
        main(["verify"])
    monkeypatch.setenv("CONFIDE_HOME", str(tmp_path / "data" / "confide" / "coordinator"))
    assert "coordinator/audit/1" in run(capsys, "verify")[1]


def test_what_is_no_log_is_unreadable(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nothing", Path("/dev/null")):
        with pytest.raises(LogUnreadable) as refused:
            main(["verify", str(place)])
        assert refused.value.exit_status == 2


def test_importing_the_command_brings_in_nothing_that_trains() -> None:
    program = (
        "import sys, audit.command; print([name for name in ('torch','flwr','grpc','numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    assert done.stdout.strip() == "[]"


def test_a_disk_too_full_to_record_the_verification_does_not_keep_its_finding_back(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = closed_home(tmp_path / "home")

    def full(*_arguments: object, **_named: object) -> None:
        raise AppendFailed("the log's private store can't be written: database or disk is full")

    monkeypatch.setattr("audit.read_record.PrivateStore", full)
    status, out, err = run(capsys, "verify", home)
    assert status == 0
    assert "verified" in out
    assert "not recorded: the log's private store" in err
    with pytest.raises(AppendFailed):
        main(["query", str(home)])
