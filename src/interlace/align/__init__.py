"""Private set intersection: which people the parties share, without showing the others."""

from interlace.align.alignment import SESSION, Alignment, AlignmentReport, align
from interlace.align.dh import cache_tokens
from interlace.align.exchange import Progress

__all__ = ["SESSION", "Alignment", "AlignmentReport", "Progress", "align", "cache_tokens"]
