"""interlace: one model from several organisations' tables, without moving a record."""

import lazy_loader as _lazy

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = _lazy.attach(
    __name__,
    submod_attrs={
        "errors": ["InterlaceError"],
        "boundary": ["Kind", "Policy"],
        "data.ids": ["IdRule"],
        "federation": ["Federation"],
        "party": ["Party"],
        "methods": [
            "ActiveAlone",
            "AggVFL",
            "BoostedTrees",
            "FewShotVFL",
            "LinearRegression",
            "LogisticRegression",
            "MeanImputation",
            "OneShotVFL",
            "PoissonRegression",
            "Pooled",
            "Scorecard",
            "SplitVFL",
            "TweedieRegression",
            "VerticalGaussianMixture",
            "VerticalKMeans",
            "WithFallback",
        ],
        "methods.horizontal": [
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
            "Scaffold",
        ],
        "runner": ["run"],
        "serve.batch": ["predict"],
    },
)
