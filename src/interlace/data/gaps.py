"""Which texts stand for a missing value among numbers, dates and labels."""

from __future__ import annotations

import polars as pl

_MARKS = ("", "na", "n/a", "n.a.", "#n/a", "nan", "null", "none", "?", "-", "--", "–", "—", ".")


def is_gap(text: pl.Series) -> pl.Series:
    """Whether each value of a text column stands for a missing one, whatever its case; null does.

    Of a category such a text is a level like any other, as "none" may well be one; only nothing at
    all, or blanks, are a gap there.
    """
    return text.str.strip_chars().str.to_lowercase().is_in(_MARKS).fill_null(True)
