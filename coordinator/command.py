"""`confide coordinator`: finds the module of a verb and hands the rest of the command line to it."""

import importlib
import sys
from typing import Final

from federation.errors import InvalidInput

HELP: Final = """usage: confide coordinator VERB [options]

Run a federation's coordinator, and say who takes part.

  init          make a new federation: keys, authority, database, configuration
  serve         run the service: link, API, jobs
  check         the effective configuration, and what is wrong with it
  invite        a one-time token with which a site enrols
  sites         list, show, confirm, suspend, resume, revoke
  user          people who may submit jobs or look
  charter       show the charter in force; sign a new epoch with the root key
  certificate   show or renew the coordinator's certificate

Each verb explains itself: confide coordinator VERB --help
Example: confide coordinator init --name heart.example.org --address coordinator.example.org:9443
"""

_MODULES: Final[dict[str, str]] = {
    "serve": "coordinator.serve_command",
    "check": "coordinator.serve_command",
    "init": "coordinator.membership_command",
    "invite": "coordinator.membership_command",
    "sites": "coordinator.membership_command",
    "user": "coordinator.membership_command",
    "charter": "coordinator.membership_command",
    "certificate": "coordinator.membership_command",
}


def main(arguments: list[str]) -> int:
    """Run one verb; errors go to the caller.

    Raises:
        InvalidInput: No such verb.
    """
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        (sys.stdout if arguments else sys.stderr).write(HELP)
        return 0 if arguments else 2
    verb, rest = arguments[0], arguments[1:]
    module = _MODULES.get(verb)
    if module is None:
        raise InvalidInput("CFD-G02", f"there is no verb {verb[:40]!r}", hint="see `confide coordinator --help`")
    verbs = importlib.import_module(module).VERBS
    status: int = verbs[verb](rest)
    return status
