"""Horizontal federation: the same columns at every party, and other people."""

from interlace.methods.horizontal.averaging import FedAdam, FedAvg, FedAvgM, FedProx, FedYogi
from interlace.methods.horizontal.drift import Round
from interlace.methods.horizontal.local import LocalTraining
from interlace.methods.horizontal.privacy import Privacy
from interlace.methods.horizontal.scaffold import Scaffold
from interlace.methods.horizontal.side import Agreement

__all__ = [
    "Agreement",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedProx",
    "FedYogi",
    "LocalTraining",
    "Privacy",
    "Round",
    "Scaffold",
]
