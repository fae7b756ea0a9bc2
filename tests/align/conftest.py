"""Parties that have nothing but ids, and engines that watch or spoil what passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import polars as pl
import pytest

from interlace.boundary import Message
from interlace.engines import InProcess
from interlace.party import Party


@pytest.fixture(autouse=True)
def matched_before() -> None:
    """These tests are about matching: nothing is looked up."""


@pytest.fixture
def parties() -> Callable[..., list[Party]]:
    """Make parties from lists of ids: ``parties(["x", "y"], ["y"])``; the first is 'active'."""

    def make(*ids: Sequence[str]) -> list[Party]:
        names = ["active", *(f"p{i}" for i in range(1, len(ids)))]
        return [
            Party(name, pl.DataFrame({"id": list(own)}, schema={"id": pl.String}))
            for name, own in zip(names, ids, strict=True)
        ]

    return make


class Watching(InProcess):
    """Keeps every message as it would travel."""

    def __init__(self, parties: Sequence[Party]) -> None:
        super().__init__(parties)
        self.seen: list[bytes] = []

    def deliver(self, message: Message) -> Message:
        answer = super().deliver(message)
        self.seen += [message.encode(), answer.encode()]
        return answer


class Spoiling(InProcess):
    """Changes the answers to one operation on their way."""

    def __init__(
        self, parties: Sequence[Party], operation: str, change: Callable[[object], object]
    ) -> None:
        super().__init__(parties)
        self.operation, self.change = operation, change

    def deliver(self, message: Message) -> Message:
        answer = super().deliver(message)
        if message.operation == self.operation:
            answer.parts[0].value = self.change(answer.parts[0].value)  # type: ignore[assignment]
        return answer


@pytest.fixture
def watching() -> type[Watching]:
    return Watching


@pytest.fixture
def spoiling() -> type[Spoiling]:
    return Spoiling
