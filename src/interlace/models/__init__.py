"""Networks and what trains them."""

from interlace.models.networks import BottomSpec, Columns, Linear, SmallResNet, mlp
from interlace.models.training import (
    Optimisation,
    Randomness,
    load_training_state,
    seed_for,
    seeded,
    set_rate,
    training_state,
    warm_up,
)

__all__ = [
    "BottomSpec",
    "Columns",
    "Linear",
    "Optimisation",
    "Randomness",
    "SmallResNet",
    "load_training_state",
    "mlp",
    "seed_for",
    "seeded",
    "set_rate",
    "training_state",
    "warm_up",
]
