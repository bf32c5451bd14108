"""A home has no byte left in the middle of a job, and gets its space back later: real processes, a real small disk."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import environment

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(600)]


def played(folder: Path, party: str) -> dict[str, Any]:
    done = subprocess.run(
        [
            *("unshare", "--user", "--map-root-user", "--mount", sys.executable),
            *("-m", "tests.support.small_disk", str(folder), party),
        ],
        capture_output=True,
        text=True,
        timeout=500,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("party", ["bern", "coordinator"])
def test_a_job_goes_on_when_a_full_disk_has_room_again_and_nothing_is_lost(tmp_path: Path, party: str) -> None:
    found = played(tmp_path, party)
    assert found["while_full"] == "running"
    assert (found["state"], found["reason"]) == ("completed", ""), found
    assert found["rounds"] == [["bern", "chur"]] * 8
    assert all(charged <= planned for charged, planned in found["steps"])
    assert found["verified"] == [0, 0, 0]
    assert set(found["ended"]) <= {"bern"}  # a site whose log takes nothing more ends, and says why
    if found["ended"]:
        assert "No space left on device" in found["logs"] or "is full" in found["logs"]
    assert "Traceback" not in found["logs"]
