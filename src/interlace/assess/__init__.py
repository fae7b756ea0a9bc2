"""What a model is worth: utility on held-out people, with intervals over seeds."""

from interlace.assess.intervals import Interval, interval, paired
from interlace.assess.kept import Rightness, rightness, true_classes
from interlace.assess.utility import MEASURES, Measure, Utility, evaluate, main_measures

__all__ = [
    "MEASURES",
    "Interval",
    "Measure",
    "Rightness",
    "Utility",
    "evaluate",
    "interval",
    "main_measures",
    "paired",
    "rightness",
    "true_classes",
]
