"""The active party's own part of a model as ONNX, to score elsewhere without interlace.

The graph reads raw columns, one input each, and does all that the party's preprocessing does. What
can be written so:

- networks that ask no partner: the active party alone, and what distillation made of a federation;
- trees that split on the active party's columns alone;
- the active party's share of scores that are added up: of aggVFL, of linear models, and of a
  scorecard's points.

Not written: models that read a partner's embeddings or splits for each person, since a graph in one
place has none; dates and hashed rare levels, which ONNX has no operators for; images.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

import interlace
from interlace.data.columns import CategoryColumn, DateColumn, IndicatorColumn
from interlace.data.features import FeaturePlan
from interlace.engines import InProcess
from interlace.errors import DataError, JobError
from interlace.federation import Federation
from interlace.files import write_whole
from interlace.methods import AggVFL, Method
from interlace.methods.baselines import OwnColumns
from interlace.methods.bottom import SideBySide
from interlace.methods.vertical.boosting import VerticalTrees
from interlace.methods.vertical.joint import Joined, JointModel
from interlace.methods.vertical.linear import GeneralisedLinear
from interlace.methods.vertical.pretrained import Standardised
from interlace.methods.vertical.scorecard import Scorecard
from interlace.models import networks
from interlace.models.binning import LevelBins
from interlace.models.glm import Columns
from interlace.models.trees import Binning, CategoryBins, Split, Tree
from interlace.party import Party
from interlace.runner import in_one_place
from interlace.serve.batch import Trained

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, ValueInfoProto

OPSET, TREES = 18, 3  # of the standard operators, and of those for trees and levels
LARGEST = float(np.finfo(np.float32).max)  # beyond it a number counts as missing


def export(
    run: str | Path, out: str | Path, *, model: str | None = None, seed: int | None = None
) -> ModelProto:
    """Write a model of a finished run as ONNX; no table and no partner is needed.

    Args:
        run: The run folder, or what the active party has of it.
        out: Where it goes; replaced if it is there.
        model: Which of the run's models, as in `compare`; by default the job's method.
        seed: Which training's; by default the first seed's.

    Returns:
        The model that was written, as :func:`to_onnx` describes it.

    Raises:
        JobError: there is no such model, or it cannot score without partners.
        DataError: a column cannot be read in ONNX.
    """
    trained = Trained.read(run, seed)
    name = model or trained.job.method.name
    try:
        if name not in trained.models:
            raise JobError(f"this run trained no '{name}'")
        made = _written(trained, name)
    except JobError as e:
        able = [n for n in sorted(trained.models - {name}) if _can_be_written(trained, n)]
        rest = f"of its models there can be written: {', '.join(able)}" if able else "none can be"
        raise JobError(f"{e}; {rest}") from None
    write_whole(Path(out), made.SerializeToString())
    return made


def _written(trained: Trained, name: str) -> ModelProto:
    """A model of a run as ONNX.

    Raises:
        JobError, DataError: it cannot be written so.
    """
    if in_one_place(name):
        raise JobError(f"'{name}' reads partners' columns too, so it needs their tables to score")
    active = Party(trained.active, folder=trained.folder / "parties" / trained.active)
    nobody_else = Federation(active, (), InProcess([active]))
    return to_onnx(trained.model(name, nobody_else))


def _can_be_written(trained: Trained, name: str) -> bool:
    try:
        return bool(_written(trained, name))
    except (JobError, DataError):
        return False


def to_onnx(method: Method) -> ModelProto:
    """A fitted model as an ONNX graph.

    Inputs bear the columns' names and have shape (people, 1): float64 for numbers, NaN where they
    are missing (durations in days, times of day in hours, true as 1); text for categories, without
    blanks around it and empty where missing. The output is ``probabilities`` (people, classes),
    ``estimate`` (people, 1), or ``partial_score`` (people, outputs), to which the partners' are
    added: with the intercept, before a linear model makes means of it; of a scorecard, points.
    Metadata name the method and, as JSON, the classes.

    Raises:
        JobError: the model reads what partners say of each person, or the libraries are not there.
        DataError: a column cannot be read in ONNX.
    """
    if find_spec("onnx") is None:
        raise JobError("export needs onnx: pip install 'interlace[onnx]'")
    alone = isinstance(method, OwnColumns)
    if isinstance(method, OwnColumns):
        method = method.method_
    if isinstance(method, VerticalTrees):
        graph = _trees(method)
    elif isinstance(method, JointModel):
        graph = _network(method)
    elif isinstance(method, GeneralisedLinear) and isinstance(method.own_, Columns):
        graph = _linear(method, method.own_, alone)
    elif isinstance(method, Scorecard) and method.card_.columns:
        graph = _scorecard(method, alone)
    else:
        raise JobError(
            f"{type(method).__name__} is not written as ONNX; networks of the active party alone, "
            "distilled ones, trees on its own columns, and its share of linear models and "
            "scorecards are"
        )
    made = graph.model()
    about = {
        "method": type(method).__name__,
        "party": graph.party,
        "classes": json.dumps(list(method.label_plan_.classes), default=str),
        "interlace": interlace.__version__,
    }
    for key, value in about.items():
        made.metadata_props.add(key=key, value=value)
    return made


class _Graph:
    """Nodes, inputs and constants as they come together."""

    def __init__(self, party: str) -> None:
        self.party = party
        self.nodes: list[NodeProto] = []
        self.inputs: list[ValueInfoProto] = []
        self.constants: list[Any] = []
        self.output: tuple[str, int, Any] | None = None

    def add(
        self, op: str, *inputs: str, domain: str = "", name: str = "", **attributes: Any
    ) -> str:
        """One more operator; returns the name of what comes out."""
        from onnx import helper

        out = name or f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [out], domain=domain, **attributes))
        return out

    def constant(self, value: Any, dtype: Any = np.float64) -> str:
        """A constant; returns its name."""
        from onnx import numpy_helper

        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype=dtype), name))
        return name

    def weights(self, tensor: Tensor) -> str:
        """Learnt numbers as a constant; float32."""
        return self.constant(tensor.detach().numpy(), np.float32)

    def column(self, name: str, text: bool) -> str:
        """An input (people, 1)."""
        from onnx import TensorProto, helper

        kind = TensorProto.STRING if text else TensorProto.DOUBLE
        self.inputs.append(helper.make_tensor_value_info(name, kind, ["people", 1]))
        return name

    def number(self, name: str) -> tuple[str, str]:
        """A column of numbers and where it is missing: infinite or too large counts as missing."""
        raw = self.column(name, text=False)
        large = self.add("Greater", self.add("Abs", raw), self.constant(LARGEST))
        return raw, self.add("Or", self.add("IsNaN", raw), large)

    def levels(self, name: str, values: dict[str, float], other: float = 0.0) -> str:
        """A column of categories as numbers; float32. ``other``: of what is not in ``values``."""
        return self.add(
            "LabelEncoder",
            self.column(name, text=True),
            domain="ai.onnx.ml",
            keys_strings=list(values),
            values_floats=list(values.values()),
            default_float=other,
        )

    def told(self, name: str, value: str, width: int) -> None:
        """Let a value of float64 be what the graph gives."""
        from onnx import TensorProto

        self.add("Identity", value, name=name)
        self.output = (name, width, TensorProto.DOUBLE)

    def model(self) -> ModelProto:
        """All of it, checked."""
        from onnx import checker, helper

        assert self.output is not None
        name, width, kind = self.output
        made = helper.make_model(
            helper.make_graph(
                self.nodes,
                "interlace",
                self.inputs,
                [helper.make_tensor_value_info(name, kind, ["people", width])],
                self.constants,
            ),
            opset_imports=[
                helper.make_opsetid("", OPSET),
                helper.make_opsetid("ai.onnx.ml", TREES),
            ],
            ir_version=9,
            producer_name="interlace",
        )
        checker.check_model(made, full_check=True)
        return made


# -- networks ----------------------------------------------------------------------------------


def _network(method: JointModel) -> _Graph:
    from onnx import TensorProto

    own, objective = method.own_, method.objective_
    share = bool(method.widths_)
    if own is None or (share and not isinstance(method, AggVFL)):
        raise JobError(
            f"{type(method).__name__} reads an embedding that partners make of each person, so the "
            "active party's part says nothing by itself"
        )
    graph = _Graph(method.active_.name)
    out = _layer(graph, own.module.eval(), _features(graph, own.plan))
    if not share:
        out = _layer(graph, method.top_.eval(), out)
    score = graph.add("Cast", out, to=TensorProto.DOUBLE)
    if share:
        graph.told("partial_score", score, objective.outputs)
    elif objective.task == "regression":
        scaled = graph.add("Mul", score, graph.constant(objective.scale))
        graph.told("estimate", graph.add("Add", scaled, graph.constant(objective.centre)), 1)
    elif objective.task == "multilabel":
        graph.told("probabilities", graph.add("Sigmoid", score), objective.outputs)
    else:
        graph.told("probabilities", graph.add("Softmax", score, axis=1), objective.outputs)
    return graph


def _layer(graph: _Graph, module: nn.Module, x: str) -> str:
    """What a layer outside of training makes of x.

    Raises:
        JobError: it is of somebody else's make.
    """
    match module:
        case nn.Sequential():
            for part in module:
                x = _layer(graph, part, x)
            return x
        case nn.Linear():
            return graph.add(
                "Gemm", x, graph.weights(module.weight), graph.weights(module.bias), transB=1
            )
        case nn.ReLU():
            return graph.add("Relu", x)
        case nn.Dropout():
            return x
        case networks.Columns():
            tables = [e.get_parameter("weight") for e in module.embeddings]
            parts = _looked_up(graph, x, module.numeric, tables)
            return graph.add("Concat", _numbers(graph, x, module.numeric), *parts, axis=1)
        case networks.Linear():
            tables = [e.get_parameter("weight") for e in module.levels]
            numbers = _layer(graph, module.dense, _numbers(graph, x, module.numeric))
            return _sum(graph, [numbers, *_looked_up(graph, x, module.numeric, tables)])
        case networks.FourierFeatures():
            sizes = [module.numeric, *module.cardinalities]
            first, *by_level = torch.split(module.weight.T, sizes)
            numbers = _numbers(graph, x, module.numeric)
            product = graph.add("MatMul", numbers, graph.weights(first))
            levels = _looked_up(graph, x, module.numeric, by_level)
            angle = _sum(graph, [product, *levels, graph.weights(module.phase)])
            height = graph.constant(math.sqrt(2 / len(module.phase)), np.float32)
            return graph.add("Mul", graph.add("Cos", angle), height)
        case SideBySide():
            return graph.add("Concat", *(_layer(graph, n, x) for n in module.networks), axis=1)
        case Joined():
            return _layer(graph, module.top, x)
        case Standardised():
            centred = graph.add("Sub", x, graph.weights(module.mean))
            scaled = graph.add("Div", centred, graph.weights(module.spread))
            return _layer(graph, module.top, scaled)
    raise JobError(
        f"a network with a layer of another make ({type(module).__name__}) is not written as ONNX; "
        "torch.onnx can write the module by itself"
    )


def _sum(graph: _Graph, parts: Sequence[str]) -> str:
    out, *rest = parts
    for part in rest:
        out = graph.add("Add", out, part)
    return out


def _numbers(graph: _Graph, x: str, count: int) -> str:
    """The numeric columns of x, which come first."""
    ends = (graph.constant([end], np.int64) for end in (0, count, 1))
    return graph.add("Slice", x, *ends)


def _looked_up(graph: _Graph, x: str, numeric: int, tables: Sequence[Tensor]) -> list[str]:
    """For each column of codes behind the numeric ones the rows of its table (levels, width)."""
    return [_rows(graph, x, numeric + j, graph.weights(table)) for j, table in enumerate(tables)]


def _rows(graph: _Graph, x: str, column: int, table: str) -> str:
    """The rows of a table (levels, width) that a column of codes names."""
    from onnx import TensorProto

    codes = graph.add("Gather", x, graph.constant(column, np.int64), axis=1)
    return graph.add("Gather", table, graph.add("Cast", codes, to=TensorProto.INT64), axis=0)


# -- shares of linear models and scorecards ----------------------------------------------------


def _linear(method: GeneralisedLinear, columns: Columns, alone: bool) -> _Graph:
    from onnx import TensorProto

    graph = _Graph(method.active_.name)
    x, spec = _features(graph, columns.plan), columns.plan.spec
    weights = method.weights_
    numbers = graph.add("Cast", _numbers(graph, x, spec.numeric), to=TensorProto.DOUBLE)
    parts = [graph.add("MatMul", numbers, graph.constant(weights[: spec.numeric]))]
    place = spec.numeric
    for j, (cardinality, codes) in enumerate(zip(spec.cardinalities, columns.levels, strict=True)):
        table = np.zeros((cardinality, weights.shape[1]))
        table[list(codes)] = weights[place : place + len(codes)]
        parts.append(_rows(graph, x, spec.numeric + j, graph.constant(table)))
        place += len(codes)
    score = graph.add("Add", _sum(graph, parts), graph.constant(weights[-1]))
    family, width = method.family_, weights.shape[1]
    if not alone:
        graph.told("partial_score", score, width)
    elif family.name in ("gaussian", "tweedie"):
        graph.told("estimate", score if family.name == "gaussian" else graph.add("Exp", score), 1)
    elif family.outputs == 1:
        graph.told("probabilities", _two(graph, graph.add("Sigmoid", score)), 2)
    elif family.slope is not None:
        each = graph.add("Sigmoid", score)
        every = graph.add("ReduceSum", each, graph.constant([1], np.int64), keepdims=1)
        graph.told("probabilities", graph.add("Div", each, every), width)
    else:
        graph.told("probabilities", graph.add("Softmax", score, axis=1), width)
    return graph


def _two(graph: _Graph, p: str, *, first: bool = False) -> str:
    """Probabilities of two classes from that of one of them."""
    other = graph.add("Sub", graph.constant(1.0), p)
    return graph.add("Concat", *((p, other) if first else (other, p)), axis=1)


def _scorecard(method: Scorecard, alone: bool) -> _Graph:
    from onnx import TensorProto

    card = method.card_
    graph = _Graph(card.party)
    parts = [graph.constant(method.intercept_points_)]
    for column in card.columns:
        bins = column.bins
        if isinstance(bins, LevelBins):
            bin_of = {x: float(b) for b, group in enumerate(bins.groups, 1) for x in group}
            new = float(bins.other or bins.width + 1)
            code = graph.levels(column.name, {**bin_of, "": float(column.missing)}, new)
            place = graph.add("Cast", code, to=TensorProto.INT64)
        elif bins.dates:
            raise _unwritten(card.party, column.name, "dates")
        else:
            raw, missing = graph.number(column.name)
            above = graph.add("GreaterOrEqual", raw, graph.constant([bins.edges]))
            count = graph.add(
                "ReduceSum",
                graph.add("Cast", above, to=TensorProto.INT64),
                graph.constant([1], np.int64),
                keepdims=1,
            )
            known = graph.add("Add", count, graph.constant(1, np.int64))
            place = graph.add("Where", missing, graph.constant(column.missing, np.int64), known)
        parts.append(graph.add("Gather", graph.constant(column.points), place, axis=0))
    points = _sum(graph, parts)
    if not alone:
        graph.told("partial_score", points, 1)
        return graph
    lacking = graph.add("Sub", graph.constant(method.base_points), points)
    odds = graph.add("Div", lacking, graph.constant(method.factor_))
    bad = graph.add("Sigmoid", graph.add("Sub", odds, graph.constant(math.log(method.base_odds))))
    graph.told("probabilities", _two(graph, bad, first=not method.bad_), 2)
    return graph


# -- preprocessing -----------------------------------------------------------------------------


def _features(graph: _Graph, plan: FeaturePlan) -> str:
    """What :meth:`FeaturePlan.transform` does; float32 (people, inputs)."""
    from onnx import TensorProto

    if plan.image is not None:
        raise DataError("images are not written as ONNX", party=plan.party, column=plan.image.name)
    numeric, categories = [], []
    for column in plan.columns:
        if isinstance(column, DateColumn):
            raise _unwritten(plan.party, column.name, "dates")
        if isinstance(column, CategoryColumn):
            if column.buckets:
                raise _unwritten(plan.party, column.name, "rare levels that share hashed codes")
            codes = {level: float(code) for code, level in enumerate(column.levels, 1)}
            categories.append(graph.levels(column.name, codes))
            continue
        raw, missing = graph.number(column.name)
        gap = graph.add("Cast", missing, to=TensorProto.FLOAT)
        if isinstance(column, IndicatorColumn):
            numeric.append(gap)
            continue
        filled = graph.add("Where", missing, graph.constant(column.median), raw)
        centred = graph.add("Sub", filled, graph.constant(column.mean))
        scaled = graph.add("Div", centred, graph.constant(column.scale))
        clipped = graph.add("Clip", scaled, graph.constant(-10.0), graph.constant(10.0))
        numeric.append(graph.add("Cast", clipped, to=TensorProto.FLOAT))
        if column.indicator:
            numeric.append(gap)
    return graph.add("Concat", *numeric, *categories, axis=1)


def _unwritten(party: str, column: str, what: str) -> DataError:
    return DataError(
        f"it has {what}, which ONNX has no operator for",
        party=party,
        column=column,
        way_out="Leave the column out of `columns`, or turn it into numbers or fewer levels first",
    )


# -- trees -------------------------------------------------------------------------------------


def _trees(method: VerticalTrees) -> _Graph:
    from onnx import TensorProto

    trees = list(chain(*method.trees_))
    me = method.active_.name
    if {owner for tree in trees for owner in tree.owner} - {None, me}:
        raise JobError("these trees split on partners' columns too, whose values only they have")
    if not method.own_.splits:
        raise JobError("these trees make no split, so there is nothing to score by")
    graph, outputs = _Graph(me), method.loss_.outputs
    bits, places = _bits(graph, method.own_.binning, method.own_.splits)
    nodes: dict[str, Any] = defaultdict(list)
    for number, tree in enumerate(trees):
        targets = range(outputs) if method.multi_output else [number % outputs]
        _add_tree(nodes, number, tree, places, targets)
    score = graph.add(
        "TreeEnsembleRegressor",
        bits,
        domain="ai.onnx.ml",
        n_targets=outputs,
        base_values=method.base_.tolist(),
        **dict(nodes),
    )
    score = graph.add("Cast", score, to=TensorProto.DOUBLE)
    objective = method.loss_.objective
    if objective == "multi:softprob":
        graph.told("probabilities", graph.add("Softmax", score, axis=1), outputs)
    elif objective == "binary:logistic":
        p = graph.add("Sigmoid", score)
        several = outputs > 1
        graph.told("probabilities", p if several else _two(graph, p), outputs if several else 2)
    else:
        graph.told(
            "estimate", graph.add("Exp", score) if objective == "count:poisson" else score, 1
        )
    return graph


def _bits(graph: _Graph, binning: Binning, splits: Sequence[Split]) -> tuple[str, dict[int, int]]:
    """1 where a split sends a person left, float32 (people, splits), and each split's place."""
    from onnx import TensorProto

    parts: list[str] = []
    places: dict[int, int] = {}
    for bins in binning.columns:
        own = [i for i, split in enumerate(splits) if split.column == bins.name]
        if not own:
            continue
        places |= {split: len(places) + j for j, split in enumerate(own)}
        if isinstance(bins, CategoryBins):
            code = graph.levels(bins.name, {x: float(c) for c, x in enumerate(bins.levels, 1)})
            row = graph.add("Cast", graph.add("Squeeze", code, graph.constant([1], np.int64)), to=7)
            levels = np.arange(bins.width + 1.0)  # 0 is what is missing
            table = np.stack([bins.goes_left(splits[i], levels) for i in own], axis=1)
            parts.append(graph.add("Gather", graph.constant(table, np.float32), row, axis=0))
            continue
        if bins.dates:
            raise _unwritten(binning.party, bins.name, "dates")
        raw, missing = graph.number(bins.name)
        below = [np.inf if splits[i].below is None else splits[i].below for i in own]
        less = graph.add("Less", raw, graph.constant([below]))
        gaps = graph.constant([[splits[i].missing_left for i in own]], np.bool_)
        known = graph.add("And", graph.add("Not", missing), less)
        goes_left = graph.add("Or", known, graph.add("And", missing, gaps))
        parts.append(graph.add("Cast", goes_left, to=TensorProto.FLOAT))
    return graph.add("Concat", *parts, axis=1), places


def _add_tree(
    nodes: dict[str, list[Any]],
    number: int,
    tree: Tree,
    places: dict[int, int],
    targets: Sequence[int],
) -> None:
    """A tree as the operator reads it: left where the split's bit is 1."""
    for i, owner in enumerate(tree.owner):
        leaf = owner is None
        about = {
            "treeids": number,
            "nodeids": i,
            "featureids": 0 if leaf else places[tree.split[i]],
            "modes": "LEAF" if leaf else "BRANCH_GTE",
            "values": 0.0 if leaf else 0.5,
            "truenodeids": 0 if leaf else tree.left[i],
            "falsenodeids": 0 if leaf else tree.right[i],
        }
        for key, value in about.items():
            nodes[f"nodes_{key}"].append(value)
        for target, weight in zip(targets, tree.value[i], strict=True) if leaf else ():
            for key, value in {
                "treeids": number,
                "nodeids": i,
                "ids": target,
                "weights": weight,
            }.items():
                nodes[f"target_{key}"].append(value)
