"""The lock that makes one process the committer of a home.

It is held by an open descriptor, so it ends with its process, however that ends. The file says which file it is: a copy
of a home carries another's mark and is known as a copy.
"""

import fcntl
import os

from audit import durable, edge
from audit.errors import SecondWriter
from audit.places import Places, lock_mark


def hold_lock(places: Places) -> int:
    """Return the descriptor that holds the lock of the home.

    Raises:
        SecondWriter: Another process holds it.
    """
    descriptor = os.open(places.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, durable.PRIVATE_FILE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, lock_mark(places.lock, edge.host()), 0)
    except BlockingIOError:
        os.close(descriptor)
        raise SecondWriter(f"another process writes the log in {places.folder}") from None
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
