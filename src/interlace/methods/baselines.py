"""What there is without federation, and what there would be if all tables lay in one place.

Networks are compared with one undivided network (the bottom over its columns, the top over the
bottom), trained exactly as :class:`~interlace.methods.vertical.SplitVFL` trains its own: same
epochs, same early stopping. Trees and clusterings are compared with themselves.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from io import BytesIO
from typing import Any, Self

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from sklearn.base import clone

from interlace.align import Alignment, AlignmentReport
from interlace.data.columns import Reading
from interlace.data.features import FeaturePlan
from interlace.data.images import is_image
from interlace.engines import InProcess
from interlace.errors import AlignmentError, DataError, InterlaceError
from interlace.federation import Federation
from interlace.methods.base import EarlyStopping, Method, OnEpoch
from interlace.methods.vertical.split import SplitVFL
from interlace.party import Party, Peer, State

POOLED = "pooled"  # what the party is called that holds the one table
Named = Mapping[str, Mapping[str, int]]


class ActiveAlone(SplitVFL):
    """The active party's own columns and all of its labelled people; nobody else is asked."""

    def _people(self, federation: Federation) -> Federation:
        if not federation.active.columns:
            raise DataError(
                "the active party has no columns of its own, so it can learn nothing alone",
                party=federation.active.name,
            )
        people = federation.labelled()
        if len(people.rows) < 2:
            raise AlignmentError(
                f"{len(people.rows)} people of this view have a label; at least two are needed"
            )
        return people

    def _open(self, federation: Federation) -> dict[str, Peer]:
        return {}


class Pooled(ActiveAlone):
    """All parties' columns of the shared people in one table.

    It reads every party's table, so it runs only where one person holds them all. A method that
    learns from other people too can pass it.
    """

    def _people(self, federation: Federation) -> Federation:
        people = federation.shared().labelled()
        # Whom a partner lacks has gaps in its columns, which should not sway their scaling.
        others = np.setdiff1d(np.arange(len(federation.active)), federation.alignment.common)
        return self._learnt(people.view(people.rows, np.union1d(federation.held_out, others)))

    def outputs(self, federation: Federation) -> NDArray[np.float64]:
        """Predictions from the joined table."""
        return super().outputs(self._joined(federation))

    def _learnt(self, people: Federation) -> Federation:
        """The joined table of the people to train on; what joins it is learnt from them alone."""
        self.images_ = _image_plans(people)
        return self._joined(people)

    def _joined(self, federation: Federation) -> Federation:
        if self.images_:
            return _one_table(federation, _side_by_side(federation, self.images_))
        return _one_table(federation, _all_columns(federation, self._view))

    def _view(self, federation: Federation, party: Party) -> dict[str, pl.Series]:
        return _columns(federation, party)

    def _state(self, stopping: EarlyStopping) -> State:
        state = super()._state(stopping)
        state.meta["images"] = {name: plan.to_json() for name, plan in self.images_.items()}
        return state

    def _take(self, state: State) -> None:
        super()._take(state)
        plans = state.meta["images"].items()
        self.images_ = {name: FeaturePlan.from_json(plan) for name, plan in plans}


class MeanImputation(Pooled):
    """The naive answer to missing views: all labelled people of the active party, each column that
    a person's other parties would have to supply filled with its mean, or its most frequent value.

    Like :class:`Pooled` it reads every table, which flatters it: a real federation could not.
    """

    def _people(self, federation: Federation) -> Federation:
        return self._learnt(federation.labelled())

    def _learnt(self, people: Federation) -> Federation:
        self.typical_ = _typical(people)
        return super()._learnt(people)

    def _view(self, federation: Federation, party: Party) -> dict[str, pl.Series]:
        view = super()._view(federation, party)
        if party is federation.active:
            return view
        missing = pl.Series(federation.alignment.position(party.name) < 0)
        return {
            column: pl.select(
                pl.when(missing)
                .then(pl.lit(self.typical_[_name(column, party, federation.active)]))
                .otherwise(series)
                .alias(column)
            ).to_series()
            for column, series in view.items()
        }

    def _state(self, stopping: EarlyStopping) -> State:
        state = super()._state(stopping)
        content = BytesIO()
        self.typical_.write_ipc(content)
        state.tensors["typical"] = torch.frombuffer(content.getbuffer(), dtype=torch.uint8)
        return state

    def _take(self, state: State) -> None:
        super()._take(state)
        self.typical_ = pl.read_ipc(BytesIO(state.tensors["typical"].numpy().tobytes()))


class _Alike(Method):
    """Trains a method, set as it is, in a federation of one party."""

    def __init__(self, method: Method) -> None:
        self.method = method

    @abstractmethod
    def _one(self, federation: Federation) -> Federation:
        """The federation of one."""

    def _placed(self, method: Method, active: Party) -> Method:
        """The method as it is there: ``monotone_constraints`` name columns by party."""
        named = method.get_params(deep=False).get("monotone_constraints")
        if named:
            method.set_params(monotone_constraints=self._renamed(named, active.name))
        return method

    @abstractmethod
    def _renamed(self, named: Named, active: str) -> Named:
        """Settings by party and column, as they are called there."""

    def fit(
        self,
        federation: Federation,
        *,
        checkpoint: str | None = None,
        on_epoch: OnEpoch | None = None,
    ) -> Self:
        """Train the method; see its own ``fit``."""
        self.method_ = self._placed(clone(self.method), federation.active)
        self.method_.fit(self._one(federation), checkpoint=checkpoint, on_epoch=on_epoch)
        self.history_ = self.method_.history_
        if self.method_.supervised:
            self.label_plan_ = self.method_.label_plan_
        return self

    def outputs(self, federation: Federation) -> NDArray[np.float64]:
        """What the method says of the people of a view."""
        return self.method_.outputs(self._one(federation))

    def figures(self, federation: Federation) -> dict[str, float]:
        """Those of a method without a label."""
        return self.method_.figures(self._one(federation))

    def decide(self, outputs: NDArray[np.float64]) -> NDArray[Any]:
        """The prediction that follows from :meth:`outputs`."""
        return self.method_.decide(outputs)

    def said(self, outputs: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
        """What the method's file of scores has besides."""
        return self.method_.said(outputs)

    def save(self, name: str) -> None:
        """Keep the model in the active party's folder."""
        self.method_.save(name)

    def load(self, name: str, federation: Federation) -> Self:
        """Take what :meth:`save` kept."""
        self.method_ = clone(self.method).load(name, self._one(federation))
        self.history_ = self.method_.history_
        if self.method_.supervised:
            self.label_plan_ = self.method_.label_plan_
        return self


class OwnColumns(_Alike):
    """The method itself on the active party's own columns and all of its labelled people.

    Args:
        method: What is trained, with its settings.
    """

    def fit(
        self,
        federation: Federation,
        *,
        checkpoint: str | None = None,
        on_epoch: OnEpoch | None = None,
    ) -> Self:
        """Train the method; see its own ``fit``.

        Raises:
            DataError: the active party has no columns.
        """
        if not federation.active.columns:
            raise DataError(
                "the active party has no columns of its own, so it can learn nothing alone",
                party=federation.active.name,
            )
        return super().fit(federation, checkpoint=checkpoint, on_epoch=on_epoch)

    def _one(self, federation: Federation) -> Federation:
        one = Federation(federation.active, (), federation.engine, seed=federation.seed)
        nobody = AlignmentReport(
            reveal="pairs", protocols={}, people={}, shared={}, common=0, learnt={}
        )
        everybody = Alignment.of({}, len(federation.active), nobody)
        one._common = replace(federation._common, alignment=everybody)
        return one.view(federation.rows, federation.held_out)

    def _renamed(self, named: Named, active: str) -> Named:
        return {party: columns for party, columns in named.items() if party == active}


class PooledColumns(_Alike):
    """The method itself on all parties' columns of the shared people in one table. For trees, the
    trees of the pooled table; encryption has nothing to hide there.

    Args:
        method: What is trained, with its settings.
    """

    def _one(self, federation: Federation) -> Federation:
        one = _one_table(federation, _all_columns(federation, _columns))
        return one.view(np.intersect1d(federation.rows, federation.alignment.common))

    def _renamed(self, named: Named, active: str) -> Named:
        return {
            POOLED: {
                c if party == active else f"{party}.{c}": value
                for party, columns in named.items()
                for c, value in columns.items()
            }
        }


def _holders(federation: Federation) -> list[Party]:
    """The parties with columns.

    Raises:
        InterlaceError: they are not all here.
    """
    if not isinstance(federation.engine, InProcess):
        raise InterlaceError("tables can be pooled only where one person holds them all")
    return [p for p in federation.engine.parties.values() if p.columns]


def _columns(federation: Federation, party: Party) -> dict[str, pl.Series]:
    """A party's columns in the order of the active party's people."""
    rows = _rows_of(federation, party)
    return {c: party.frame[c].gather(rows) for c in party.columns}


def _all_columns(
    federation: Federation, view: Callable[[Federation, Party], dict[str, pl.Series]]
) -> dict[str, pl.Series]:
    """Every party's columns, as ``view`` gives them, by their names in the one table."""
    return {
        _name(column, party, federation.active): series
        for party in _holders(federation)
        for column, series in view(federation, party).items()
    }


def _one_table(federation: Federation, joined: dict[str, pl.Series]) -> Federation:
    """A federation of one party that holds the joined columns."""
    active = federation.active
    special = active.frame.select(*active.id_rule.columns, *active.labels_columns)
    pooled = Party(
        POOLED,
        special.with_columns(**joined),
        id=active.id_rule,
        label=active.labels_columns,
        columns=list(joined),
        folder=active.folder,
    )
    readings = {_name(c, p, active): r for p in _holders(federation) for c, r in p.readings.items()}
    # As in the parties' own tables; images side by side are no party's own column.
    pooled.readings = {c: readings.get(c, Reading("unfit")) for c in joined}
    pooled.secret = active.secret  # one and the same network from one seed
    one = Federation(pooled, (), federation.engine, seed=federation.seed)
    one._common = federation._common
    return one.view(federation.rows, federation.held_out)


def _name(column: str, party: Party, active: Party) -> str:
    """What a party's column is called in the one table."""
    return column if party is active else f"{party.name}.{column}"


def _rows_of(federation: Federation, party: Party) -> pl.Series:
    """For every person of the active party, the row at ``party``; null where it has none."""
    active = federation.active
    if party is active:
        return pl.Series(np.arange(len(active)))
    position = federation.alignment.position(party.name)
    rows = party.shared_with(active.name)[position]
    return pl.select(pl.when(pl.Series(position >= 0)).then(pl.Series(rows))).to_series()


def _typical(people: Federation) -> pl.DataFrame:
    """A row of what is typical in each partner's columns, by their names in the one table: the
    mean of numbers and dates, the most frequent value of anything else."""
    codes = {_name(c, p, people.active) for p in _holders(people) for c in p.categories}
    others = _all_columns(people, lambda f, p: {} if p is f.active else _columns(f, p))
    return pl.select(
        _most_typical(series.gather(people.rows).drop_nulls(), name in codes).alias(name)
        for name, series in others.items()
        if not is_image(series.dtype)
    )


def _most_typical(series: pl.Series, categorical: bool) -> pl.Expr:
    if series.dtype.is_float():
        series = series.filter(series.is_finite())
    if series.dtype.is_temporal() or (series.dtype.is_numeric() and not categorical):
        return pl.lit(series.mean()).cast(
            series.dtype if series.dtype.is_temporal() else pl.Float64
        )
    return pl.lit(series.mode().sort().first(), dtype=series.dtype)


def _image_plans(people: Federation) -> dict[str, FeaturePlan]:
    """How each party's images are scaled, by its rows about these people; none of tables."""
    parties = _holders(people)
    if not all(is_image(p.frame[c].dtype) for p in parties for c in p.columns):
        return {}
    return {
        p.name: FeaturePlan.fit(
            p.frame,
            p.columns,
            _rows_of(people, p).gather(people.rows).drop_nulls().to_numpy(),
            party=p.name,
            file=p.file,
        )
        for p in parties
    }


def _side_by_side(federation: Federation, plans: Mapping[str, FeaturePlan]) -> dict[str, pl.Series]:
    """The parties' images joined along their width, a column; a missing one is the mean image."""
    strips = []
    for party in _holders(federation):
        rows = _rows_of(federation, party)
        pixels = plans[party.name].transform(party.frame).numpy()
        strip = np.zeros((len(rows), *pixels.shape[1:]), dtype=np.float32)
        held = rows.is_not_null().to_numpy()
        strip[held] = pixels[rows.drop_nulls().to_numpy()]
        strips.append(strip)
    return {"image": pl.Series("image", np.concatenate(strips, axis=3))}


class WithFallback(Method):
    """A joint model where every party holds the person, and one that needs no partner elsewhere.

    Args:
        joint: For people whom all parties hold, or some partner where the method needs no more.
        alone: For everybody else.
    """

    def __init__(self, joint: Method, alone: Method) -> None:
        self.joint = joint
        self.alone = alone

    def fit(
        self,
        federation: Federation,
        *,
        checkpoint: str | None = None,
        on_epoch: OnEpoch | None = None,
    ) -> Self:
        """Fit the joint model, then the other one."""
        names = (f"{checkpoint}-joint", f"{checkpoint}-alone") if checkpoint else (None, None)
        self.joint.fit(federation, checkpoint=names[0], on_epoch=on_epoch)
        self.alone.fit(federation, checkpoint=names[1], on_epoch=on_epoch)
        self.label_plan_, self.history_ = self.joint.label_plan_, self.joint.history_
        return self

    def sources(self, federation: Federation) -> NDArray[np.str_]:
        """Which model scores each person of a view: ``joint`` or ``alone``."""
        shared = federation.shared(partial=self.joint.partial or self.joint.scores_some).rows
        return np.where(np.isin(federation.rows, shared), "joint", "alone")

    def outputs(self, federation: Federation) -> NDArray[np.float64]:
        """Predictions for everybody in a view; :meth:`sources` tells whose they are."""
        sources = self.sources(federation)
        out: NDArray[np.float64] | None = None
        for source, model in (("joint", self.joint), ("alone", self.alone)):
            chosen = sources == source
            if chosen.any():
                some = model.outputs(federation.view(federation.rows[chosen]))
                if out is None:
                    out = np.empty((len(sources), *some.shape[1:]))
                out[chosen] = some
        if out is None:
            raise InterlaceError("there is nobody to score in this view of the federation")
        return out

    def save(self, name: str) -> None:
        """Keep both models."""
        self.joint.save(f"{name}-joint")
        self.alone.save(f"{name}-alone")

    def load(self, name: str, federation: Federation) -> Self:
        """Take both models."""
        self.joint.load(f"{name}-joint", federation)
        self.alone.load(f"{name}-alone", federation)
        self.label_plan_ = self.joint.label_plan_
        return self
