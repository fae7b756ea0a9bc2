"""What a party counts across runs and drivers: the privacy that its runs have spent of its budget,
and who has asked how often."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from interlace.errors import InterlaceError

DAY = 24 * 3600


class Spent(NamedTuple):
    """Privacy losses added up (basic composition)."""

    epsilon: float
    delta: float


class Account:
    """The account in a party's folder; a row for each run, and one for each contract looked at.

    A run is charged with what its disclosure plan says when it is approved, and once more each
    time that it goes on after its process ended; and stays charged: one that stopped early spent
    less, but how much less hangs on what its partners had by then.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "account.sqlite"

    def charge(self, run: str, epsilon: float, delta: float, *, again: bool = False) -> None:
        """Count a run, once for all its approvals, or ``again`` beside what was counted for it.

        Raises:
            InterlaceError: the account cannot be written: the run must not begin then.
        """
        with self._open() as db:
            db.execute(
                "INSERT INTO charge VALUES (?1, ?2, ?3, ?4) "
                "ON CONFLICT (run) DO UPDATE SET "
                "epsilon = iif(?5, epsilon + ?2, max(epsilon, ?2)), "
                "delta = iif(?5, delta + ?3, max(delta, ?3))",
                (run, epsilon, delta, time.time(), again),
            )

    def spent(self, without: str = "") -> Spent:
        """What all runs have spent, but for one."""
        with self._open() as db:
            row = db.execute(
                "SELECT coalesce(sum(epsilon), 0), coalesce(sum(delta), 0) FROM charge "
                "WHERE run != ?",
                (without,),
            ).fetchone()
        return Spent(*row)

    def look_at(self, run: str, driver: str, most: int) -> bool:
        """Whether a contract is looked at: it has been before, or ``driver`` has asked for fewer
        than ``most`` others in the last 24 hours. It is counted then."""
        with self._open() as db:
            db.execute("BEGIN IMMEDIATE")  # two may ask at once
            if db.execute("SELECT 1 FROM asked WHERE run = ?", (run,)).fetchone():
                return True
            since = time.time() - DAY
            (today,) = db.execute(
                "SELECT count(*) FROM asked WHERE driver = ? AND time >= ?", (driver, since)
            ).fetchone()
            if today < most:
                db.execute("INSERT INTO asked VALUES (?, ?, ?)", (run, driver, time.time()))
            return bool(today < most)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self.path, timeout=10)) as db, db:
                db.execute(
                    "CREATE TABLE IF NOT EXISTS charge "
                    "(run TEXT PRIMARY KEY, epsilon REAL, delta REAL, time REAL)"
                )
                db.execute(
                    "CREATE TABLE IF NOT EXISTS asked "
                    "(run TEXT PRIMARY KEY, driver TEXT, time REAL)"
                )
                yield db
        except sqlite3.Error as e:
            raise InterlaceError(
                f"the account {self.path} cannot be read or written ({e}); no run begins without it"
            ) from e
