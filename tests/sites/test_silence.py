"""A process waits so long for a word, and no longer."""

from __future__ import annotations

import threading
import time

import pytest

from interlace.boundary import Policy
from interlace.sites.silence import Silence


def test_silence_is_over_after_its_time_and_not_while_something_is_heeded() -> None:
    over = threading.Event()
    silence = Silence(lambda: 0.1, over.set)
    for _ in range(2):
        with silence.broken():
            assert not over.wait(0.3)  # what was asked takes long
    assert over.wait(5.0)


def test_a_word_in_time_begins_the_time_anew() -> None:
    over = threading.Event()
    silence = Silence(lambda: 0.5, over.set)
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        with silence.broken():
            pass
        time.sleep(0.05)
    assert not over.is_set()
    assert over.wait(5.0)


def test_a_policy_says_how_long_and_no_job_takes_longer() -> None:
    assert Policy().idle_hours == 48
    for hours in (0, -1, float("nan"), float("inf"), 721):
        with pytest.raises(ValueError, match="idle_hours"):
            Policy(idle_hours=hours)
