"""A party's privacy account: what its runs have spent of its budget, across runs and drivers."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from interlace.errors import InterlaceError


class Spent(NamedTuple):
    """Privacy losses added up (basic composition)."""

    epsilon: float
    delta: float


class Account:
    """The account in a party's folder; a row for each run.

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
        with closing(self._open()) as db, db:
            db.execute(
                "INSERT INTO charge VALUES (?1, ?2, ?3, ?4) "
                "ON CONFLICT (run) DO UPDATE SET "
                "epsilon = iif(?5, epsilon + ?2, max(epsilon, ?2)), "
                "delta = iif(?5, delta + ?3, max(delta, ?3))",
                (run, epsilon, delta, time.time(), again),
            )

    def spent(self, without: str = "") -> Spent:
        """What all runs have spent, but for one."""
        with closing(self._open()) as db:
            row = db.execute(
                "SELECT coalesce(sum(epsilon), 0), coalesce(sum(delta), 0) FROM charge "
                "WHERE run != ?",
                (without,),
            ).fetchone()
        return Spent(*row)

    def _open(self) -> sqlite3.Connection:
        try:
            db = sqlite3.connect(self.path, timeout=10)
            db.execute(
                "CREATE TABLE IF NOT EXISTS charge "
                "(run TEXT PRIMARY KEY, epsilon REAL, delta REAL, time REAL)"
            )
        except sqlite3.Error as e:
            raise InterlaceError(
                f"the privacy account {self.path} cannot be opened ({e}); no run begins without it"
            ) from e
        return db
