"""Methods for parties with other columns and partly the same people; one file a method."""

from interlace.methods.vertical.boosting import BoostedTrees, DecisionTree, RandomForest
from interlace.methods.vertical.clustering import VerticalGaussianMixture, VerticalKMeans
from interlace.methods.vertical.distillation import APCVFL, PrivilegedDistillation, VFedTrans
from interlace.methods.vertical.entity_augmentation import EntityAugmentation
from interlace.methods.vertical.fed_once import FedOnce
from interlace.methods.vertical.fedcvt import FedCVT
from interlace.methods.vertical.linear import (
    LinearRegression,
    LogisticRegression,
    PoissonRegression,
    TweedieRegression,
)
from interlace.methods.vertical.one_shot import FewShotVFL, OneShotVFL
from interlace.methods.vertical.proto_evfl import ProtoEVFL
from interlace.methods.vertical.scorecard import Scorecard
from interlace.methods.vertical.secure_transfer import SecureTransfer
from interlace.methods.vertical.split import AggVFL, SplitVFL
from interlace.methods.vertical.ss_vfl import SSVFLCollaborative, SSVFLIndependent
from interlace.methods.vertical.transfer import FederatedTransfer

__all__ = [
    "APCVFL",
    "AggVFL",
    "BoostedTrees",
    "DecisionTree",
    "EntityAugmentation",
    "FedCVT",
    "FedOnce",
    "FederatedTransfer",
    "FewShotVFL",
    "LinearRegression",
    "LogisticRegression",
    "OneShotVFL",
    "PoissonRegression",
    "PrivilegedDistillation",
    "ProtoEVFL",
    "RandomForest",
    "SSVFLCollaborative",
    "SSVFLIndependent",
    "Scorecard",
    "SecureTransfer",
    "SplitVFL",
    "TweedieRegression",
    "VFedTrans",
    "VerticalGaussianMixture",
    "VerticalKMeans",
]
