"""What a site's machine has: memory of its control group, accelerators as lent, as named by torch, or none."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from site_client import machine
from site_client.machine import Accelerators, Machine, NoTorch


def test_memory_is_rounded_up_and_no_more_than_the_control_group_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = tmp_path / "memory.max"
    monkeypatch.setattr(machine, "_CGROUP_MEMORY", group)
    whole = Machine(tmp_path, {}, accelerators=0).memory_gib()
    assert whole >= 1
    for text, expected in (("max\n", whole), (f"{(1 << 29)}\n", 1), (f"{1 << 60}\n", whole)):
        group.write_text(text)
        assert Machine(tmp_path, {}, accelerators=0).memory_gib() == expected


def test_what_the_operator_lends_is_not_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", None)
    assert Machine(tmp_path, {}, accelerators=3).accelerators_count() == 3


@pytest.mark.parametrize(("status", "said", "count"), [(0, b'{"device":"cuda","count":2,"torch":"2"}', 2), (1, b"", 0)])
def test_torch_is_asked_once_by_a_process_that_ends_and_one_without_torch_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, said: bytes, count: int
) -> None:
    asked: list[Any] = []

    def run(command: list[str], **given: Any) -> Any:
        asked.append((command[-1], given["cwd"]))
        return subprocess.CompletedProcess(command, status, said, b"")

    monkeypatch.setattr(subprocess, "run", run)
    found = Machine(tmp_path / "cache", {}, accelerators=None)
    assert [found.accelerators_count(), found.accelerators_count()] == [count, count]
    assert asked == [("site_client.accelerators", tmp_path)]


def test_a_torch_that_does_not_load_in_time_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **given: Any) -> Any:
        raise subprocess.TimeoutExpired(command, 1)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(NoTorch, match="didn't load in 120 s") as refused:
        Machine(tmp_path, {}, accelerators=None).accelerators()
    assert refused.value.code == "CFD-R54"


def test_the_process_that_asks_torch_answers_on_this_machine(tmp_path: Path) -> None:
    found = Machine(tmp_path, {}, accelerators=None).accelerators()
    assert isinstance(found, Accelerators)
    assert found.device
    assert found.count >= 0
