from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field

from federation.edge.configuration import (
    Settings,
    commented_yaml,
    effective,
    from_folder,
    load_configuration,
    resolve_home,
)
from federation.errors import ConfigurationWrong


class Coordinator(Settings):
    address: Annotated[str, Field(description="where it is")]
    ca: str = "certs/ca.pem"


class Limits(Settings):
    upload_bytes: Annotated[int, Field(ge=1, description="most bytes of one upload")] = 1000
    names: tuple[str, ...] = ()


class Site(Settings):
    coordinator: Annotated[Coordinator, Field(description="the coordinator")]
    name: str
    limits: Annotated[Limits, Field(description="limits")] = Limits()


GOOD = b'coordinator:\n  address: "coordinator.example:9443"\nname: site-a\n'


def load(folder: Path, content: bytes, **variables: str) -> Site:
    path = folder / "site.yaml"
    path.write_bytes(content)
    return load_configuration(Site, path, variables=variables)


def test_a_file_becomes_a_frozen_model(tmp_path: Path) -> None:
    found = load(tmp_path, GOOD)
    assert found == Site(coordinator=Coordinator(address="coordinator.example:9443"), name="site-a")
    with pytest.raises(ValueError, match="frozen"):
        found.name = "site-b"  # type: ignore[misc]


def test_a_file_from_windows_means_the_same(tmp_path: Path) -> None:
    windows = b"\xef\xbb\xbf" + GOOD.replace(b"\n", b"\r\n")
    assert load(tmp_path, windows) == load(tmp_path, GOOD)


def test_typographic_quotes_and_hard_blanks_are_named_with_line_and_character(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationWrong) as refused:
        load(tmp_path, "coordinator:\n  address: “coordinator.example:9443”\nname: site-a\n".encode())
    assert "line 2, character" in refused.value.message
    assert refused.value.exit_status == 78


@pytest.mark.parametrize(
    ("content", "near"),
    [
        (b"coordinatr:\n  address: x:1\nname: a\n", "coordinator"),
        (b"coordinator:\n  adress: x:1\nname: a\n", "address"),
        (GOOD + b"limits: {upload_byte: 5}\n", "upload_bytes"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_one(tmp_path: Path, content: bytes, near: str) -> None:
    with pytest.raises(ConfigurationWrong) as refused:
        load(tmp_path, content)
    assert refused.value.code == "CFD-C03"
    assert near in refused.value.hint + refused.value.message


@pytest.mark.parametrize(
    "content",
    [
        b"name: a\n",
        GOOD + b"limits: {upload_bytes: 0}\n",
        GOOD + b'limits: {upload_bytes: "5"}\n',
        b"- 1\n",
        b"a: [1\n",
        b"",
    ],
)
def test_a_wrong_file_says_which_file_and_ends_with_the_status_that_systemd_does_not_retry(
    tmp_path: Path, content: bytes
) -> None:
    with pytest.raises(ConfigurationWrong, match=r"site\.yaml") as refused:
        load(tmp_path, content)
    assert refused.value.exit_status == 78


def test_the_environment_overrides_single_keys(tmp_path: Path) -> None:
    found = load(
        tmp_path,
        GOOD,
        CONFIDE__COORDINATOR__ADDRESS="other.example:1\r\n",
        CONFIDE__LIMITS__UPLOAD_BYTES="5",
        CONFIDE__LIMITS__NAMES="[a, b]",
        CONFIDE_HOME="/elsewhere",
    )
    assert found.coordinator.address == "other.example:1"
    assert found.limits == Limits(upload_bytes=5, names=("a", "b"))


def test_an_override_of_an_unknown_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationWrong, match="nmae"):
        load(tmp_path, GOOD, CONFIDE__NMAE="x")


def test_the_written_file_reads_back_and_names_every_default(tmp_path: Path) -> None:
    wanted = Site(coordinator=Coordinator(address="a:1"), name="yes", limits=Limits(upload_bytes=7))
    text = commented_yaml(wanted, title="A site.")
    assert load(tmp_path, text.encode()) == wanted
    assert "#  names: []" in text
    assert "most bytes of one upload" in text


def test_a_written_file_of_defaults_alone_reads_back(tmp_path: Path) -> None:
    wanted = Site(coordinator=Coordinator(address="a:1"), name="x")
    assert load(tmp_path, commented_yaml(wanted, title="A site.").encode()) == wanted
    assert effective(wanted)["limits"] == {"upload_bytes": 1000, "names": []}


@pytest.mark.parametrize(
    ("flag", "variables", "home"),
    [
        ("/given", {"CONFIDE_HOME": "/variable", "HOME": "/h"}, "/given"),
        (None, {"CONFIDE_HOME": "/variable", "HOME": "/h"}, "/variable"),
        (None, {"XDG_DATA_HOME": "/data", "HOME": "/h"}, "/data/confide/site"),
        (None, {"XDG_DATA_HOME": "relative", "HOME": "/h"}, "/h/.local/share/confide/site"),
        (None, {"HOME": "/h"}, "/h/.local/share/confide/site"),
    ],
)
def test_the_home_is_the_flag_else_the_variable_else_the_xdg_place(
    flag: str | None, variables: dict[str, str], home: str
) -> None:
    assert resolve_home("site", flag, variables=variables) == Path(home)


def test_without_any_home_the_program_says_what_to_give() -> None:
    with pytest.raises(ConfigurationWrong) as refused:
        resolve_home("coordinator", None, variables={})
    assert "--home" in refused.value.hint


def test_paths_in_a_file_are_relative_to_its_folder() -> None:
    assert from_folder(Path("/home/site.yaml"), Path("data/x.csv")) == Path("/home/data/x.csv")
    assert from_folder(Path("/home/site.yaml"), Path("/data/x.csv")) == Path("/data/x.csv")
