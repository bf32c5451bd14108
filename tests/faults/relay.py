"""A TCP relay on loopback that misbehaves on demand, as proxies and networks do.

    with Relay(port) as relay:
        client connects to relay.port instead of port
        relay.idle_cut_s = 1.0       cut connections on which nothing moved for so long
        relay.answer_502 = True      answer new connections with HTTP/1.1 502, cut those that are open
        relay.cut_after(down=bytes)  cut each connection once so much has come down it (or gone up it)
        relay.cut_after(down=bytes, once=seen)   hold it there until `seen` says that the far side took it in
        relay.fail_after_cut = True  from the first such cut on, behave as with answer_502
        relay.silent = True          keep connections open and pass nothing on
        relay.up_bytes, relay.down_bytes, relay.connections

`http_proxy=True` makes it an HTTP proxy: it takes ``CONNECT``, notes what was asked for, and relays to `port`
whatever name was asked.
"""

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

_PIECE_BYTES = 65_536
_LOOK_S = 0.02


class Relay:
    def __init__(self, port: int, *, http_proxy: bool = False) -> None:
        self._target = ("127.0.0.1", port)
        self._http_proxy = http_proxy
        self.idle_cut_s: float | None = None
        self.answer_502 = False
        self.fail_after_cut = False
        self.silent = False
        self.asked: list[str] = []
        self.up_bytes = 0
        self.down_bytes = 0
        self.connections = 0
        self._cut_up: int | None = None
        self._cut_down: int | None = None
        self._cut_once: Callable[[], bool] = lambda: True
        self._stop = threading.Event()
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.05)
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        thread = threading.Thread(target=self._accept, daemon=True)
        self._threads.append(thread)
        thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self.cut_all()
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def cut_after(
        self, *, up: int | None = None, down: int | None = None, once: Callable[[], bool] = lambda: True
    ) -> None:
        self._cut_up, self._cut_down, self._cut_once = up, down, once

    def cut_all(self) -> None:
        with self._lock:
            for end in self._open:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._stop.is_set():
            try:
                near, _ = self._listener.accept()
            except TimeoutError:
                continue
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(near,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, near: socket.socket) -> None:
        with near:
            if self.answer_502:
                with contextlib.suppress(OSError):
                    near.settimeout(0.2)
                    with contextlib.suppress(TimeoutError):
                        near.recv(_PIECE_BYTES)
                    near.sendall(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                return
            if self._http_proxy and not self._take_connect(near):
                return
            try:
                far = socket.create_connection(self._target, timeout=60)
            except OSError:
                return
            with far:
                with self._lock:
                    self._open |= {near, far}
                try:
                    self._pump(near, far)
                finally:
                    with self._lock:
                        self._open -= {near, far}

    def _take_connect(self, near: socket.socket) -> bool:
        near.settimeout(60)
        request = b""
        try:
            while b"\r\n\r\n" not in request:
                piece = near.recv(1024)
                if not piece:
                    return False
                request += piece
            self.asked.append(request.split(b"\r\n", 1)[0].decode())
            near.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        except OSError:
            return False
        return True

    def _pump(self, near: socket.socket, far: socket.socket) -> None:
        passed = {near: 0, far: 0}
        quiet_looks = 0  # counted, since a machine that held us up held up those who would have spoken as well
        with selectors.DefaultSelector() as selector:
            selector.register(near, selectors.EVENT_READ, far)
            selector.register(far, selectors.EVENT_READ, near)
            near.settimeout(60)
            far.settimeout(60)
            while not self._stop.is_set():
                if self.answer_502:
                    return
                if self.silent:
                    time.sleep(_LOOK_S)
                    continue
                quiet_looks += 1
                for key, _ in selector.select(_LOOK_S):
                    source = near if key.fileobj is near else far
                    try:
                        data = source.recv(_PIECE_BYTES)
                        if not data:
                            return
                        key.data.sendall(data)
                    except OSError:
                        return
                    quiet_looks = 0
                    passed[source] += len(data)
                    if source is near:
                        self.up_bytes += len(data)
                    else:
                        self.down_bytes += len(data)
                if self._is_cut(passed[near], passed[far]):
                    while not self._cut_once() and not self._stop.is_set():
                        time.sleep(_LOOK_S)
                    self.answer_502 = self.answer_502 or self.fail_after_cut
                    return
                if self.idle_cut_s is not None and quiet_looks * _LOOK_S > self.idle_cut_s:
                    return

    def _is_cut(self, up_bytes: int, down_bytes: int) -> bool:
        return (self._cut_up is not None and up_bytes > self._cut_up) or (
            self._cut_down is not None and down_bytes > self._cut_down
        )
