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

    A run is charged with what its disclosure plan says when it is approved, and stays charged: one
    that stopped early spent less, but how much less hangs on what its partners had by then.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "account.sqlite"

    def charge(self, run: str, epsilon: float, delta: float) -> None:
        """Count a run, or count it anew.

        Raises:
            InterlaceError: the account cannot be written: the run must not begin then.
        """
        with closing(self._open()) as db, db:
            db.execute(
                "INSERT INTO charge VALUES (?1, ?2, ?3, ?4) "
                "ON CONFLICT (run) DO UPDATE SET epsilon = ?2, delta = ?3",
                (run, epsilon, delta, time.time()),
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
