"""`confide site …`: one word more is imported only when it is asked for."""

import difflib
import importlib
from typing import Final

from federation.errors import InvalidInput

HELP: Final = """confide site: one institution's side of the federation

  enrol URL --token-file FILE         become a site; keys never leave this machine
  run                                 the daemon: train and answer, by this site's own rules
  doctor                              network, certificate, clock, accelerator, disk, data, policy: problem | how to fix
  status                              what runs, what waits, the link
  check                               the effective configuration, and what is wrong with it
  pause | resume                      begin no phase until resumed
  drain                               end after the phases under way
  abort JOB                           end a job here, at once
  members list|accept|refuse          whom this site accepts as other members
  data add|list|show|verify|opt-out|retire
                                      the data sets that may be trained on
  policy show|edit|test|history       what may run here
  approvals list|show|approve|deny    jobs that wait for a person
  budget show|settle|raise|foreign|recover
                                      what each data set's privacy budget has gone into, and its changes

All take --home DIR (default: CONFIDE_HOME, else the XDG place). More: confide site VERB --help

Example:
  confide site run --home /var/lib/confide
"""
VERBS: Final[dict[str, tuple[str, str]]] = {
    "enrol": ("site_client.membership_command", "enrol"),
    "members": ("site_client.membership_command", "members"),
    "run": ("site_client.run_command", "run"),
    "doctor": ("site_client.doctor_command", "doctor"),
    "status": ("site_client.operator_command", "status"),
    "check": ("site_client.operator_command", "check"),
    "pause": ("site_client.operator_command", "pause"),
    "resume": ("site_client.operator_command", "resume"),
    "drain": ("site_client.operator_command", "drain"),
    "abort": ("site_client.operator_command", "abort"),
    "data": ("site_client.data_command", "main"),
    "policy": ("site_client.policy_command", "main"),
    "approvals": ("site_client.approvals_command", "main"),
    "budget": ("site_client.budget_command", "main"),
}


def main(arguments: list[str]) -> int:
    """Run one verb and return the exit status."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0 if arguments else 2
    found = VERBS.get(arguments[0])
    if found is None:
        near = difflib.get_close_matches(arguments[0], VERBS, n=1)
        hint = f"did you mean `confide site {near[0]}`?" if near else "see `confide site --help`"
        raise InvalidInput("CFD-G02", f"there is no `confide site {arguments[0]}`", hint=hint)
    module, name = found
    status: int = getattr(importlib.import_module(module), name)(arguments[1:])
    return status
