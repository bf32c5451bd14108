"""`confide job init`: each template is a plan that reads as it stands."""

import pytest

from coordinator import job_command
from federation import plan as plans

MODELS = {"tabular": "mlp", "image": "cnn", "text": "transformer"}


@pytest.mark.parametrize("template", sorted(MODELS))
def test_a_template_is_a_valid_plan(template: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert job_command.main(["init", "--template", template]) == 0
    text = capsys.readouterr().out
    assert plans.read(text).model.kind == MODELS[template]
    assert text.startswith("#")
    assert all(len(line) <= 120 for line in text.splitlines())


def test_the_templates_are_of_different_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    names = set()
    for template in MODELS:
        job_command.main(["init", "--template", template])
        names.add(plans.read(capsys.readouterr().out).name)
    assert len(names) == len(MODELS)
