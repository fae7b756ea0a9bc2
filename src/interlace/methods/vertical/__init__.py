"""Methods for parties with other columns and partly the same people; one file a method."""

from interlace.methods.vertical.fed_once import FedOnce
from interlace.methods.vertical.split import AggVFL, SplitVFL

__all__ = ["AggVFL", "FedOnce", "SplitVFL"]
