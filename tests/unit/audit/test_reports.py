"""The officer's question, who used which data in November, what for, under which approval, at what cost, what left."""

import csv
import io
import json
import re
import shutil
import zipfile
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from fhir.resources.R4B.auditevent import AuditEvent

from audit import checkpoint, rendering
from audit.checked import Row
from audit.columns import column
from audit.command import main
from audit.cosignature import cosign
from audit.errors import AuditError, EntryRefused, LogUnreadable, ProofRefused
from audit.events import (
    Actor,
    Approval,
    BudgetSpent,
    DataClosed,
    Egress,
    JobAccepted,
    JobApproved,
    JobRefused,
    Purpose,
    UpdateSent,
)
from audit.export import fhir, ocsf
from audit.export.bundle_brackets import bracket_text
from audit.export.report_html import html_of
from audit.export.report_pdf import pdf_of
from audit.export.report_view import Head, ReportBuilder, delta_text
from audit.note import VerifierKey
from audit.proof_file import ProofFile
from audit.reading import find_log, read_rows
from audit.trust_file import write_trust_policy
from tests.support.audit_logs import (
    DAEMON,
    HASH,
    HEART,
    ORIGIN,
    PARTY,
    HandClock,
    budget,
    create,
    draft,
    event_id,
    no_home_of_the_machine,
    opening,
    reopen,
)
from tests.support.witnessed_trees import NOW_S, witness_signer

Captured = pytest.CaptureFixture[str]
JOB = "heart-risk-7f3a91"
HOSTILE = "<script>alert(1)</script>\u202e=1+1\x1b[2J\u2028"


@pytest.fixture(autouse=True)
def _no_home_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    no_home_of_the_machine(monkeypatch, tmp_path)


def november(home: Path) -> Path:
    """A home in which a job was approved in October and used data in November and December, by a named approver."""
    clock = HandClock()
    clock.wall = datetime(2026, 10, 30, tzinfo=UTC)
    log = create(home, clock)
    alice = log.private.pseudonym(HOSTILE)
    person = Actor(kind="person", id=alice, auth="local")
    approval = Approval(id="a-12", by=[alice], meaning="approve")
    purpose = Purpose(code="DUO:0000007", permit="permit-17")
    common: dict[str, Any] = {"decision": "allowed", "actor": DAEMON, "job": JOB}
    log.append(
        JobApproved(
            id=event_id(),
            decision="allowed",
            actor=person,
            job=JOB,
            plan=HASH,
            policy=HASH,
            approval=approval,
            private={"reason": log.private.commit("reason", HOSTILE, subject=alice)},
        )
    )
    log.append(
        JobAccepted(id=event_id(), **common, plan=HASH, purpose=purpose, dataset=HEART, policy=HASH, approval=approval)
    )
    for number in range(3):
        clock.pass_s(10 * 86_400)
        opened = log.append(opening(job=JOB, round=number, purpose=purpose, approval=approval, rule=None))
        log.append(DataClosed(id=event_id(), **common, opened=opened.index, dataset=HEART, round=number))
        log.append(
            BudgetSpent(id=event_id(), **common, round=number, dataset=HEART, budget=budget(1_310_000_001 + number))
        )
        egress = Egress(what="masked-update", hash=HASH, bytes=1000, to="coordinator", encrypted=True)
        log.append(UpdateSent(id=event_id(), **common, round=number, egress=egress))
    log.append(
        JobRefused(
            id=event_id(),
            decision="refused",
            code="CFD-S01",
            rule="rules/1",
            actor=DAEMON,
            job="ads",
            plan=HASH,
            purpose=Purpose(code="commercial"),
            dataset=HEART,
            policy=HASH,
        )
    )
    log.append(draft(dataset_id="lungs"))
    log.close()
    return home


def in_november(home: Path, out: Path, *more: str) -> Path:
    times = ["--since", "2026-11-01", "--until", "2026-12-01"]
    assert main(["report", str(home), "--dataset", "heart", *times, "--out", str(out), *more]) == 0
    return out


def test_a_report_answers_who_what_for_under_what_at_what_cost_and_what_left(tmp_path: Path) -> None:
    home = november(tmp_path / "home")
    said = json.loads(in_november(home, tmp_path / "r.json").read_text())
    sections = said["sections"]
    assert said["schema"] == "confide/audit-report/v1"
    (job,) = sections["summary"]
    assert (job["job"], job["openings"], job["left_count"], job["left_bytes"]) == (JOB, 3, 3, 3000)
    assert job["spent"] == "1.32 (delta 1.0e-5)"
    assert "DUO:0000007, research on one disease, permit permit-17" in job["purpose"]
    assert [row["round"] for row in sections["uses"]] == [0, 1, 2]
    assert {row["action"] for row in sections["approvals"]} == {"job.approved", "job.accepted"}
    assert sections["approvals"][0]["time"].startswith("2026-10-30")
    assert [row["to"] for row in sections["disclosures"]] == ["coordinator"] * 3
    assert [row["code"] for row in sections["refusals"]] == ["CFD-S01"]
    assert said["checkpoint"]["witnessed"].startswith("not yet witnessed")
    assert "lungs" not in json.dumps(sections["changes"])
    assert "opened 3 times by 1 job" in said["answer"]
    assert len(said["limits"]) == 4


def test_the_times_of_a_report_are_a_range(tmp_path: Path) -> None:
    home = november(tmp_path / "home")
    arguments = ["report", str(home), "--dataset", "heart", "--since", "2026-11-15", "--until", "2026-11-25"]
    assert main([*arguments, "--out", str(tmp_path / "r.json")]) == 0
    sections = json.loads((tmp_path / "r.json").read_text())["sections"]
    assert [row["round"] for row in sections["uses"]] == [1]
    assert sections["summary"][0]["left_bytes"] == 1000
    assert {row["action"] for row in sections["approvals"]} == {"job.approved", "job.accepted"}


def test_a_name_is_marked_as_not_verified_and_a_copy_shows_none(tmp_path: Path) -> None:
    home = november(tmp_path / "home")
    live = json.loads(in_november(home, tmp_path / "live.json").read_text())
    assert "name not verified" in live["sections"]["people"][0]["name"]
    shutil.copytree(home, tmp_path / "copy")
    copied = json.loads(in_november(tmp_path / "copy", tmp_path / "copy.json").read_text())
    assert copied["sections"]["people"][0]["name"] == "not known here"


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "action") or name[:2] == "on"]


def test_exports_neutralise_and_give_back_html(tmp_path: Path) -> None:
    page = in_november(november(tmp_path / "home"), tmp_path / "r.html").read_text()
    tags = _Tags()
    tags.feed(page)
    assert "script" not in tags.tags
    assert tags.links == []
    assert "default-src 'none'" in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\u{202e}=1+1\\u{1b}[2J\\u{2028}" in page
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e\u2028]", page)


def test_a_pdf_says_what_the_page_says_in_letters_that_it_has(tmp_path: Path) -> None:
    data = in_november(november(tmp_path / "home"), tmp_path / "r.pdf").read_bytes()
    assert data.startswith(b"%PDF-")
    assert b"/JavaScript" not in data
    head = Head(ORIGIN, (("data set", "\u4e2d\u202e"),), 0, "b\u00fcrgi", 1, HASH, "", (), "", "", "")
    assert pdf_of(ReportBuilder({}).view(head)).startswith(b"%PDF-")


def test_a_report_of_a_complete_bundle_is_that_of_the_home(tmp_path: Path) -> None:
    home = november(tmp_path / "home")
    times = ["--since", "2026-11-01", "--until", "2026-12-01"]
    shutil.copytree(home, tmp_path / "copy")
    assert main(["export", str(tmp_path / "copy"), *times, "--complete", "--out", str(tmp_path / "b.zip")]) == 0
    first = json.loads(in_november(tmp_path / "copy", tmp_path / "one.json").read_text())["sections"]
    second = json.loads(in_november(tmp_path / "b.zip", tmp_path / "two.json").read_text())["sections"]
    assert first["uses"] == second["uses"]
    assert first["disclosures"] == second["disclosures"]
    assert first["privacy"] == second["privacy"]


def test_a_report_is_recorded_before_it_is_written_and_never_overwrites(tmp_path: Path) -> None:
    home = november(tmp_path / "home")
    in_november(home, tmp_path / "r.html")
    last = list(read_rows(find_log(home)))[-1].event
    assert (last["action"], last["output"], last["query"]["dataset"]) == ("audit.read", "report", "heart")
    with pytest.raises(LogUnreadable, match="there already"):
        main(["report", str(home), "--out", str(tmp_path / "r.html")])


def test_delta_is_rounded_up() -> None:
    assert [delta_text(value) for value in (0, 1, 10_000_000_000, 10_000_000_001)] == [
        "0",
        "1.0e-15",
        "1.0e-5",
        "1.1e-5",
    ]


def test_the_page_escapes_what_its_head_says() -> None:
    head = Head("<b>", (("<i>", '"<u>'),), 0, "<s>", 1, HASH, "not yet <x>", ("<k>",), "<q>", "<r>", "<v>")
    page = "".join(html_of(ReportBuilder({}).view(head)))
    assert [text for text in ("<b>", "<i>", "<u>", "<s>", "<x>", "<k>", "<q>", "<r>", "<v>") if text in page] == []
    assert page.count("&lt;x&gt;") == 2


# --- for other systems -------------------------------------------------------------------------------------------


def rows_of(home: Path) -> list[Row]:
    return list(read_rows(find_log(home)))


def test_exports_neutralise_and_give_back_csv(tmp_path: Path) -> None:
    known = json.loads((Path(__file__).parents[2] / "vectors" / "audit_kat.json").read_text())["csv_cells"]["cases"]
    for case in known:
        cell = rendering.csv_cell(case["text"])
        assert cell == case["cell"]
        assert cell.removeprefix("'") == case["text"]
    home = november(tmp_path / "home")
    lines = "".join(rendering.csv_lines(rows_of(home)))
    read = list(csv.DictReader(io.StringIO(lines, newline="")))
    assert [int(row["index"]) for row in read] == list(range(len(read)))


def test_every_entry_is_an_audit_event_of_fhir(tmp_path: Path) -> None:
    home = november(tmp_path / "home")
    for row in rows_of(home):
        found = AuditEvent.model_validate_json(json.dumps(fhir.audit_event(row.origin, row.index, row.event)))
        assert found.subtype[0].code == row.event["action"]
        assert found.entity[-1].what.identifier.value == f"{ORIGIN}#{row.index}"
        assert found.outcome == {"allowed": "0", "refused": "4", "failed": "8"}[row.event["decision"]]
    opened = next(row for row in rows_of(home) if row.event["action"] == "data.opened")
    event = fhir.audit_event(opened.origin, opened.index, opened.event)
    assert (event["action"], event["type"]["code"]) == ("R", "rest")
    assert event["purposeOfEvent"][0]["coding"][0]["code"] == "DUO:0000007"
    assert event["entity"][0]["detail"] == [{"type": "version", "valueString": HASH}]


@pytest.mark.parametrize(
    ("action", "kind"),
    [
        ("data.opened", (6005, 1)),
        ("data.retired", (6005, 7)),
        ("user.login", (3002, 1)),
        ("user.added", (3001, 1)),
        ("member.revoked", (3001, 6)),
        ("job.accepted", (6003, 99)),
        ("audit.read", (6003, 2)),
    ],
)
def test_an_entry_has_its_class_of_ocsf(action: str, kind: tuple[int, int]) -> None:
    assert ocsf.class_of(action) == kind


def test_every_entry_is_an_event_of_ocsf(tmp_path: Path) -> None:
    for row in rows_of(november(tmp_path / "home")):
        event = ocsf.ocsf_event(row.origin, row.index, row.leaf_hash, row.event)
        assert event["type_uid"] == 100 * event["class_uid"] + event["activity_id"]
        assert event["category_uid"] == event["class_uid"] // 1000
        assert event["status_id"] == (1 if row.event["decision"] == "allowed" else 2)
        assert event["time"] == row.event["t_us"] // 1000
        assert (event["metadata"]["log_name"], event["metadata"]["sequence"]) == (ORIGIN, row.index)
        assert event["metadata"]["uid"] == row.event["id"]
        assert event["unmapped"]["seq"] == row.event["seq"]


def test_exports_neutralise_and_give_back_each_rendering_of_a_bundle(tmp_path: Path) -> None:
    home = november(tmp_path / "home")
    forms = [word for form in ("csv", "fhir", "ocsf", "html", "json", "pdf") for word in ("--as", form)]
    out = tmp_path / "b.zip"
    assert main(["export", str(home), "--dataset", "heart", "--private", "--out", str(out), *forms]) == 0
    with zipfile.ZipFile(out) as archive:
        rows = [json.loads(line) for line in archive.read("rows.jsonl").splitlines()]
        assert [json.loads(line)["metadata"]["sequence"] for line in archive.read("ocsf.jsonl").splitlines()] == [
            row["index"] for row in rows
        ]
        assert len(archive.read("fhir.ndjson").splitlines()) == len(rows)
        assert archive.read("rows.csv").count(b"\r\n") == len(rows) + 1
        assert HOSTILE.encode() not in b"".join(archive.read(name) for name in archive.namelist())
    policy = str(home / "trust" / f"{PARTY}.policy")
    assert main(["verify", str(out), "--trust", policy]) == 0


@pytest.mark.parametrize(
    ("more", "sent"),
    [([], 3), (["--complete"], 3), (["--action", "update"], 3), (["--since", "2026-11-25", "--complete"], 1)],
)
def test_a_bundle_about_a_data_set_has_what_left_of_it_and_of_no_other(
    tmp_path: Path, more: list[str], sent: int
) -> None:
    home, out = november(tmp_path / "home"), tmp_path / "b.zip"
    egress = Egress(what="update", hash=HASH, bytes=9, to="coordinator", encrypted=True)
    with reopen(home) as log:
        other: dict[str, Any] = {"decision": "allowed", "actor": DAEMON, "job": "lungs-1", "round": 0}
        log.append(UpdateSent(id=event_id(), **other, egress=egress))
    assert main(["export", str(home), "--dataset", "heart", "--out", str(out), *more]) == 0
    with zipfile.ZipFile(out) as archive:
        rows = [json.loads(line)["event"] for line in archive.read("rows.jsonl").splitlines()]
    assert [row["job"] for row in rows if row["action"] == "update.sent"] == [JOB] * sent
    policy = str(home / "trust" / f"{PARTY}.policy")
    assert main(["verify", str(out), "--trust", policy, *(word for word in more if word == "--complete")]) == 0


# --- one entry ---------------------------------------------------------------------------------------------------


def test_a_proof_file_of_one_entry_needs_the_policy_alone(tmp_path: Path, capsys: Captured) -> None:
    home = november(tmp_path / "home")
    policy = str(home / "trust" / f"{PARTY}.policy")
    assert main(["prove", str(home), "5", "--out", str(tmp_path / "p")]) == 0
    assert main(["show", str(home), "5", "--proof", str(tmp_path / "q")]) == 0
    capsys.readouterr()
    for name in ("p", "q"):
        assert main(["check", str(tmp_path / name), "--trust", policy]) == 0
        said = capsys.readouterr().out
        assert "entry 5 is in the log, unchanged" in said
        assert "CFD-A45 not yet witnessed" in said
        assert said.endswith("proved, not yet witnessed\n")
    with pytest.raises(AuditError, match="no pinned key") as unpinned:
        main(["check", str(tmp_path / "p")])
    assert (unpinned.value.code, unpinned.value.exit_status) == ("CFD-A20", 3)
    proof = ProofFile.parse((tmp_path / "p").read_bytes())
    for changed in (
        ProofFile(4, proof.path, proof.checkpoint, proof.leaf),
        ProofFile(5, proof.path[:-1], proof.checkpoint, proof.leaf),
        ProofFile(5, proof.path, proof.checkpoint, (proof.leaf or b"").replace(b'"round":0', b'"round":1')),
    ):
        (tmp_path / "bad").write_bytes(bytes(changed))
        with pytest.raises((ProofRefused, EntryRefused)):
            main(["check", str(tmp_path / "bad"), "--trust", policy])


def test_a_proof_of_a_copy_and_of_a_bundle_are_that_of_the_log(tmp_path: Path, capsys: Captured) -> None:
    home = november(tmp_path / "home")
    policy = str(home / "trust" / f"{PARTY}.policy")
    shutil.copytree(home, tmp_path / "copy")
    for name, more in (("complete.zip", ["--complete"]), ("some.zip", [])):
        out = str(tmp_path / name)
        assert main(["export", str(tmp_path / "copy"), "--action", "data.opened", "--out", out, *more]) == 0
    for number, source in enumerate(("copy", "complete.zip", "some.zip")):
        out = str(tmp_path / f"p{number}")
        assert main(["prove", str(tmp_path / source), "4", "--out", out]) == 0
        assert main(["check", out, "--trust", policy]) == 0
    assert len({(tmp_path / f"p{number}").read_bytes() for number in range(3)}) == 1
    capsys.readouterr()


def witnessed(home: Path) -> Path:
    """The home with two witnesses of which both are asked for, and a checkpoint of 8 entries that both cosigned."""
    hungary, zurich = witness_signer("hungary"), witness_signer("zurich")
    with reopen(home) as log:
        names = {"hungary": str(hungary.key), "zurich": str(zurich.key)}
        write_trust_policy(
            home / "trust", party=PARTY, log_keys=[log.checkpoint_key], witnesses=names, operators={}, quorum=2
        )
        data = log.checkpoint()
        opened = checkpoint.open_checkpoint(data, origin=ORIGIN, log_keys=[VerifierKey.parse(log.checkpoint_key)])
        lines = "".join(str(cosign(opened, one, NOW_S)) for one in (hungary, zurich))
        log.keep_cosigned(opened.size, data + lines.encode(), quorum=True)
        log.append(draft(dataset_id="later"))
    return home


def test_what_was_witnessed_says_by_whom_and_when(tmp_path: Path, capsys: Captured) -> None:
    home = witnessed(november(tmp_path / "home"))
    policy = str(home / "trust" / f"{PARTY}.policy")
    assert main(["prove", str(home), "5", "--out", str(tmp_path / "p")]) == 0
    assert main(["check", str(tmp_path / "p"), "--trust", policy]) == 0
    said = capsys.readouterr().out
    assert "cosigned by hungary, zurich, there by 2026-01-01T00:00:10.000000Z" in said
    assert said.endswith("\nproved\n")
    out = tmp_path / "b.zip"
    assert main(["export", str(home), "--dataset", "heart", "--out", str(out)]) == 0
    assert main(["verify", str(out), "--trust", policy]) == 0
    said = capsys.readouterr().out
    assert "(quorum 2)" in said
    assert "by the witnesses' clocks: there by 2026-01-01T00:00:10" in said
    assert "CFD-A45" not in said
    times = ["--since", "2026-11-01", "--until", "2026-11-25"]
    assert main(["report", str(home), *times, "--out", str(tmp_path / "r.json")]) == 0
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["checkpoint"]["witnessed"] == "cosigned by hungary, zurich (quorum 2)"
    assert "there by" in report["bracket"]


def test_an_entry_that_no_quorum_covers_is_not_yet_witnessed(tmp_path: Path, capsys: Captured) -> None:
    home = witnessed(november(tmp_path / "home"))
    last = next(row.index for row in rows_of(home) if column(row.event, "dataset") == "later")
    assert main(["prove", str(home), str(last), "--out", str(tmp_path / "p")]) == 0
    assert "not yet witnessed: 0 of 2 cosignatures, missing hungary, zurich (CFD-A45)" in capsys.readouterr().err
    with pytest.raises(AuditError, match="not yet witnessed") as refused:
        main(["check", str(tmp_path / "p"), "--trust", str(home / "trust" / f"{PARTY}.policy")])
    assert (refused.value.code, refused.value.exit_status) == ("CFD-A06", 1)


def test_a_bundle_is_questioned_like_a_log(tmp_path: Path, capsys: Captured) -> None:
    home = november(tmp_path / "home")
    assert main(["export", str(home), "--action", "data", "--out", str(tmp_path / "b.zip")]) == 0
    capsys.readouterr()
    assert main(["query", str(tmp_path / "b.zip"), "--action", "data.opened", "--format", "jsonl"]) == 0
    assert [json.loads(line)["event"]["round"] for line in capsys.readouterr().out.splitlines()] == [0, 1, 2]
    assert main(["show", str(tmp_path / "b.zip"), "4"]) == 0
    with pytest.raises(AuditError, match="doesn't have entry 0"):
        main(["show", str(tmp_path / "b.zip"), "0"])


def test_a_directory_of_tiles_grows_and_takes_no_other_history(tmp_path: Path, capsys: Captured) -> None:
    home = november(tmp_path / "home")
    tiles = str(tmp_path / "tiles")
    assert main(["export", str(home), "--as", "tiles", "--out", tiles]) == 0
    for _ in range(3):
        main(["query", str(home), "--limit", "1"])
    assert main(["export", str(home), "--as", "tiles", "--out", tiles]) == 0
    policy = str(home / "trust" / f"{PARTY}.policy")
    capsys.readouterr()
    assert main(["verify", tiles, "--trust", policy]) == 0
    other = november(tmp_path / "other")
    for _ in range(30):
        main(["query", str(other), "--limit", "1"])
    with pytest.raises(AuditError) as refused:
        main(["export", str(other), "--as", "tiles", "--out", tiles])
    assert refused.value.code == "CFD-A08"


def test_what_a_quorum_saw_of_a_time_is_said_of_that_part() -> None:
    partly = bracket_text([(10, 86_400), (20, 172_800)], 12, 30)
    assert partly == (
        "by the witnesses' clocks: shown to no witness before 1970-01-02T00:00:00.000000Z, those up to entry 19 there"
        " by 1970-01-03T00:00:00.000000Z; no witness says when the later ones were"
    )
    assert bracket_text([(10, 86_400)], 0, 10) == "by the witnesses' clocks: there by 1970-01-02T00:00:00.000000Z"
    assert "no witness says when" in bracket_text([], 0, 10)


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "Nothing was refused"), (1, "1 request or act was refused"), (3, "3 requests or acts were refused")],
)
def test_the_answer_counts_refusals_in_words(tmp_path: Path, count: int, said: str) -> None:
    with create(tmp_path / "home") as log:
        for number in range(count):
            log.append(draft(decision="refused", code="CFD-S01", dataset_id="heart", id=event_id()))
            assert number < 3
    out = tmp_path / "r.html"
    assert main(["report", str(tmp_path / "home"), "--dataset", "heart", "--out", str(out)]) == 0
    assert f"{said} or failed." in out.read_text()
