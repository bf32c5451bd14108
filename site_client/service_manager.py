"""Tell systemd, or whatever set ``NOTIFY_SOCKET``, how the daemon stands (sd_notify(3)); nothing where nobody asks."""

import contextlib
import socket
from collections.abc import Callable, Mapping


def notifier(variables: Mapping[str, str]) -> Callable[[str], None]:
    """Return a function that sends one state, such as ``READY=1``, to the service manager.

    Args:
        variables: This process's environment.
    """
    address = variables.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return lambda _state: None
    # An address that begins with @ is in the abstract name space, where the first byte is zero (unix(7)).
    target = "\0" + address[1:] if address.startswith("@") else address

    def notify(state: str) -> None:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(state.encode(), target)

    return notify
