"""Methods for parties with other columns and partly the same people; one file a method."""

from interlace.methods.vertical.distillation import APCVFL, PrivilegedDistillation, VFedTrans
from interlace.methods.vertical.fed_once import FedOnce
from interlace.methods.vertical.split import AggVFL, SplitVFL

__all__ = [
    "APCVFL",
    "AggVFL",
    "FedOnce",
    "PrivilegedDistillation",
    "SplitVFL",
    "VFedTrans",
]
