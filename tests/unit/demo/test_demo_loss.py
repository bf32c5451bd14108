"""The demo kills a hospital between masking and reveal, says only what its audit log bears out, and starts it again."""

import json
from pathlib import Path

from confide_demo_loss import FIRST_ROUND, Loss, PowerCut


class Played:
    """A daemon of which only the log and the kills are real."""

    def __init__(self, folder: Path, revealed_before: int) -> None:
        self.log = folder / "daemon.log"
        self.revealed_before = revealed_before
        self.acts: list[str] = []
        self.round = FIRST_ROUND
        self.masked()

    def masked(self) -> None:
        line = {"event": "sum.phase", "job": "heart", "round": self.round, "phase": "mask"}
        self.log.write_text(json.dumps(line) + "\n", encoding="utf-8")

    def kill(self) -> None:
        self.acts.append(f"kill {self.round}")

    def start(self) -> None:
        self.acts.append("start")
        self.round += 1
        self.masked()

    def revealed(self) -> set[int]:
        return set(range(self.revealed_before))

    def cut(self) -> PowerCut:
        made = PowerCut("lund", self.log, kill=self.kill, start=self.start, revealed=self.revealed)
        made.start()
        made.join(60)
        assert not made.is_alive()
        return made


def test_a_kill_in_time_is_told_and_the_daemon_starts_again(tmp_path: Path) -> None:
    played = Played(tmp_path, revealed_before=0)
    assert played.cut().loss == Loss("lund", FIRST_ROUND)
    assert played.acts == [f"kill {FIRST_ROUND}", "start"]


def test_a_kill_that_came_after_the_reveal_does_not_count_and_is_tried_again(tmp_path: Path) -> None:
    played = Played(tmp_path, revealed_before=FIRST_ROUND + 1)
    assert played.cut().loss == Loss("lund", FIRST_ROUND + 1)
    assert played.acts == [f"kill {FIRST_ROUND}", "start", f"kill {FIRST_ROUND + 1}", "start"]


def test_a_daemon_that_does_not_start_again_is_told(tmp_path: Path) -> None:
    played = Played(tmp_path, revealed_before=0)

    def broken() -> None:
        raise RuntimeError("no")

    made = PowerCut("lund", played.log, kill=played.kill, start=broken, revealed=played.revealed)
    made.start()
    made.join(60)
    assert (made.loss, str(made.problem)) == (None, "no")


def test_nobody_is_killed_once_the_job_is_over(tmp_path: Path) -> None:
    played = Played(tmp_path, revealed_before=0)
    played.log.write_text("", encoding="utf-8")
    made = PowerCut("lund", played.log, kill=played.kill, start=played.start, revealed=played.revealed)
    made.start()
    made.stop()
    assert (made.loss, played.acts) == (None, [])
