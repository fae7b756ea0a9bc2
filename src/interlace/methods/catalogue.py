"""Every method by the name that jobs use."""

from __future__ import annotations

import difflib
import inspect
from dataclasses import dataclass
from typing import Any, Literal

from interlace.errors import JobError
from interlace.methods.base import Method, validated
from interlace.methods.baselines import (
    ActiveAlone,
    MeanImputation,
    OwnColumns,
    Pooled,
    PooledColumns,
)
from interlace.methods.horizontal import (
    FedAdam,
    FedAvg,
    FedAvgM,
    FedProx,
    FedYogi,
    HorizontalKMeans,
    HorizontalLinear,
    HorizontalTrees,
    MixedVFL,
    Scaffold,
)
from interlace.methods.horizontal.baselines import ClientsAlone, InOnePlace, PooledRows
from interlace.methods.horizontal.method import HorizontalMethod
from interlace.methods.vertical import (
    APCVFL,
    AggVFL,
    EntityAugmentation,
    FedCVT,
    FederatedTransfer,
    FedOnce,
    FewShotVFL,
    OneShotVFL,
    PrivilegedDistillation,
    ProtoEVFL,
    Scorecard,
    SecureTransfer,
    SplitVFL,
    SSVFLCollaborative,
    SSVFLIndependent,
    VerticalGaussianMixture,
    VerticalKMeans,
    VFedTrans,
)
from interlace.methods.vertical.boosting import BoostedTrees, DecisionTree, RandomForest
from interlace.methods.vertical.linear import (
    LinearRegression,
    LogisticRegression,
    PoissonRegression,
    TweedieRegression,
)

Role = Literal["method", "baseline", "in one place"]
AUTO = "auto"  # instead of a name: a run of a simulation is to choose the method


@dataclass(frozen=True)
class Entry:
    """A method as the catalogue lists it."""

    make: type[Method]
    title: str
    role: Role
    explanation: str


CATALOGUE: dict[str, Entry] = {
    "split": Entry(
        SplitVFL,
        "Split learning",
        "method",
        "Each party embeds its own columns; the active party trains a top model over the "
        "embeddings of the shared people and returns gradients (splitVFL).",
    ),
    "agg": Entry(
        AggVFL,
        "Summed outputs",
        "method",
        "Each party's model gives its share of the logits, and the shares are added up (aggVFL). "
        "A partner's gradient is then the derivative by the scores, which names the label of every "
        "person it trains on, unless a guard stands on gradients.",
    ),
    "fed_once": Entry(
        FedOnce,
        "FedOnce",
        "method",
        "Each partner learns a representation of its own rows without a label and sends it once; "
        "no gradient ever comes back.",
    ),
    "proto_evfl": Entry(
        ProtoEVFL,
        "Proto-EVFL (reconstruction)",
        "method",
        "Class prototypes guide how each party learns from its unaligned rows, with a share kept "
        "for rare classes; a gated ensemble of party classifiers names the class.",
    ),
    "ss_vfl_i": Entry(
        SSVFLIndependent,
        "SS-VFL-I",
        "method",
        "Each party trains its bottom model on its own rows by contrast, without a label; "
        "embeddings travel once and a top model is fitted on them.",
    ),
    "ss_vfl_c": Entry(
        SSVFLCollaborative,
        "SS-VFL-C",
        "method",
        "Split learning on the shared people, from bottom models that each party has trained on "
        "its own rows by contrast.",
    ),
    "entity_augmentation": Entry(
        EntityAugmentation,
        "Entity augmentation",
        "method",
        "Split learning on people put together: every party embeds people of its own choice, and "
        "the joined embeddings are learnt with their mixed label, so nobody need be held by all.",
    ),
    "transfer": Entry(
        FederatedTransfer,
        "Federated transfer learning",
        "method",
        "All labelled people of the active party give classes a meaning in a space that both sides "
        "embed their people into; a partner's view alone then names a person.",
    ),
    "secure_transfer": Entry(
        SecureTransfer,
        "Secure federated transfer learning",
        "method",
        "Federated transfer learning of two classes by one layer at each of two parties; all that "
        "travels in training is encrypted, and each party sees its own gradient alone.",
    ),
    "vfedtrans": Entry(
        VFedTrans,
        "VFedTrans",
        "method",
        "An encoder of the active party's columns imitates what all parties' columns say of the "
        "shared people; its output joins the columns in a model that needs no partner to score.",
    ),
    "apc_vfl": Entry(
        APCVFL,
        "APC-VFL",
        "method",
        "Auto-encoders at every party, codes sent once, and an encoder of the active party's "
        "columns that imitates the joint code; no partner is needed to score.",
    ),
    "privileged_distillation": Entry(
        PrivilegedDistillation,
        "Privileged distillation",
        "method",
        "Split learning on the shared people teaches its predictions to a model of the active "
        "party's columns, which needs no partner to score.",
    ),
    "one_shot": Entry(
        OneShotVFL,
        "One-shot VFL",
        "method",
        "One gradient of the shared people comes to each party; its clusters stand for classes, "
        "and the party learns from them and from all its other rows by itself. Two uploads.",
    ),
    "few_shot": Entry(
        FewShotVFL,
        "Few-shot VFL",
        "method",
        "One-shot VFL and a second round: views that a party lacks are estimated, and its other "
        "rows get a label where a head over its view alone and the joint head agree.",
    ),
    "fedcvt": Entry(
        FedCVT,
        "FedCVT",
        "method",
        "Every batch also has people with a missing view, which is estimated; those without a "
        "label get one where the classifiers over all views and each single view agree.",
    ),
    "boosted_trees": Entry(
        BoostedTrees,
        "Boosted trees",
        "method",
        "Trees whose splits are on anybody's columns, grown by the party that has the label from "
        "encrypted sums of gradients (SecureBoost).",
    ),
    "random_forest": Entry(
        RandomForest,
        "Random forest",
        "method",
        "Trees side by side, each from a part of the people and columns, found from encrypted "
        "sums as boosted trees are.",
    ),
    "decision_tree": Entry(
        DecisionTree,
        "Decision tree",
        "method",
        "One tree whose splits are on anybody's columns, found from encrypted sums.",
    ),
    "scorecard": Entry(
        Scorecard,
        "Scorecard",
        "method",
        "Bins of all parties' columns, their weights of evidence from encrypted outcomes, and "
        "points by logistic regression: each party holds its own columns' points.",
    ),
    "kmeans": Entry(
        VerticalKMeans,
        "k-means",
        "method",
        "Clusters of the shared people by all parties' columns: each party adds its columns' part "
        "of every distance; needs no label.",
    ),
    "gaussian_mixture": Entry(
        VerticalGaussianMixture,
        "Gaussian mixture",
        "method",
        "Overlapping clusters of the shared people by EM: each party adds its columns' part of "
        "every log-density; needs no label.",
    ),
    "logistic": Entry(
        LogisticRegression,
        "Logistic regression",
        "method",
        "One weight a column, each with the party that has the column; slopes are sums over "
        "encrypted residuals, and the model is the pooled table's. Multinomial for more classes.",
    ),
    "linear": Entry(
        LinearRegression,
        "Linear regression",
        "method",
        "Least squares with one weight a column, each with the party that has the column; slopes "
        "are sums over encrypted residuals, and the model is the pooled table's.",
    ),
    "poisson": Entry(
        PoissonRegression,
        "Poisson regression",
        "method",
        "Counts: the logarithm of what is expected is a sum of each party's weights times its "
        "columns; slopes are sums over encrypted residuals.",
    ),
    "tweedie": Entry(
        TweedieRegression,
        "Tweedie regression",
        "method",
        "Quantities that are never negative and often 0, such as claims: the logarithm of what is "
        "expected is a sum of each party's weights times its columns.",
    ),
    "fedavg": Entry(
        FedAvg,
        "FedAvg",
        "method",
        "Parties with the same columns train one network on their own people between rounds; the "
        "server averages their updates.",
    ),
    "fedprox": Entry(
        FedProx,
        "FedProx",
        "method",
        "FedAvg whose parties stay near the model they were sent, and whose slow parties' partial "
        "work counts.",
    ),
    "scaffold": Entry(
        Scaffold,
        "SCAFFOLD",
        "method",
        "FedAvg with control variates that take the parties' drift out of every local step.",
    ),
    "fedavgm": Entry(
        FedAvgM,
        "FedAvgM",
        "method",
        "FedAvg whose server adds momentum to the mean update.",
    ),
    "fedadam": Entry(
        FedAdam,
        "FedAdam",
        "method",
        "FedAvg whose server takes the mean update as a gradient for Adam.",
    ),
    "fedyogi": Entry(
        FedYogi,
        "FedYogi",
        "method",
        "FedAvg whose server takes the mean update as a gradient for Yogi.",
    ),
    "horizontal_linear": Entry(
        HorizontalLinear,
        "Linear model",
        "method",
        "Linear or logistic regression by Newton's method on the parties' summed gradients and "
        "Hessians; ends where the pooled table would.",
    ),
    "horizontal_trees": Entry(
        HorizontalTrees,
        "Boosted trees by histograms",
        "method",
        "Boosted trees from the parties' summed histograms, the same as on the pooled table.",
    ),
    "horizontal_kmeans": Entry(
        HorizontalKMeans,
        "k-means",
        "method",
        "Clusters of all parties' people from each party's sums by cluster; needs no label.",
    ),
    "mixed": Entry(
        MixedVFL,
        "Mixed geometry",
        "method",
        "Split learning of the active party with several partners that have the same columns and "
        "other people; their bottom model is averaged.",
    ),
    "clients_alone": Entry(
        ClientsAlone,
        "Each party alone",
        "baseline",
        "The same training at each party by itself; its model is judged on its own held-out "
        "people. The metrics are over all parties' people.",
    ),
    "pooled_rows": Entry(
        PooledRows,
        "Pooled",
        "in one place",
        "The same training on all parties' rows in one table, as if no row had to stay at home.",
    ),
    "active_alone": Entry(
        ActiveAlone,
        "Active party alone",
        "baseline",
        "The active party's own columns and all of its labelled people; nobody else is asked.",
    ),
    "own_columns": Entry(
        OwnColumns,
        "Active party alone",
        "baseline",
        "The same method on the active party's own columns and all of its labelled people; nobody "
        "else is asked.",
    ),
    "shared_only": Entry(
        SplitVFL,
        "Shared people only",
        "baseline",
        "Split learning on the shared people; everybody else's rows are left unused.",
    ),
    "mean_imputation": Entry(
        MeanImputation,
        "Missing views filled in",
        "baseline",
        "All labelled people of the active party; missing columns are filled with their mean or "
        "most frequent value. Needs every table in one place.",
    ),
    "pooled": Entry(
        Pooled,
        "Pooled",
        "in one place",
        "All columns of the shared people in one table, as if no table had to stay at home.",
    ),
    "pooled_columns": Entry(
        PooledColumns,
        "Pooled",
        "in one place",
        "The same method on all columns of the shared people in one table, as if no table had to "
        "stay at home.",
    ),
}


# What methods are for, a line each, for who is to choose one.
PURPOSES: dict[str, dict[str, str]] = {
    "Networks over the people whom all parties share": {
        "split": "the usual choice: a model over all embeddings",
        "agg": "simpler: the parties' scores add up",
        "fed_once": "one upload, and no gradient comes back",
    },
    "Networks where few people are shared": {
        "one_shot": "hardly any messages; each party learns alone",
        "few_shot": "the same, then sure guesses get a label",
        "fedcvt": "missing views estimated in every batch",
        "ss_vfl_i": "bottom models by contrast, one upload",
        "ss_vfl_c": "split learning from bottom models by contrast",
        "proto_evfl": "rare or unseen classes, by their prototypes",
        "entity_augmentation": "many shared with each partner, few with all",
        "transfer": "many labels; a partner's view alone names a person",
        "secure_transfer": "the same for two parties, all of it encrypted",
        "vfedtrans": "the label's party scores alone afterwards",
        "apc_vfl": "the same, from auto-encoders' codes",
        "privileged_distillation": "the same, taught by a joint model",
    },
    "Trees and linear models over all parties' columns of a table": {
        "boosted_trees": "gradient boosting, gradients encrypted",
        "random_forest": "trees side by side",
        "decision_tree": "one tree",
        "logistic": "classes; the pooled table's coefficients",
        "linear": "a quantity, by least squares",
        "poisson": "counts",
        "tweedie": "a quantity that is often 0, as claims",
        "scorecard": "credit risk: bins, points and reasons",
    },
    "Groups of people, without a label": {
        "kmeans": "clusters by all parties' columns",
        "gaussian_mixture": "clusters that overlap",
        "horizontal_kmeans": "the same columns at all, other people",
    },
    "The same columns at all parties, other people": {
        "fedavg": "networks trained at each party, then averaged",
        "fedprox": "the same, where parties' people are unlike",
        "scaffold": "the same, with drift taken out of every step",
        "fedavgm": "fedavg with momentum at the server",
        "fedadam": "fedavg with Adam at the server",
        "fedyogi": "fedavg with Yogi at the server",
        "horizontal_linear": "linear or logistic, as if pooled",
        "horizontal_trees": "boosted trees, as if pooled",
        "mixed": "several such parties beside one that shares people",
    },
    "Baselines to compare with": {
        "active_alone": "the label's party alone, by a network",
        "own_columns": "the label's party alone, by the method itself",
        "shared_only": "split learning on the shared people",
        "mean_imputation": "missing views filled in, in one place",
        "pooled": "all columns in one table, by a network",
        "pooled_columns": "all columns in one table, by the method itself",
        "clients_alone": "same columns: each party by itself",
        "pooled_rows": "same columns: all rows in one table",
    },
}


def entry(name: str) -> Entry:
    """A method's entry.

    Raises:
        JobError: no method has that name; the message lists those that there are.
    """
    if name == AUTO:
        raise JobError(
            "`method: auto` is for a simulation; where partners agree beforehand, name the method "
            "that `interlace inspect` recommends"
        )
    if name not in CATALOGUE:
        near = difflib.get_close_matches(name, CATALOGUE, n=1, cutoff=0.6)
        hint = f"did you mean '{near[0]}'? There are: " if near else "there are: "
        methods = ", ".join(n for n, e in CATALOGUE.items() if e.role == "method")
        beside = ", ".join(n for n, e in CATALOGUE.items() if e.role != "method")
        raise JobError(
            f"there is no method '{name}'; {hint}{methods}; and, to compare with: {beside}"
        )
    return CATALOGUE[name]


def is_horizontal(name: str) -> bool:
    """Whether a method or baseline is for parties with the same columns and other people."""
    return issubclass(entry(name).make, HorizontalMethod | InOnePlace)


def accepted(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Those of some settings that a method takes too."""
    known = inspect.signature(entry(name).make).parameters
    return {k: v for k, v in settings.items() if k in known}


def build_method(name: str, settings: dict[str, Any]) -> Method:
    """Make a method from its name and the hyper-parameters of a job.

    Raises:
        JobError: there is no such method or hyper-parameter, or a value does not fit.
    """
    make = entry(name).make
    parameters = inspect.signature(make).parameters
    known = list(parameters)
    for key, parameter in parameters.items():
        if parameter.default is parameter.empty and key not in settings:
            raise JobError(f"'{name}' is a baseline of another method, and cannot run without one")
    arguments: dict[str, Any] = {}
    for key, value in settings.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.4)
            hint = f"did you mean '{near[0]}'?" if near else f"it takes: {', '.join(known)}"
            raise JobError(f"the method '{name}' has no hyper-parameter '{key}'; {hint}")
        if key == "method":
            value = build_method(value["name"], {k: v for k, v in value.items() if k != "name"})
        arguments[key] = value
    try:
        return make(**validated(make, arguments))
    except JobError as e:
        raise JobError(f"the method '{name}': {e}") from None
