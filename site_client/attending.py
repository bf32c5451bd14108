"""The site behind the link: what the link's threads hear becomes an event, and the hello says what the site offers."""

import secrets
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from federation.certificates import certificate_to_pem, tls_key_to_pem
from federation.edge.homes import load_tls_key
from federation.errors import ConfideError
from federation.link.client import LinkClient
from federation.link.dial import SiteTls
from federation.link.route import choose_route, parse_address
from federation.messages import PROTOCOL_VERSION, Body, Hello, HelloReply, JobName, SignedMessage, Versions
from site_client.events import Acknowledged, Connected, Lost, MessageRefused
from site_client.mailbox import Mailbox
from site_client.open_site import OpenSite

OLDEST_PROTOCOL: Final = 1


def own_versions() -> Versions:
    """Return what this side runs, as the hello says it."""
    try:
        installed = version("confide")
    except PackageNotFoundError:
        installed = "0.1.0"
    return Versions(confide=installed, protocol=PROTOCOL_VERSION, oldest_protocol=OLDEST_PROTOCOL)


class Attending:
    """Implements `federation.link.client.LinkHandler` for a daemon's mailbox."""

    def __init__(self, site: OpenSite, mailbox: Mailbox) -> None:
        self._site = site
        self._mailbox = mailbox

    def hello(self, message_id: str) -> Hello:
        """Return the hello: data sets by schema and public figures, the charter epoch held, the jobs under way."""
        notices, contracts = self._site.notices()
        busy: tuple[JobName, ...] = tuple(stored.job for stored in self._site.store.open_jobs())
        return Hello(
            message_id=message_id,
            site=self._site.site,
            versions=own_versions(),
            charter_epoch=self._site.charter.charter.epoch,
            datasets=notices,
            contracts=contracts,
            busy_jobs=busy[:256],
        )

    def on_connected(self, reply: HelloReply) -> None:
        """Note that work can arrive now."""
        self._mailbox.post(Connected(reply.notice))

    def on_lost(self, problem: ConfideError) -> None:
        """Note that the attendance ended, and why."""
        self._mailbox.post(Lost(problem))

    def on_message(self, message: SignedMessage, body: Body) -> None:
        """Have the loop deal with a message; it is acknowledged when this returns."""
        self._mailbox.take_message(body)

    def on_acknowledged(self, message_id: str) -> None:
        """Note that the coordinator has taken over a message."""
        self._mailbox.post(Acknowledged(message_id))

    def on_refused(self, message_id: str, problem: ConfideError) -> None:
        """Note that the coordinator finally refused a message."""
        self._mailbox.post(MessageRefused(message_id, problem))


def make_link(site: OpenSite, mailbox: Mailbox, variables: Callable[[], Mapping[str, str]]) -> LinkClient:
    """Return the link to the coordinator of the site's configuration, not started yet."""
    home, configuration = site.home, site.configuration
    address = parse_address(configuration.coordinator.address)

    def tls() -> SiteTls:
        return SiteTls(
            key_pem=tls_key_to_pem(load_tls_key(home.tls_file)),
            certificate_pem=certificate_to_pem(home.certificate()),
        )

    return LinkClient(
        site=site.site,
        route=lambda: choose_route(address, variables()),
        authority_pem=certificate_to_pem(home.authority_certificate()),
        tls=tls,
        identity=site.identity,
        coordinator_key=lambda: bytes.fromhex(site.charter.charter.coordinator.identity),
        handler=Attending(site, mailbox),
        blobs=site.blobs,
        limits=configuration.link_limits,
        clock=site.clock,
        randomness=secrets.token_bytes,
    )
