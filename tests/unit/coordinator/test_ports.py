"""Who holds a port."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.ports import free_place, holder_of, refuse_taken, split_address
from federation.errors import ConfigurationWrong

pytestmark = pytest.mark.enable_socket


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen(1)
        yield holder.getsockname()[1]


def test_a_taken_port_is_refused_and_says_by_whom(taken: int) -> None:
    with pytest.raises(ConfigurationWrong) as refused:
        refuse_taken(f"127.0.0.1:{taken}", "the link")
    assert refused.value.code == "CFD-J13"
    assert f"port {taken} is in use by process {os.getpid()}" in refused.value.message


def test_a_port_is_free_again_right_after_a_server_let_go_of_it(taken: int) -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gRPC and uvicorn do
        other.bind(("127.0.0.1", 0))
        other.listen(1)
        port = other.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            accepted, _ = other.accept()
            accepted.close()
    refuse_taken(f"127.0.0.1:{port}", "the link")


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(ConfigurationWrong, match="can't be listened on"):
        refuse_taken("192.0.2.1:9443", "the link")


@pytest.mark.parametrize("address", ["9443", "host:", "host:port", "host:70000", ""])
def test_what_is_no_address_is_a_wrong_configuration(address: str) -> None:
    with pytest.raises(ConfigurationWrong) as refused:
        split_address(address)
    assert refused.value.exit_status == 78


def test_addresses_of_both_families_are_read() -> None:
    assert split_address("[::]:9443") == ("::", 9443)
    assert split_address("127.0.0.1:1") == ("127.0.0.1", 1)


def test_nobody_is_found_where_the_system_tells_nothing(tmp_path: Path) -> None:
    assert holder_of(9443, proc=tmp_path) is None


def listens(proc: Path, *ports: int) -> Path:
    """Write what the kernel says while somebody listens on `ports`."""
    (proc / "net").mkdir(parents=True, exist_ok=True)
    rows = [f"   0: 0100007F:{port:04X} 00000000:0000 0A 0:0 00:0 0 0 0 4711 1" for port in ports]
    (proc / "net" / "tcp").write_text("\n".join(["  sl  local_address rem_address   st", *rows]) + "\n")
    return proc


def test_the_api_gets_8443_unless_it_is_taken_or_is_the_port_that_sites_dial(tmp_path: Path) -> None:
    assert free_place(not_port=9443, proc=listens(tmp_path)) == "127.0.0.1:8443"
    assert free_place(not_port=8443, proc=listens(tmp_path)) == "127.0.0.1:8444"
    assert free_place(not_port=8444, proc=listens(tmp_path, 8443)) == "127.0.0.1:8445"


def test_where_nothing_is_free_the_usual_port_is_written_and_serve_names_its_holder(tmp_path: Path) -> None:
    assert free_place(not_port=1, proc=listens(tmp_path, *range(8000, 9000))) == "127.0.0.1:8443"
