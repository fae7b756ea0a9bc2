"""The shape of what a party's preprocessing gives to its bottom model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InputSpec:
    """What one row of a party's features looks like.

    A tabular row has ``numeric`` standardised numbers, then one category code for each entry of
    ``cardinalities``; code 0 is a level that is missing or unknown. A row of an image party has
    the shape ``image`` and nothing else.

    Attributes:
        numeric: how many numeric inputs.
        cardinalities: for each categorical input, how many codes it has, 0 included.
        image: (channels, height, width) of an image party, else ``None``.
        names: one name an input, in order; of an image party the column's name alone.
    """

    numeric: int
    cardinalities: tuple[int, ...]
    image: tuple[int, int, int] | None
    names: tuple[str, ...]

    @property
    def width(self) -> int:
        """Columns of the tensor of a tabular party."""
        return self.numeric + len(self.cardinalities)
