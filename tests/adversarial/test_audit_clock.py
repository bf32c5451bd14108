"""The clock of a machine is moved under a running log: time in the log never decreases, and every move is said."""

from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from audit.clock import microseconds
from audit.events import DataRetired
from audit.log import AuditLog
from tests.support.audit_logs import HandClock, create, draft, events_in, reopen

HOUR_S = 3600
MOVES = st.lists(
    st.tuples(st.sampled_from(["pass", "jump", "boot"]), st.integers(-10 * 86_400, 10 * 86_400)), max_size=12
)


def moved(log: AuditLog, home: Path, clock: HandClock, kind: str, seconds: int) -> tuple[AuditLog, bool]:
    """Move the clock; return the log, and whether the machine's time went another way than time does."""
    match kind:
        case "pass":
            clock.pass_s(abs(seconds))
            return log, False
        case "jump":
            clock.jump_s(seconds)
            return log, abs(seconds) > 2
        case _:
            log.close()
            return reopen(home, clock), False


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moves=MOVES)
def test_time_never_decreases_and_says_when_held(tmp_path_factory: Any, moves: list[tuple[str, int]]) -> None:
    home = tmp_path_factory.mktemp("home")
    clock = HandClock()
    log = create(home, clock)
    said = 0
    for kind, seconds in moves:
        log, jumped = moved(log, home, clock, kind, seconds)
        said += jumped
        log.append(draft())
    log.close()
    events = events_in(home / "audit")
    times = [event["t_us"] for event in events]
    assert times == sorted(times)
    for event in events:
        assert event.get("wall_us", 0) < event["t_us"], "held time shows the clock's own, which is behind"
    jumps = [event for event in events if event["action"] == "clock.jumped"]
    behind_at_boot = sum(kind == "boot" for kind, _ in moves)
    assert said <= len(jumps) <= said + behind_at_boot
    assert all(abs(jump["to_us"] - jump["from_us"]) > 2_000_000 or jump["to_us"] < jump["from_us"] for jump in jumps)


def test_an_entry_after_the_jump_follows_the_entry_that_says_so(tmp_path: Path) -> None:
    clock = HandClock()
    with create(tmp_path, clock) as log:
        clock.jump_s(-HOUR_S)
        log.append(draft())
        clock.pass_s(HOUR_S + 1)
        log.append(draft())
    jumped, held, free = events_in(tmp_path / "audit")[-4:-1]
    assert [one["action"] for one in (jumped, held, free)] == ["clock.jumped", "data.retired", "data.retired"]
    assert jumped["from_us"] - jumped["to_us"] == HOUR_S * 1_000_000
    assert held["wall_us"] == jumped["to_us"]
    assert "wall_us" not in free, "the clock caught up, so nothing is held any more"


def test_a_small_step_of_the_clock_is_no_jump_and_still_never_goes_back(tmp_path: Path) -> None:
    clock = HandClock()
    with create(tmp_path, clock) as log:
        before = log.append(draft())
        clock.jump_s(-1)
        after = log.append(draft())
    assert after.event["t_us"] == before.event["t_us"]
    assert "clock.jumped" not in [event["action"] for event in events_in(tmp_path / "audit")]


def test_the_hour_that_comes_twice_in_autumn_is_two_hours_in_the_log(tmp_path: Path) -> None:
    zone = ZoneInfo("Europe/Berlin")
    first = datetime(2026, 10, 25, 2, 30, tzinfo=zone, fold=0)
    second = datetime(2026, 10, 25, 2, 30, tzinfo=zone, fold=1)
    assert microseconds(second) - microseconds(first) == HOUR_S * 1_000_000
    clock = HandClock()
    clock.wall = first
    with create(tmp_path, clock) as log:
        log.append(draft())
        clock.wall = second
        clock.passed_s += HOUR_S
        log.append(draft())
    events = events_in(tmp_path / "audit")
    retired = [event["t_us"] for event in events if event["action"] == DataRetired.model_fields["action"].default]
    assert retired[1] - retired[0] == HOUR_S * 1_000_000
    assert "clock.jumped" not in [event["action"] for event in events]
    # Compared as numbers: between zones, Python calls a time of the hour that comes twice unequal to every other.
    assert retired[0] == int(first.timestamp()) * 1_000_000
