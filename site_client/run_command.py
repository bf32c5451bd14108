"""`confide site run`: the daemon, until a signal ends it."""

import signal
from types import FrameType
from typing import Final

from federation.edge.arguments import VerbParser

HELP: Final = """confide site run: work for the federation until told to stop

  confide site run [--home DIR] [--log-level debug|info|warning|error]

Dials the coordinator and answers what it asks, by this site's own policy, budget and people; nothing dials in.
Says `service.ready` on standard error (and to systemd) once it is. SIGTERM or Ctrl-C: begins no phase, gives those
under way a few seconds (stopping.grace_s), then ends; again: ends at once. SIGHUP: reads policy and certificate again.
Exit status 0 after a signal, 78 where the home must not be worked with.

Example:
  confide site run --home /var/lib/confide
"""


def run(arguments: list[str]) -> int:
    """Run the daemon and return the exit status."""
    parser = VerbParser("confide site run", add_help=False)
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--home", metavar="DIR")
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"))
    options = parser.parse_args(arguments)
    if options.help:
        print(HELP, end="")
        return 0
    from federation.edge.clock import SystemClock
    from federation.edge.configuration import environment, resolve_home
    from federation.edge.homes import SiteHome
    from federation.edge.logs import catch_the_rest, open_log
    from site_client.attending import make_link
    from site_client.control import ControlSocket
    from site_client.daemon import Daemon
    from site_client.events import Signalled
    from site_client.mailbox import Mailbox
    from site_client.open_site import OpenSite
    from site_client.service_manager import notifier

    home, clock = SiteHome(resolve_home("site", options.home)), SystemClock()
    with OpenSite(home, clock=clock, process="daemon") as site:
        log = open_log(level=options.log_level or site.configuration.log_level, clock=clock)
        catch_the_rest(log)
        mailbox, variables = Mailbox(), environment()
        link = make_link(site, mailbox, environment)
        daemon = Daemon(site, link, mailbox, log, variables=variables, notify=notifier(variables))
        control = ControlSocket(home.path, mailbox.post)

        def on_signal(number: int, _frame: FrameType | None) -> None:
            mailbox.post(Signalled(number))

        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, on_signal)
        try:
            daemon.run()
            site.close("signal" if daemon.was_cut else "drain")
        finally:
            control.close()
        log.announce("service.stopped", "stopped", site=site.site)
    return 0
