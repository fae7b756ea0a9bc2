"""Horizontal federation: the same columns at every party, and other people."""

from interlace.methods.horizontal.averaging import FedAdam, FedAvg, FedAvgM, FedProx, FedYogi
from interlace.methods.horizontal.drift import Round
from interlace.methods.horizontal.kmeans import HorizontalKMeans
from interlace.methods.horizontal.linear import HorizontalLinear
from interlace.methods.horizontal.local import LocalTraining
from interlace.methods.horizontal.mixed import MixedVFL
from interlace.methods.horizontal.privacy import Privacy
from interlace.methods.horizontal.scaffold import Scaffold
from interlace.methods.horizontal.schema import geometry, schema_of
from interlace.methods.horizontal.side import Agreement
from interlace.methods.horizontal.trees import HorizontalTrees

__all__ = [
    "Agreement",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedProx",
    "FedYogi",
    "HorizontalKMeans",
    "HorizontalLinear",
    "HorizontalTrees",
    "LocalTraining",
    "MixedVFL",
    "Privacy",
    "Round",
    "Scaffold",
    "geometry",
    "schema_of",
]
