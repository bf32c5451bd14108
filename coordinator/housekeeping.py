"""What the coordinator looks after by itself while it serves: charter epochs, its certificate, unfinished uploads.

A command puts an epoch in force; the sites that attend get it within a second. The certificate is renewed before it
ends, without a restart. A fault is logged and the next look tries again: housekeeping never ends a job.
"""

import threading
from datetime import timedelta
from typing import Final

from sqlalchemy.exc import DBAPIError

from coordinator.configuration import CoordinatorConfiguration
from coordinator.membership_store import MembershipStore
from coordinator.reception import Reception
from coordinator.server_certificate import issue_server_certificate
from federation.certificates import renewal_due
from federation.edge.clock import Clock
from federation.edge.homes import CoordinatorHome
from federation.edge.logs import Log
from federation.errors import ConfideError
from federation.link.blobs import BlobStore
from federation.link.server import LinkServer
from federation.messages import SiteId

SLOW_LOOK_S: Final = 3600.0
"""How often the coordinator looks at the end of its own certificate, and for uploads that nobody finishes."""

UNFINISHED_KEPT_S: Final = 7 * 86_400.0
"""How long an upload that stands still can be resumed."""


class Housekeeping:
    """One thread that looks once a second, from `start` to `stop`."""

    def __init__(
        self,
        home: CoordinatorHome,
        configuration: CoordinatorConfiguration,
        *,
        membership: MembershipStore,
        link: LinkServer,
        reception: Reception,
        blobs: BlobStore,
        clock: Clock,
        log: Log,
    ) -> None:
        self._home = home
        self._configuration = configuration
        self._membership = membership
        self._link = link
        self._reception = reception
        self._blobs = blobs
        self._clock = clock
        self._log = log
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep_house, name="housekeeping", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Begin no other look."""
        self._stopping.set()

    def _keep_house(self) -> None:
        """Once a second: send new charter epochs to sites that attend; once an hour: the slow looks."""
        signed = self._membership.charter()
        epoch = 0 if signed is None else signed.charter.epoch
        look_again_s = 0.0
        while not self._stopping.wait(1.0):
            try:
                epoch = self._send_new_epochs(epoch)
                if self._clock.monotonic_s() >= look_again_s:
                    look_again_s = self._clock.monotonic_s() + SLOW_LOOK_S
                    self.renew_certificate()
                    self.forget_unfinished_uploads()
            except (ConfideError, DBAPIError) as problem:
                self._log.internal("housekeeping.failed", problem)

    def _send_new_epochs(self, epoch: int) -> int:
        """Send every epoch after `epoch`, which a command has put in force, and return the newest one's number."""
        found = self._membership.charter()
        if found is None or found.charter.epoch == epoch:
            return epoch
        for state in self._link.site_states():
            if self._link.connected(state.site):
                self._reception.send_charters(SiteId(state.site), epoch)
        return found.charter.epoch

    def forget_unfinished_uploads(self) -> None:
        """Forget uploads that have stood still for `UNFINISHED_KEPT_S`: of sites that died, or of jobs that ended."""
        if self._blobs.discard_untouched(self._clock.now().timestamp() - UNFINISHED_KEPT_S):
            self._log.info("uploads.forgotten")

    def renew_certificate(self) -> bool:
        """Renew the coordinator's own certificate where that is due, without a restart; return whether it was."""
        before = timedelta(seconds=self._configuration.certificates.renew_before_s)
        if not renewal_due(self._home.certificate(), now=self._clock.now(), before=before):
            return False
        issue_server_certificate(self._home, self._configuration, self._clock)
        self._link.reload_tls()
        self._log.info("certificate.renewed")
        return True
