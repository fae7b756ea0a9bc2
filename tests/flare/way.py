"""A way between a site and the server that a test can slow, cut, or let lose everything."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress


class Way:
    """Relays TCP connections to a port of this machine.

    Args:
        to: The server's port.
    """

    def __init__(self, to: int) -> None:
        self.to = to
        self.delay = 0.0  # seconds before each 64 KB of either direction
        self._open = threading.Event()  # else what is sent gets stuck
        self._open.set()
        self._ends: list[socket.socket] = []
        self._cut = False
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._take, daemon=True).start()

    def cut(self) -> None:
        """End all connections, and take no new ones."""
        self._cut = True
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def lose(self) -> None:
        """Keep connections, and bring nothing over them: nobody is told."""
        self._open.clear()

    def mend(self) -> None:
        """All is well again."""
        self._cut, self.delay = False, 0.0
        self._open.set()

    def _take(self) -> None:
        while True:
            site, _ = self._listening.accept()
            if self._cut:
                site.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self.to))
            except OSError:  # the server is not up
                site.close()
                continue
            self._ends = [end for end in self._ends if end.fileno() >= 0] + [site, server]
            for one, other in ((site, server), (server, site)):
                threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while came := one.recv(2**16):
                self._open.wait()
                time.sleep(self.delay)
                other.sendall(came)
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
