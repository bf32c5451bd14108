import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

import confide_cli
from federation.errors import PolicyRefused

ROOT = Path(confide_cli.__file__).parent


def test_help_names_every_role_and_ends_with_status_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert confide_cli.run(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(noun in shown for noun in confide_cli.NOUNS)


def test_a_word_that_is_nearly_right_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert confide_cli.run(["sit"]) == 2
    assert "did you mean `confide site`?" in capsys.readouterr().err


@pytest.mark.parametrize(
    "mistake",
    [
        "job submit",
        "job show --colour red",
        "job simulate --sites x",
        "model show",
        "coordinator serve --colour",
        "coordinator check --format xml",
        "coordinator sites frob",
        "coordinator user add",
        "coordinator init --colour",
        "site run --colour",
        "site data add",
        "site data frob",
        "site budget show",
        "site budget frob",
        "site policy frob",
        "site approvals frob",
        "site members frob",
        "audit query --colour",
        "audit frob",
        "audit query --limit many",
        "demo --colour",
        "schema frob",
        "completion frob",
    ],
)
def test_each_mistake_on_the_command_line_has_a_code_and_a_hint(
    mistake: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = confide_cli.run(mistake.split())
    except SystemExit as ended:
        status = ended.code
    shown = capsys.readouterr()
    assert (status, shown.out) == (2, "")
    assert [line.split()[0] for line in shown.err.splitlines()] == ["error", "hint:"]
    assert "CFD-G02" in shown.err


def test_an_error_for_people_is_two_lines_and_its_own_status(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_noun: str) -> object:
        raise PolicyRefused("CFD-G02", "no", hint="ask")

    monkeypatch.setattr(confide_cli, "_load", refuse)
    assert confide_cli.run(["site", "status"]) == 2
    assert capsys.readouterr().err == "error CFD-G02: no\nhint: ask\n"


def test_an_unforeseen_error_shows_a_reference_and_no_trace(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def explode(_noun: str) -> object:
        raise ZeroDivisionError("secret figure 42")

    monkeypatch.setattr(confide_cli, "_load", explode)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    assert confide_cli.run(["site"]) == 70
    shown = capsys.readouterr().err
    assert "reference: " in shown
    assert "Traceback" not in shown
    assert "secret figure" not in shown
    (trace,) = tmp_path.rglob("error-*.txt")
    assert "ZeroDivisionError" in trace.read_text()
    assert trace.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [(["site", "run"], "site"), (["coordinator", "serve"], "coordinator"), (["schema", "plan"], "coordinator,site")],
)
def test_a_package_that_is_not_installed_is_named_with_the_extra_that_brings_it(
    arguments: list[str], extra: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def without(name: str) -> object:
        raise ModuleNotFoundError(f"No module named {name!r}", name="numpy.linalg")

    monkeypatch.setattr(confide_cli.importlib, "import_module", without)
    assert confide_cli.run(arguments) == 2
    shown = capsys.readouterr().err
    assert f"`confide {arguments[0]}` needs the package numpy" in shown
    assert f"hint: pip install 'confide[{extra}]'" in shown


def test_a_missing_module_of_our_own_is_our_fault(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def without(_noun: str) -> object:
        raise ModuleNotFoundError("No module named 'site_client.gone'", name="site_client.gone")

    monkeypatch.setattr(confide_cli, "_load", without)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    assert confide_cli.run(["site", "run"]) == 70
    assert "error CFD-G01" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["--help"], ["site", "--help"], ["coordinator", "--help"], ["job", "--help"], ["audit", "--help"]]
)
def test_help_imports_neither_torch_nor_flower(arguments: list[str]) -> None:
    program = (
        "import sys, confide_cli\n"
        f"status = confide_cli.run({arguments!r})\n"
        "heavy = {'torch', 'flwr', 'grpc', 'numpy', 'dp_accounting'} & set(sys.modules)\n"
        "sys.exit(status or (3 if heavy else 0))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize("name", sorted(confide_cli.SCHEMAS))
def test_every_schema_is_printed_as_json(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    import json

    assert confide_cli.run(["schema", name]) == 0
    assert json.loads(capsys.readouterr().out)["type"] == "object"


def test_flower_is_told_to_be_silent_before_any_import() -> None:
    program = (
        "import os, sys, confide_cli; sys.argv[1:] = ['version']\ntry:\n confide_cli.main()\nexcept SystemExit: pass\n"
    )
    program += "assert os.environ['FLWR_TELEMETRY_ENABLED'] == '0' and os.environ['FLWR_DISABLE_UPDATE_CHECK'] == '1'\n"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, timeout=60, env={"PATH": "/usr/bin"}
    )
    assert done.returncode == 0, done.stderr.decode()


def test_nothing_in_a_message_drives_a_terminal_or_passes_for_a_line_of_ours(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_noun: str) -> object:
        raise PolicyRefused("CFD-G02", "no\x1b[2J\u202e\nerror CFD-G99: forged", hint="a\x07\nhint: forged")

    monkeypatch.setattr(confide_cli, "_load", refuse)
    assert confide_cli.run(["site"]) == 2
    shown = "error CFD-G02: no\\x1b[2J\\u202e\n  error CFD-G99: forged\nhint: a\\x07\n  hint: forged\n"
    assert capsys.readouterr().err == shown


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_what_the_machine_refuses_is_no_internal_error(
    number: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_noun: str) -> object:
        raise OSError(number, os.strerror(number), "/var/lib/confide/site.yaml")

    monkeypatch.setattr(confide_cli, "_load", refuse)
    assert confide_cli.run(["site"]) == 78
    shown = capsys.readouterr().err
    assert shown.startswith(f"error CFD-G04: /var/lib/confide/site.yaml: {os.strerror(number)} (uid ")
    assert "hint: " in shown


@pytest.mark.parametrize(
    "arguments",
    [
        ["job", "submit", "missing.yaml", "--home", "."],
        ["job", "validate", ".", "--home", "."],
        ["model", "verify", "missing"],
        ["site", "enrol", "https://127.0.0.1:1", "--token-file", "missing.token", "--home", "home"],
    ],
)
def test_a_missing_file_on_the_command_line_is_the_caller_s_mistake_not_the_home_s(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert confide_cli.run(arguments) == 2
    assert capsys.readouterr().err.startswith("error CFD-G07: ")


def test_an_unknown_verb_of_a_site_gets_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert confide_cli.run(["site", "statsu"]) == 2
    shown = capsys.readouterr().err
    assert shown == "error CFD-G02: there is no `confide site statsu`\nhint: did you mean `confide site status`?\n"
