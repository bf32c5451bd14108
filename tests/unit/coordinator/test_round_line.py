from coordinator.round_line import phase_line, round_line
from coordinator.views import EventView


def event(name: str, **fields: object) -> EventView:
    return EventView(number=1, job="heart-risk-0a1b2c", at="2026-01-01T00:00:00Z", name=name, fields=fields)


def done(**changes: object) -> EventView:
    fields = {
        "round": 6,
        "rounds": 20,
        "quorum": 3,
        "survivors": ["bern", "mercy", "oslo", "st-anna"],
        "late": {},
        "metrics": {"loss": 0.4121, "accuracy": 0.81, "auc": 0.8712},
        "seconds": 42.04,
        "upload_bytes": 1_200_000,
        "epsilon": 1.301,
        "epsilon_allowed": 4.0,
    }
    return event("round.done", **{**fields, **changes})


def test_a_round_is_one_line_with_everything_a_launcher_asks_for() -> None:
    expected = "round 7/20  quorum 4/3  loss 0.412  accuracy 0.810  auc 0.871  eps 1.31/4  42.0 s  1.2 MB"
    assert round_line(done()) == expected


def test_a_late_site_is_named_with_its_reason() -> None:
    line = round_line(done(survivors=["bern", "mercy", "oslo"], late={"st-anna": "training, out of memory"}))
    assert "quorum 3/3  late: st-anna (training, out of memory)  loss" in line


def test_an_undefined_metric_is_not_available_and_never_a_number() -> None:
    assert "auc not available" in round_line(done(metrics={"auc": None}))


def test_epsilon_is_rounded_up() -> None:
    assert "eps 0.01/1 " in round_line(done(epsilon=0.0001, epsilon_allowed=1.0)) + " "


def test_hostile_text_from_a_site_stays_on_its_line_and_cannot_drive_the_terminal() -> None:
    line = round_line(event("site.bad", round=0, site="oslo", reason="\x1b[2Jcleared\nround 9/9"))
    assert "\n" not in line
    assert "\x1b" not in line


def test_events_that_nobody_watches_for_print_nothing() -> None:
    assert round_line(event("round.opened", round=1)) == ""


def test_a_secure_round_tells_its_phase_and_a_foreign_event_tells_none() -> None:
    masked = event("sum.phase", round=2, phase="masked", asked=4)
    assert phase_line(masked) == "round 3: sending masked updates, 4 sites asked"
    assert round_line(masked) == ""
    assert phase_line(event("sum.phase", round=2, phase="later", asked=4)) == ""
    assert phase_line(done()) == ""
