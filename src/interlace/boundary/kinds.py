"""The closed list of what may pass between parties, and how each is checked on arrival.

An operation's signature says what travels: ``def forward(self, rows: RowSelection) -> Embedding``.
The aliases at the end of this file are those annotations; the ledger, the policies, the attacks
and the report all speak in :class:`Kind`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

from torch import Tensor


class Kind(StrEnum):
    """What a value is, whatever method sends it."""

    BLINDED_IDS = "blinded ids"
    ROW_SELECTION = "row selection"
    EMBEDDING = "embedding"
    GRADIENT = "gradient"
    CLASS_COUNT = "class count"
    KEEP_PROBABILITY = "keep probability"
    CIPHERTEXT = "ciphertext"
    HISTOGRAM = "histogram"
    SPLIT_CHOICE = "split choice"
    PARTIAL_SCORE = "partial score"
    PROTOTYPE = "prototype"
    CLASS_PRIOR = "class prior"
    MODEL_WEIGHTS = "model weights"
    METRIC = "metric"
    CONTROL = "control"
    # The next two exist so that they can be named and refused: no policy can allow them.
    RAW_FEATURES = "raw features"
    LABELS = "labels"


NEVER_LEAVES = frozenset({Kind.RAW_FEATURES, Kind.LABELS})

# Values of these say something of each person they are about, if they are about people.
ABOUT_EACH = frozenset(
    {
        Kind.EMBEDDING,
        Kind.GRADIENT,
        Kind.KEEP_PROBABILITY,
        Kind.PARTIAL_SCORE,
        Kind.SPLIT_CHOICE,
        Kind.CIPHERTEXT,
    }
)


@dataclass(frozen=True)
class Form:
    """What values a kind admits: number family and dimensions. Floats must be finite."""

    numbers: str  # "float", "int", "byte" or "json"
    dims: tuple[int, ...] = ()


FORMS: dict[Kind, Form] = {
    Kind.BLINDED_IDS: Form("byte", (1, 2, 3)),
    Kind.ROW_SELECTION: Form("int", (1,)),
    Kind.EMBEDDING: Form("float", (2, 3, 4)),
    Kind.GRADIENT: Form("float", (1, 2, 3, 4)),
    Kind.CLASS_COUNT: Form("int", (0, 1)),
    Kind.KEEP_PROBABILITY: Form("float", (1, 2)),
    Kind.CIPHERTEXT: Form("byte", (1, 2, 3)),
    Kind.HISTOGRAM: Form("float", (1, 2, 3, 4)),
    Kind.SPLIT_CHOICE: Form("int", (1, 2)),
    Kind.PARTIAL_SCORE: Form("float", (1, 2)),
    Kind.PROTOTYPE: Form("float", (1, 2, 3)),
    Kind.CLASS_PRIOR: Form("float", (1, 2)),
    Kind.MODEL_WEIGHTS: Form("float", (0, 1, 2, 3, 4, 5)),
    Kind.METRIC: Form("json"),
    Kind.CONTROL: Form("json"),
}

BlindedIds = Annotated[Tensor, Kind.BLINDED_IDS]
RowSelection = Annotated[Tensor, Kind.ROW_SELECTION]
Embedding = Annotated[Tensor, Kind.EMBEDDING]
Gradient = Annotated[Tensor, Kind.GRADIENT]
ClassCount = Annotated[Tensor, Kind.CLASS_COUNT]
KeepProbability = Annotated[Tensor, Kind.KEEP_PROBABILITY]
Ciphertext = Annotated[Tensor, Kind.CIPHERTEXT]
Histogram = Annotated[Tensor, Kind.HISTOGRAM]
SplitChoice = Annotated[Tensor, Kind.SPLIT_CHOICE]
PartialScore = Annotated[Tensor, Kind.PARTIAL_SCORE]
Prototype = Annotated[Tensor, Kind.PROTOTYPE]
ClassPrior = Annotated[Tensor, Kind.CLASS_PRIOR]
ModelWeights = Annotated[Tensor, Kind.MODEL_WEIGHTS]
Metric = Annotated[dict[str, Any], Kind.METRIC]
Control = Annotated[dict[str, Any], Kind.CONTROL]
