"""A driver that says nothing for long keeps no process at its partners."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LOOK_AGAIN = 60.0  # seconds


class Silence:
    """How long nothing has come.

    Args:
        most: Seconds after which it is too long; asked at every look, as the limit may change.
        over: Called once it is.
    """

    def __init__(self, most: Callable[[], float], over: Callable[[], None]) -> None:
        self.most, self.over = most, over
        self._since, self._heeded, self._lock = time.monotonic(), 0, threading.Lock()
        threading.Thread(target=self._look, name="silence", daemon=True).start()

    @contextmanager
    def broken(self) -> Iterator[None]:
        """Something has come, and is heeded for the time of a ``with``: that is no silence,
        however long it takes."""
        self._heed(1)
        try:
            yield
        finally:
            self._heed(-1)

    def _heed(self, more: int) -> None:
        with self._lock:
            self._heeded += more
            self._since = time.monotonic()

    def _look(self) -> None:
        while self._heeded or time.monotonic() - self._since <= self.most():
            time.sleep(min(LOOK_AGAIN, self.most()))
        self.over()
