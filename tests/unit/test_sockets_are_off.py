import socket

import pytest
from pytest_socket import SocketBlockedError


def test_a_unit_test_cannot_open_a_network_socket() -> None:
    with pytest.warns(UserWarning, match="tried to use socket"), pytest.raises(SocketBlockedError):
        socket.create_connection(("127.0.0.1", 9))
    with pytest.warns(UserWarning, match="tried to use socket"), pytest.raises(SocketBlockedError):
        socket.socket()


def test_a_unit_test_may_open_a_unix_socket() -> None:
    here, there = socket.socketpair()
    with here, there:
        here.sendall(b"x")
        assert there.recv(1) == b"x"


@pytest.mark.enable_socket
def test_a_test_that_means_to_may_open_a_network_socket() -> None:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
