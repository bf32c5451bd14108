import pytest

from federation.edge.arguments import VerbParser, run_verb
from federation.errors import InvalidInput

HELP = "usage: confide site data VERB\n"


def test_a_mistake_has_a_code_and_the_example_that_works() -> None:
    parser = VerbParser("confide job submit", example="confide job submit job.yaml")
    parser.add_argument("plan")
    with pytest.raises(InvalidInput) as refused:
        parser.parse_args([])
    assert refused.value.code == "CFD-G02"
    assert refused.value.message == "confide job submit: the following arguments are required: plan"
    assert refused.value.hint == "such as: confide job submit job.yaml"


def test_without_an_example_a_mistake_points_to_the_help() -> None:
    with pytest.raises(InvalidInput) as refused:
        VerbParser("confide job show").parse_args(["--colour"])
    assert refused.value.hint == "see `confide job show --help`"


def test_an_option_is_written_out_in_full() -> None:
    parser = VerbParser("confide job submit")
    parser.add_argument("--priority")
    with pytest.raises(InvalidInput, match="--prio"):
        parser.parse_args(["--prio", "3"])


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["help"], []])
def test_help_is_shown_where_it_is_asked_for_or_nothing_is(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_verb("site data", {"list": lambda _: 1}, arguments, help_text=HELP) == 0
    assert capsys.readouterr().out == HELP


@pytest.mark.parametrize(
    ("arguments", "expected"), [([], []), (["--all"], ["--all"]), (["list", "--all"], ["--all"]), (["show", "x"], None)]
)
def test_a_default_verb_takes_what_isnt_anothers(arguments: list[str], expected: list[str] | None) -> None:
    given: list[list[str]] = []

    def listed(rest: list[str]) -> int:
        given.append(rest)
        return 0

    verbs = {"list": listed, "show": lambda _: 0}
    assert run_verb("coordinator sites", verbs, arguments, help_text=HELP, default="list") == 0
    assert given == ([] if expected is None else [expected])


def test_an_unknown_verb_is_refused_with_those_that_exist() -> None:
    with pytest.raises(InvalidInput) as refused:
        run_verb("site data", {"list": lambda _: 0, "show": lambda _: 0}, ["frob"], help_text=HELP)
    assert (refused.value.message, refused.value.hint) == (
        "there is no `confide site data frob`",
        "there are: list, show",
    )
