"""Run `confide site run` with the light trainer, and kill it at the nth passage of a named point.

    python -m tests.support.killed_site POINT WHEN NUMBER -- site run --home DIR

POINT is ``module:Class.method`` or ``-`` for none; WHEN is ``before`` or ``after`` that call.
"""

import importlib
import os
import signal
import sys
from pathlib import Path
from typing import Any


def kill_at(point: str, when: str, number: int) -> None:
    """Make the `number`th call of `point` the last thing that this process does."""
    module_name, _, path = point.partition(":")
    owner: Any = importlib.import_module(module_name)
    *parents, name = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    original = getattr(owner, name)
    passed = 0

    def counted(*arguments: Any, **named: Any) -> Any:
        nonlocal passed
        passed += 1
        if passed == number and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*arguments, **named)
        if passed == number and when == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, counted)


def main() -> int:
    from site_client import trainer_process

    point, when, number, _, *arguments = sys.argv[1:]
    script = Path(__file__).with_name("light_trainer.py")
    trainer_process.trainer_command = lambda: [sys.executable, str(script)]
    if point != "-":
        kill_at(point, when, int(number))
    import confide_cli

    sys.argv = ["confide", *arguments]
    return confide_cli.main()


if __name__ == "__main__":
    sys.exit(main())
