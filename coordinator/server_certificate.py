"""The certificate of the coordinator's own port, issued by the federation's authority for all of its names."""

from datetime import timedelta

from coordinator.configuration import CoordinatorConfiguration
from federation.certificates import certificate_to_pem
from federation.edge.clock import Clock
from federation.edge.files import write_whole
from federation.edge.homes import CoordinatorHome, load_tls_key
from federation.link.route import parse_address


def issue_server_certificate(home: CoordinatorHome, configuration: CoordinatorConfiguration, clock: Clock) -> None:
    """Write a new certificate for the coordinator's port, for its TLS key and all of its names."""
    authority = home.certificate_authority()
    certificate = authority.issue_server(
        load_tls_key(home.tls_file).public_key(),
        (parse_address(configuration.address).host, *configuration.link.names),
        now=clock.now(),
        validity=timedelta(seconds=configuration.certificates.validity_s),
    )
    write_whole(home.certificate_file, certificate_to_pem(certificate))
