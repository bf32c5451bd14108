"""`confide site doctor`: problem | how to fix."""

from dataclasses import asdict
from typing import Final

from federation.edge.tables import print_rows
from site_client.command_line import Parser, open_home, wants_help

HELP: Final = """confide site doctor: what is wrong here, and how to fix it

  confide site doctor [--home DIR] [--format table|json|jsonl]

Looks at the coordinator's name, the route and its proxy, TLS and whether it is intercepted, this site's certificate,
the clock, the disk, policy, data sets, the privacy ledger and the accelerator. Changes nothing; the daemon may run.
Exit status 0 where nothing is wrong, 1 otherwise.

Example:
  confide site doctor
"""


def doctor(arguments: list[str]) -> int:
    """Look at everything that can be wrong, and print what is."""
    if wants_help(arguments):
        print(HELP, end="")
        return 0
    options = Parser("doctor", HELP).parse_args(arguments)
    from federation.edge.clock import SystemClock
    from federation.edge.configuration import environment, load_configuration
    from site_client.configuration import SiteConfiguration
    from site_client.doctor import Doctor

    home = open_home(options.home)
    configuration = load_configuration(SiteConfiguration, home.configuration_file)
    findings = Doctor(home, configuration, clock=SystemClock(), variables=environment()).examine()
    rows = [
        {**asdict(item), "state": "problem" if item.is_problem else "ok", "how_to_fix": item.how_to_fix or None}
        for item in findings
    ]
    columns = ["look", "state", "found", "how_to_fix"]
    print_rows(rows, columns, schema="confide/site-doctor/v1", form=options.format)
    return 1 if any(item.is_problem for item in findings) else 0
