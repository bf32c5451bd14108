"""The site's certificate, renewed while the daemon runs: same key, same name, a later end."""

from collections.abc import Callable
from datetime import timedelta

from federation import enrolment_messages
from federation.certificates import (
    Certificate,
    certificate_from_der,
    certificate_request,
    certificate_to_pem,
    public_key_digest,
    renewal_due,
)
from federation.edge.files import write_whole
from federation.edge.homes import load_tls_key
from federation.edge.logs import Log
from federation.errors import ConfideError, PeerMisbehaved
from federation.link.client import LinkClient
from site_client.events import Renewed
from site_client.open_site import OpenSite


class Renewal:
    """Asks for a certificate when one is due; one request at a time.

    Args:
        site: The opened home.
        link: Carries the request, also when the present certificate has lapsed.
        log: The process log.
        run: Runs a task in a thread.
        post: Puts the answer into the daemon's queue.
    """

    def __init__(
        self,
        site: OpenSite,
        link: LinkClient,
        log: Log,
        *,
        run: Callable[[Callable[[], None]], object],
        post: Callable[[Renewed], None],
    ) -> None:
        self._site = site
        self._link = link
        self._log = log
        self._run = run
        self._post = post
        self._asking = False

    def ask_when_due(self) -> None:
        """Ask for a new certificate if it is time."""
        before = timedelta(seconds=self._site.configuration.certificates.renew_before_s)
        certificate = self._site.home.certificate()
        if self._asking or not renewal_due(certificate, now=self._site.clock.now(), before=before):
            return
        self._asking = True
        self._run(self._ask)

    def _ask(self) -> None:
        try:
            key = load_tls_key(self._site.home.tls_file)
            federation = self._site.charter.charter.federation
            asked = certificate_request(key, federation=federation, site=self._site.site)
            request = enrolment_messages.sign(
                enrolment_messages.RenewRequest(site=self._site.site, certificate_request=asked.hex()),
                self._site.identity,
            )
            answer = self._link.renew(enrolment_messages.encode(request))
            reply = enrolment_messages.decode(enrolment_messages.RenewReply, answer)
            certificate = certificate_from_der(bytes.fromhex(reply.certificate))
            self._check(certificate, public_key_digest(key))
            self._post(Renewed(certificate_to_pem(certificate)))
        except ConfideError as problem:
            self._post(Renewed(b"", problem))

    def _check(self, certificate: Certificate, own_key: str) -> None:
        if public_key_digest(certificate) != own_key:
            raise PeerMisbehaved("CFD-E12", "the coordinator answered with a certificate for another key")

    def take(self, event: Renewed) -> None:
        """Keep the new certificate and attend with it."""
        self._asking = False
        if event.problem is not None:
            self._log.warning("certificate.not_renewed", code=event.problem.code)
            return
        write_whole(self._site.home.certificate_file, event.certificate_pem)
        self._log.info("certificate.renewed")
        self._link.reconnect()
