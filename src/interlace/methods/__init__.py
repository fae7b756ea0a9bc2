"""Methods: each a conversation between an active party that drives and passive ones that answer."""

from interlace.methods.base import Method
from interlace.methods.baselines import ActiveAlone, MeanImputation, Pooled, WithFallback
from interlace.methods.vertical import (
    APCVFL,
    AggVFL,
    BoostedTrees,
    DecisionTree,
    EntityAugmentation,
    FedCVT,
    FederatedTransfer,
    FedOnce,
    FewShotVFL,
    OneShotVFL,
    PrivilegedDistillation,
    ProtoEVFL,
    RandomForest,
    SplitVFL,
    SSVFLCollaborative,
    SSVFLIndependent,
    VFedTrans,
)

__all__ = [
    "APCVFL",
    "ActiveAlone",
    "AggVFL",
    "BoostedTrees",
    "DecisionTree",
    "EntityAugmentation",
    "FedCVT",
    "FedOnce",
    "FederatedTransfer",
    "FewShotVFL",
    "MeanImputation",
    "Method",
    "OneShotVFL",
    "Pooled",
    "PrivilegedDistillation",
    "ProtoEVFL",
    "RandomForest",
    "SSVFLCollaborative",
    "SSVFLIndependent",
    "SplitVFL",
    "VFedTrans",
    "WithFallback",
]
