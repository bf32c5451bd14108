"""A trainer without torch, for tests that kill many daemons: real pipe, real leases, an update of zeros."""

import sys
from pathlib import Path

import numpy as np

from federation import plan as plans
from federation.messages import EvaluationCounts, Phase, PhaseRequest, decode_body
from federation.tensors import TensorFile, write_tensors
from site_client.trainer import Pipe, die_with_parent, serve
from site_client.trainer_messages import Begin, DataClosed, Done, Failed, LeaseDone, Ready, Setup


class LightWork:
    """Takes the plan's steps, writes zeros; what it was asked is in a file beside the model."""

    def __init__(self, setup: Setup, pipe: Pipe) -> None:
        self._pipe = pipe
        self._portion = setup.lease_steps
        self._plan = plans.decode(bytes.fromhex(setup.plan))
        self._log = Path(setup.home) / "trained.txt"

    def run(self, begin: Begin) -> Done | Failed:
        request = decode_body("phase-request", bytes.fromhex(begin.request))
        assert isinstance(request, PhaseRequest)
        self._pipe.say(DataClosed(records=1))
        if request.phase is Phase.EVALUATE:
            return Done(steps=0, evaluation=self._evaluate())
        left = self._plan.training.local_steps
        charged = self._plan.privacy.mechanism != "none"
        while left and charged:
            steps = self._pipe.ask_steps(min(left, self._portion))
            self._note(f"{request.round} {request.attempt} {steps}")
            self._pipe.say(LeaseDone(steps=steps))
            left -= steps
        with TensorFile(Path(begin.model)) as model:
            write_tensors(Path(begin.output), {name: np.zeros_like(a) for name, a in model.arrays().items()})
        return Done(steps=self._plan.training.local_steps)

    def _evaluate(self) -> EvaluationCounts:
        evaluate = self._plan.evaluate
        assert evaluate is not None
        if evaluate.release == "charged":
            self._pipe.ask_steps(1)
            self._pipe.say(LeaseDone(steps=1))
        counts = (1,) * 16
        return EvaluationCounts(
            release=evaluate.release, bins=16, positives=counts, negatives=counts, loss_sum=(1.0).hex()
        )

    def _note(self, text: str) -> None:
        with self._log.open("a") as file:
            file.write(text + "\n")


def main() -> int:
    die_with_parent()
    pipe = Pipe()
    setup = pipe.next()
    assert isinstance(setup, Setup)
    pipe.say(Ready(device="cpu", engine="light/1", versions={"numpy": np.__version__}))
    serve(pipe, LightWork(setup, pipe))
    return 0


if __name__ == "__main__":
    sys.exit(main())
