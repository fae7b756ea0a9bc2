"""A credit scorecard over vertical parties: bins, weights of evidence, logistic regression, points.

The active party knows who was good and who was bad; every party holds columns. Nobody can bin a
partner's column alone: its holder lacks the outcomes, and who has these lacks the column. So the
holder sums encrypted outcomes over fine bins, and the active party says what to merge::

    active                                                     passive k
      │ ── terms ────────────────────────────────────────────────► │
      │ ◄──────────────────── encryption that its policy allows ─── │
      │ ── begin(training rows, settings) ───────────────────────► │   cuts fine bins
      │ ◄────── how many bins each (unnamed) column has ─────────── │
      │ ── take_key(public key) ─────────────────────────────────► │
      │ ── count(encrypted [good, bad] of each person) ──────────► │   adds ciphertexts up
      │ ◄──────────── [Σgood, Σbad] by column, bin; re-randomised ─ │
      │    decrypts, checks, merges bins, computes WOE and IV; drops columns of low IV
      │ ── merge(columns, bins' new numbers, goods and bads) ────► │   WOE of its rows
      │    correlation of WOE columns, and from it variance inflation:
      │ ── take_key ─────────────────────────────────────────────► │
      │ ── products(an encrypted WOE column of the active party) ► │   Xᵀ[x]
      │ ◄─────────────── scalar products with its WOE columns ───── │   re-randomised
      │ ── own_products ─────────────────────────────────────────► │
      │ ◄────────────── those among its own WOE columns ─────────── │
      │    between two partners: one seals its columns under a key of its own (new_key, seal), the
      │    active party carries them to the other (products) and the answers back (unseal)
      │ ── select(what is dropped, and why) ─────────────────────► │
      │    logistic regression on the WOE columns that are left, see linear.py
      │ ── against ──────────────────────────────────────────────► │
      │ ◄─────── its columns whose coefficient has the wrong sign ─ │
      │    the one of least IV is dropped (select), and the regression begins anew
      │ ── scale(points for each unit of log-odds) ──────────────► │   points of its bins

    and to score people, one message:
      │ ── points(rows) ─────────────────────────────────────────► │
      │ ◄─────────────────── each person's points, added up ─────── │

The counts are exact, so bins, WOE and IV are those of the pooled table.

**What each party learns.** A passive party: who is in training; how many goods and bads are in each
of the final bins of its own columns, of those columns alone whose IV is high enough, since WOE and
points say as much; why its other columns were dropped; what the regression tells it. Never the
outcome of a person, as long as bins are not small (``min_bin_rows``, ``min_bin_share``) nor all of
one kind. The active party: goods and bads in each fine bin of each unnamed column, with no fewer
than ``min_bin_rows`` people in each; correlations of WOE columns, and which coefficients had the
wrong sign; what the regression shows it, which with ``protocol="active_key"`` is as much as the
partner's WOE columns by person up to a linear map (see linear.py); points by person, added up over
a partner's columns. Never a value, an edge or a name. With ``hide_order`` columns come in an order
of the partner's own, each with its bins upwards or downwards as it pleases.

All parties are taken to be honest but curious. The active party checks that a partner's counts add
up to its own goods and bads, the partner that the counts of its final bins have its people.

Sources: Siddiqi, "Credit Risk Scorecards", Wiley 2006 (WOE, IV, points); Regulation B (12 CFR
1002), comment 9(b)(2)-5, on reasons against the mean of all applicants.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression as OnOneColumn
from torch import Tensor

from interlace.crypto.base import (
    PrivateKey,
    Sums,
    Workload,
)
from interlace.crypto.kernels import cores
from interlace.crypto.rlwe import holds_product
from interlace.crypto.schemes import (
    SCHEMES,
    Scheme,
    available,
    choose,
    generate,
)
from interlace.data.labels import LabelPlan
from interlace.errors import (
    AlignmentError,
    DataError,
    InterlaceError,
    JobError,
    Refused,
)
from interlace.federation import Federation
from interlace.job.results import Sheet
from interlace.methods.base import (
    AboveZero,
    AtLeastZero,
    Count,
    Method,
    OnEpoch,
    history_from_json,
    history_to_json,
)
from interlace.methods.vertical.linear import LogisticRegression
from interlace.methods.vertical.linear_side import Protocol, agree_on_schemes
from interlace.methods.vertical.scorecard_side import (
    AGAINST,
    CODES,
    CORRELATED,
    INFLATED,
    KEPT,
    LOW_IV,
    MODEL,
    MOST_BINS,
    CardSettings,
    Cells,
    Draft,
    ScorecardSide,
    WoeSide,
    workload_of,
    write_card,
)
from interlace.models.binning import (
    Cuts,
    Floats,
    Integers,
    best_merge,
)
from interlace.models.glm import Sigmoid
from interlace.models.scorecard import Card, Counted
from interlace.models.trees import MISSING

CHUNK = 2**17  # people scored in one message
LINK = 12.5e6  # bytes a second that `auto` reckons with: 100 Mbit/s
PRECISE = 8  # bits of WOE in a correlation that `auto` holds out for

Encryption = Literal["auto", "rlwe-fast", "rlwe-strict", "okamoto-uchiyama", "paillier"]


@dataclass
class _Candidate:
    """A column of some party, as the active party knows it while columns are chosen.

    Attributes:
        party: Whose.
        column: Its number, and the goods and bads of its final bins.
        into: The final bin of each of its cells.
    """

    party: str
    column: Counted
    into: Integers


@dataclass(frozen=True)
class Dropped:
    """Why a column was dropped.

    Attributes:
        why: ``LOW_IV``, ``CORRELATED``, ``INFLATED`` or ``AGAINST``.
        iv: Its IV.
        figure: That, its correlation, or its variance inflation factor; for ``AGAINST`` 0.
        rival: The party and number of the column that it is too like.
    """

    why: int
    iv: float
    figure: float
    rival: tuple[str, int] | None = None


def _final_bins(
    name: str,
    cells: Cells,
    counts: Floats,
    totals: Floats,
    *,
    cuts: Cuts,
    most: int,
    fewest: float,
    monotone: bool,
) -> list[_Candidate]:
    """The final bins of all of a party's columns."""
    out = []
    for j, part in enumerate(cells.parts(counts)):
        known = part[: cells.widths[j]]
        ordered = bool(cells.ordered[j])
        into = np.arange(1, len(known) + 1)
        if cuts == "optimal" or (monotone and ordered):
            into = best_merge(
                known,
                totals,
                most=most if cuts == "optimal" else len(known),
                fewest=fewest if cuts == "optimal" else 1,
                ordered=ordered,
                monotone=monotone,
            )
        final = np.zeros((int(into.max()) + 1, 2))
        np.add.at(final, into, known)
        final[MISSING] = part[cells.widths[j] :].sum(axis=0)
        column = Counted(
            number=j,
            goods=tuple(final[:, 0].astype(int).tolist()),
            bads=tuple(final[:, 1].astype(int).tolist()),
        )
        gap = [MISSING] if cells.missing[j] else []
        out.append(_Candidate(name, column, np.append(into, gap).astype(np.int64)))
    return out


class WoeRegression(LogisticRegression):
    """Logistic regression on the parties' WOE columns."""

    side = WoeSide


class Scorecard(Method):
    """A credit scorecard: bins of all parties' columns, their weights of evidence, points.

    After :meth:`fit`: ``card_`` (the active party's part), ``partners_`` (each partner's columns by
    number, with goods and bads of their bins), ``dropped_`` (why each partner's other columns are
    not in it), ``base_points_`` and ``intercept_``.

    Args:
        binning: ``optimal``: the bins with the greatest IV under the conditions below. ``quantile``
            and ``equal_width``: as the name says, outcomes are not looked at.
        max_bins: Most bins of a column, that of missing values apart.
        fine_bins: Bins that ``optimal`` starts from.
        min_bin_share: Smallest share of people in a bin of ``optimal``; rarer categories share one
            bin in every binning.
        monotone: Whether the bad rate of a column of numbers must rise or fall over its bins;
            neighbours are merged until it does.
        min_iv: Columns of less IV are dropped.
        max_correlation: Of two columns whose WOE correlate more (in absolute value) that of less IV
            is dropped, whoever holds them; ``None``: none is.
        max_vif: The column of the greatest variance inflation factor is dropped until no one's is
            greater; ``None``: none is.
        right_signs: Whether a column is dropped whose points would run against its bad rates (its
            coefficient has the wrong sign, beside the other columns); the one of least IV first,
            and the regression begins anew.
        pdo: Points that double the odds of being good.
        base_points: Points at the odds ``base_odds``.
        base_odds: Goods for each bad at ``base_points``.
        bad: The class that counts as bad, as in the label column; by default 1 of 0 and 1.
        l2: Penalty of the regression, ``l2``/2 ‖β‖² beside the mean loss; for outcomes that columns
            tell (almost) without error.
        max_iter: Most steps of the regression, and of all that begin anew together.
        protocol, sigmoid, sigmoid_range, inference: Of the regression, see
            :class:`~interlace.methods.vertical.linear.LogisticRegression`.
        encryption: Of outcomes and columns; ``auto`` is the fastest over a link of 100 Mbit/s.
        min_bin_rows: Fewest people that a count may be of which leaves a partner.
        hide_order: Have partners shuffle their columns, and bins' direction, before they count.
    """

    def __init__(
        self,
        *,
        binning: Cuts = "optimal",
        max_bins: int = 6,
        fine_bins: int = 20,
        min_bin_share: float = 0.05,
        monotone: bool = True,
        min_iv: float = 0.02,
        max_correlation: float | None = 0.75,
        max_vif: float | None = 5.0,
        right_signs: bool = True,
        pdo: float = 20.0,
        base_points: float = 600.0,
        base_odds: float = 50.0,
        bad: bool | int | str | None = None,
        l2: AtLeastZero = 0.0,
        max_iter: Count = 200,
        protocol: Protocol = "active_key",
        sigmoid: Sigmoid = "exact",
        sigmoid_range: AboveZero = 8.0,
        inference: bool = False,
        encryption: Encryption = "auto",
        min_bin_rows: int = 20,
        hide_order: bool = False,
    ) -> None:
        self.binning = binning
        self.max_bins = max_bins
        self.fine_bins = fine_bins
        self.min_bin_share = min_bin_share
        self.monotone = monotone
        self.min_iv = min_iv
        self.max_correlation = max_correlation
        self.max_vif = max_vif
        self.right_signs = right_signs
        self.pdo = pdo
        self.base_points = base_points
        self.base_odds = base_odds
        self.bad = bad
        self.l2 = l2
        self.max_iter = max_iter
        self.protocol = protocol
        self.sigmoid = sigmoid
        self.sigmoid_range = sigmoid_range
        self.inference = inference
        self.encryption = encryption
        self.min_bin_rows = min_bin_rows
        self.hide_order = hide_order

    # It is compared with itself on fewer and on all columns.
    alike: ClassVar[bool] = True
    # What made-up columns say is not worth keeping; the plan is for columns that are.
    rehearsal: ClassVar[dict[str, Any]] = {"min_iv": 0.0, "max_correlation": 1.0, "max_vif": 1e12}

    # -- learning --------------------------------------------------------------------------------

    @property
    def helped(self) -> bool:  # type: ignore[override]
        """Whether it needs a party without a table, that holds the key."""
        return self.protocol == "arbiter"

    @property
    def epochs(self) -> int:
        """Most epochs: steps of the regression."""
        return self.max_iter

    def fit(
        self,
        federation: Federation,
        *,
        checkpoint: str | None = None,
        on_epoch: OnEpoch | None = None,
    ) -> Self:
        """Make a scorecard from the shared, labelled people of a view; an epoch is one step of the
        regression. Binning is done anew where a training goes on: it takes one pass.

        Raises:
            JobError: a setting is out of range.
            DataError: the label has not two classes, or no column is left.
            Refused: a partner's answer cannot be honest.
        """
        self._check()
        fed = federation.shared().labelled()
        if fed.label_plan.task != "binary":
            raise DataError(
                f"a scorecard tells two classes apart, and this label is {fed.label_plan.task}",
                party=fed.active.name,
                column=fed.label_plan.column,
                way_out="Set the party's `task: binary`, or choose another method.",
            )
        self.label_plan_ = fed.label_plan
        self.bad_ = self._bad_class(fed)
        outcome = (fed.y.numpy() == self.bad_).astype(np.int64)
        totals = np.array([len(outcome) - outcome.sum(), outcome.sum()], dtype=np.float64)
        if not totals.all():
            raise AlignmentError(
                f"of {len(outcome):,} people that all parties hold and whose label is known "
                f"{int(totals[0]):,} are good and {int(totals[1]):,} bad; some of both are needed"
            )
        self.active_, self.peers_ = fed.active, fed.open("scorecard", ScorecardSide)
        self.session_ = next((peer.session for peer in self.peers_.values()), None)
        self._used: dict[str, str] = {}
        self._schemes = agree_on_schemes(
            self.encryption, self.active_, self.peers_, ScorecardSide.terms
        )
        settings = self._settings(len(outcome))
        draft, cells = self._begin(fed, settings)
        candidates = self._bin(fed, draft, cells, outcome, totals)
        self._select(draft, candidates, len(outcome))
        self._regress(fed, draft, checkpoint, on_epoch)
        return self

    def _check(self) -> None:
        for name, least, most in (
            ("max_bins", 2, MOST_BINS),
            ("fine_bins", 2, MOST_BINS),
            ("min_bin_rows", 1, math.inf),
            ("min_bin_share", 0, 0.5),
            ("min_iv", 0, math.inf),
        ):
            if not least <= getattr(self, name) <= most:
                raise JobError(f"`{name}` must be at least {least} and at most {most}")
        for name in ("pdo", "base_odds"):
            if not getattr(self, name) > 0:
                raise JobError(f"`{name}` must be above 0")
        if self.max_correlation is not None and not 0 < self.max_correlation <= 1:
            raise JobError("`max_correlation` lies above 0 and is at most 1")
        if self.max_vif is not None and not self.max_vif >= 1:
            raise JobError("`max_vif` is at least 1")
        if self.encryption not in ("auto", *SCHEMES):
            raise JobError(
                f"`encryption` is one of: auto, {', '.join(SCHEMES)}; outcomes are labels, which "
                "never leave a party in clear"
            )
        if self.binning not in ("optimal", "quantile", "equal_width"):
            raise JobError("`binning` is one of: optimal, quantile, equal_width")
        if self.protocol != "active_key" and self.sigmoid == "exact":
            raise JobError(f"`protocol: {self.protocol}` needs `sigmoid: taylor` or `minimax`")
        self._regression(self.max_iter)._check()

    def _bad_class(self, fed: Federation) -> int:
        """The number of the class that is bad."""
        plan = fed.label_plan
        classes = plan.classes
        if self.bad is None:
            if classes in ((0, 1), (False, True)):
                return 1
            raise JobError(
                f"say in the job, by `bad`, which of the {len(classes)} classes of party "
                f"'{plan.party}', column '{plan.column}' is bad; `interlace inspect` lists them"
            )
        bad = plan.place(self.bad)
        if bad is None:
            raise JobError(
                f"`bad` in the job is none of the {len(classes)} classes of party "
                f"'{plan.party}', column '{plan.column}'; `interlace inspect` lists them"
            )
        return bad

    def _settings(self, people: int) -> CardSettings:
        fine = self.fine_bins if self.binning == "optimal" else self.max_bins
        return CardSettings(
            cuts=self.binning,
            fine=fine,
            fewest=self.min_bin_rows,
            rare=max(1, math.ceil(self.min_bin_share * people)),
            hide_order=self.hide_order,
            min_iv=self.min_iv,
            max_correlation=self.max_correlation,
            max_vif=self.max_vif,
        )

    def _begin(self, fed: Federation, settings: CardSettings) -> tuple[Draft, dict[str, Cells]]:
        """Have every party cut its columns; what each says of them."""
        draft = Draft(fed.active, fed.rows, settings)
        cells = {fed.active.name: draft.cells}
        for name, peer in self.peers_.items():
            table = peer.ask(
                ScorecardSide.begin,
                fed.positions(name, fed.rows).to(torch.int32),
                settings.model_dump(mode="json"),
            )
            if table.dim() != 2 or table.shape[1] != 3:
                raise self._wrong(name, "a description of its columns that cannot be read")
            widths, ordered, missing = table.numpy().astype(np.int64).T
            if widths.size and (
                widths.min() < 1
                or (widths > settings.fine + 1).any()
                or not np.isin([ordered, missing], (0, 1)).all()
            ):
                raise self._wrong(name, "columns with other bins than were agreed on")
            cells[name] = Cells(widths, ordered == 1, missing == 1)
        if not any(len(found.widths) for found in cells.values()):
            raise DataError(
                "no party has a column that tells the people in training apart",
                party=fed.active.name,
                way_out="Give the parties other columns.",
            )
        return draft, cells

    def _bin(
        self,
        fed: Federation,
        draft: Draft,
        cells: Mapping[str, Cells],
        outcome: Integers,
        totals: Floats,
    ) -> list[_Candidate]:
        """Count, merge, tell the parties their final bins, and drop columns of low IV."""
        counts = {fed.active.name: np.zeros((draft.cells.total, 2))}
        sides = np.stack([1 - outcome, outcome], axis=1)
        for column in draft.index().T:
            np.add.at(counts[fed.active.name], column, sides)
        asked = {name: found for name, found in cells.items() if name in self.peers_}
        asked = {name: found for name, found in asked.items() if found.total}
        if asked:
            scheme, workload = self._counting(len(outcome), list(asked.values()))
            self._used["outcomes"] = scheme
            key = generate(scheme, workload)
            sealed, public = key.encrypt_rows(sides).to_tensor(), key.public.to_tensor()
            answers = {}
            for name in asked:
                self.peers_[name].post(ScorecardSide.take_key, public)
                answers[name] = self.peers_[name].start(ScorecardSide.count, sealed)
            for name, answer in answers.items():
                counts[name] = self._counted(name, key, answer(), asked[name], totals)
        self.dropped_: dict[str, dict[int, Dropped]] = {name: {} for name in cells}
        left: list[_Candidate] = []
        for name, found in cells.items():
            if not found.total:
                continue
            mine = []
            for candidate in _final_bins(
                name,
                found,
                counts[name],
                totals,
                cuts=self.binning,
                most=self.max_bins,
                fewest=self.min_bin_share * len(outcome),
                monotone=self.monotone,
            ):
                iv = candidate.column.iv
                if iv < self.min_iv or iv == 0:
                    self.dropped_[name][candidate.column.number] = Dropped(LOW_IV, iv, iv)
                else:
                    mine.append(candidate)
            self._tell(draft, name, mine)
            left += mine
        return left

    def _tell(self, draft: Draft, name: str, mine: Sequence[_Candidate]) -> None:
        """Tell a party its final bins."""
        numbers = np.array([c.column.number for c in mine], dtype=np.int64)
        into = np.concatenate([np.zeros(0, dtype=np.int64), *(c.into for c in mine)])
        final = np.concatenate([np.zeros((0, 2)), *(c.column.counts for c in mine)])
        if name in self.peers_:
            self.peers_[name].post(
                ScorecardSide.merge,
                torch.from_numpy(numbers.astype(np.int32)),
                torch.from_numpy(into.astype(np.int32)),
                torch.from_numpy(final),
            )
        else:
            draft.merge(numbers, into, final)

    def _counting(self, people: int, cells: Sequence[Cells]) -> tuple[Scheme, Workload]:
        """The scheme to count with, and what its key is for."""
        workload = Workload(
            rows=people, largest=1, width=2, groups=max(found.total for found in cells)
        )
        if self.encryption != "auto":
            return self.encryption, workload
        columns = max(len(found.widths) for found in cells)
        found = choose(workload, columns=columns, link=LINK, cores=cores(), allowed=self._schemes)
        return found[0].scheme, workload

    def _counted(
        self, name: str, key: PrivateKey, answer: Tensor, cells: Cells, totals: Floats
    ) -> Floats:
        """A partner's decrypted counts (cells, 2), checked.

        Raises:
            Refused: they cannot be of the people in training.
        """
        sums = key.public.read(answer)
        if not isinstance(sums, Sums) or (sums.groups, sums.width) != (cells.total, 2):
            raise self._wrong(name, "another number of counts than was asked for")
        found = key.decrypt(sums, limit=int(totals.max())).astype(np.float64)
        if (found < 0).any() or (found.sum(axis=1) < self.min_bin_rows).any():
            raise self._wrong(name, "counts that its bins cannot have")
        off = [part for part in cells.parts(found) if (part.sum(axis=0) != totals).any()]
        if off:
            raise self._wrong(
                name, f"counts of {len(off)} columns that do not add up to the goods and bads"
            )
        return found

    # -- choosing columns ------------------------------------------------------------------------

    def _select(self, draft: Draft, candidates: list[_Candidate], people: int) -> None:
        """Drop columns that say what others do, and tell each party which and why."""
        if not candidates:
            raise DataError(
                f"no column of any party has an IV of {self.min_iv:g} or more",
                party=self.active_.name,
                way_out="Lower `min_iv`, or give the parties other columns.",
            )
        kept = sorted(range(len(candidates)), key=lambda i: -candidates[i].column.iv)
        if (self.max_correlation is not None or self.max_vif is not None) and len(kept) > 1:
            between = self._correlations(draft, candidates, people)
            if self.max_correlation is not None:
                kept = self._unlike(candidates, kept, between, self.max_correlation)
            if self.max_vif is not None:
                kept = self._uninflated(candidates, kept, between, self.max_vif)
        self.partners_: dict[str, tuple[Counted, ...]] = {}
        left = [c for i, c in enumerate(candidates) if i in kept]
        for name in (self.active_.name, *self.peers_):
            mine = [c.column for c in candidates if c.party == name]
            verdicts = np.zeros((len(mine), 2), dtype=np.int64)
            figures = np.zeros(len(mine))
            for line, column in enumerate(mine):
                dropped = self.dropped_[name].get(column.number)
                if dropped is not None:
                    rival = dropped.rival
                    near = rival[1] if rival is not None and rival[0] == name else -1
                    verdicts[line], figures[line] = (dropped.why, near), dropped.figure
            if name in self.peers_:
                self.partners_[name] = tuple(c.column for c in left if c.party == name)
                self.peers_[name].post(
                    ScorecardSide.select,
                    torch.from_numpy(verdicts.astype(np.int32)),
                    torch.from_numpy(figures),
                )
            else:
                draft.select(verdicts, figures)

    def _unlike(
        self,
        candidates: Sequence[_Candidate],
        kept: Sequence[int],
        between: Floats,
        most: float,
    ) -> list[int]:
        """Those that correlate with none of greater IV that is kept."""
        out: list[int] = []
        for i in kept:
            rivals = [j for j in out if abs(between[i, j]) > most]
            if rivals:
                rival, column = candidates[rivals[0]], candidates[i].column
                self.dropped_[candidates[i].party][column.number] = Dropped(
                    CORRELATED,
                    column.iv,
                    float(between[i, rivals[0]]),
                    (rival.party, rival.column.number),
                )
            else:
                out.append(i)
        return out

    def _uninflated(
        self,
        candidates: Sequence[_Candidate],
        kept: Sequence[int],
        between: Floats,
        most: float,
    ) -> list[int]:
        """Those that are left when the greatest variance inflation factor is no greater than it
        may be: 1 / (1 - R²) of a column on all others, the diagonal of the inverse correlation."""
        out = list(kept)
        while len(out) > 1:
            some = between[np.ix_(out, out)] + 1e-9 * np.eye(len(out))  # columns may be the same
            factors = np.abs(np.diag(np.linalg.inv(some)))
            worst = int(factors.argmax())
            if factors[worst] <= most:
                break
            dropped = candidates[out.pop(worst)]
            self.dropped_[dropped.party][dropped.column.number] = Dropped(
                INFLATED, dropped.column.iv, float(factors[worst])
            )
        return out

    def _correlations(self, draft: Draft, candidates: Sequence[_Candidate], people: int) -> Floats:
        """Correlations of all WOE columns that are left, whoever holds them; (columns, columns)."""
        me = self.active_.name
        of = {
            name: np.array([i for i, c in enumerate(candidates) if c.party == name])
            for name in (me, *self.peers_)
        }
        of = {name: places for name, places in of.items() if len(places)}
        widest = max(len(places) for places in of.values())
        scheme, largest = self._correlating(people, widest)
        scale = {"largest": largest}
        out = np.zeros((len(candidates), len(candidates)))
        holders = list(of)
        for name, places in of.items():
            block = np.ix_(places, places)
            if name == me:
                columns = draft.whole(largest)
                out[block] = columns.T @ columns
            else:
                out[block] = self._among(name, scale, len(places))
        if me in of and len(of) > 1:
            self._used["columns"] = scheme
            key = generate(scheme, workload_of(people, widest, largest))
            public = key.public.to_tensor()
            for name in holders[1:]:
                self.peers_[name].post(ScorecardSide.take_key, public)
            for place, column in zip(of[me], columns.T, strict=True):
                sealed = key.encrypt(column).to_tensor()
                answers = {
                    name: self.peers_[name].start(ScorecardSide.products, scale, sealed)
                    for name in holders[1:]
                }
                for name, answer in answers.items():
                    sums = key.public.read(answer())
                    if not isinstance(sums, Sums) or sums.groups != len(of[name]):
                        raise self._wrong(name, "another number of scalar products than due")
                    out[place, of[name]] = out[of[name], place] = key.decrypt(sums)[:, 0]
        partners = [name for name in holders if name != me]
        for first, name in enumerate(partners[:-1]):
            peer, others = self.peers_[name], partners[first + 1 :]
            public = peer.ask(ScorecardSide.new_key, {**scale, "scheme": scheme, "groups": widest})
            for other in others:
                self.peers_[other].post(ScorecardSide.take_key, public)
            for number, place in enumerate(of[name]):
                sealed = peer.ask(ScorecardSide.seal, {**scale, "column": number})
                products = {
                    other: self.peers_[other].start(ScorecardSide.products, scale, sealed)
                    for other in others
                }
                for other, product in products.items():
                    found = peer.ask(ScorecardSide.unseal, product()).double().numpy()
                    if found.shape != (len(of[other]),):
                        raise self._wrong(other, "another number of scalar products than due")
                    out[place, of[other]] = out[of[other], place] = found
        # The active party knows all bins, and so what each column's product with itself must be.
        size = np.array(
            [(c.column.counts.sum(1) * c.column.whole(largest) ** 2).sum() for c in candidates]
        )
        between = out / np.sqrt(np.outer(size, size))
        beyond = (np.abs(between) > 1 + 1e-9) | np.diag(np.diag(out) != size)
        if beyond.any():
            places = np.argwhere(beyond).max(axis=0).max()  # the active party's come first
            name = candidates[int(places)].party
            raise self._wrong(name, "products that its columns cannot have")
        return between

    def _among(self, name: str, scale: dict[str, Any], count: int) -> Floats:
        """Scalar products among a partner's columns."""
        found = self.peers_[name].ask(ScorecardSide.own_products, scale).double().numpy()
        if found.shape != (count, count) or (found != found.T).any():
            raise self._wrong(name, "scalar products that cannot be among its columns")
        return np.asarray(found)

    def _correlating(self, people: int, groups: int) -> tuple[Scheme, int]:
        """The scheme to correlate with, and the largest whole number in a column."""
        schemes: Sequence[Scheme] = [s for s in self._schemes if available(s)]
        if self.encryption != "auto":
            schemes = (self.encryption,)
        for scheme in schemes:
            bits = next((b for b in range(10, 0, -1) if _fits(scheme, people, groups, b)), 0)
            if bits >= PRECISE or (bits and scheme == schemes[-1]):
                return scheme, 2**bits - 1
        raise JobError(
            f"no encryption that every party allows holds columns of {people:,} people; set "
            "`max_correlation` and `max_vif` to null"
        )

    # -- regression ------------------------------------------------------------------------------

    def _regress(
        self,
        fed: Federation,
        draft: Draft,
        checkpoint: str | None,
        on_epoch: OnEpoch | None,
    ) -> None:
        """Fit the WOE columns that are left, and turn coefficients into points."""
        number, steps = 0, self.max_iter
        while True:
            name = f"{checkpoint}-{number}" if checkpoint else None  # of other columns another fit
            model = self._regression(steps).fit(
                self._seen(fed, draft), checkpoint=name, on_epoch=on_epoch
            )
            number, steps = number + 1, steps - len(model.history_)
            wrong = self._against(draft, model) if self.right_signs else []
            if not wrong or steps <= 0:
                break
            self._drop(draft, *min(wrong, key=lambda found: found[1].iv))
        self.history_, self.converged_ = model.history_, model.converged_
        self._used |= model.schemes()
        sign = 1 if self.bad_ else -1
        stretch, shift = self._calibrated(fed, draft, model)
        weights, errors = sign * stretch * model.weights_[:, 0], model.errors_
        self.intercept_ = float(weights[-1] + sign * shift)
        base = self.base_points - self.factor_ * (math.log(self.base_odds) + self.intercept_)
        self.intercept_points_ = round(base)
        card = draft.card.scaled(
            weights[:-1], None if errors is None else stretch * errors[:-1, 0], self.factor_
        )
        named = [column.model_copy(update={"reason": column.name}) for column in card.columns]
        self.card_ = card.model_copy(update={"columns": tuple(named)})
        for peer in self.peers_.values():
            scale = {"factor": self.factor_, "bad": self.bad_, "stretch": stretch}
            peer.ask(ScorecardSide.scale, scale)

    def _calibrated(
        self, fed: Federation, draft: Draft, model: WoeRegression
    ) -> tuple[float, float]:
        """What the regression's log-odds are to be multiplied with, and then added, so that they
        are log-odds: where the sigmoid is a line, they have another unit.

        Found by logistic regression of the outcome on the log-odds of the people in training, for
        which each partner shows its part of them.
        """
        if self.sigmoid == "exact":
            return 1.0, 0.0
        scores = model.scores(self._seen(fed, draft))
        fitted = OnOneColumn(C=np.inf, tol=1e-8).fit(scores, fed.y.numpy())
        stretch = float(fitted.coef_[0, 0])
        if stretch <= 0:
            raise InterlaceError("the regression found nothing; take `sigmoid: exact`")
        return stretch, float(fitted.intercept_[0])

    def _seen(self, fed: Federation, draft: Draft) -> Federation:
        """The federation as the regression sees it: WOE columns, and parties that have any."""
        seen = copy.copy(fed)
        seen.active = draft.as_party()
        seen.passive = tuple(name for name in self.peers_ if self.partners_[name])
        return seen

    def _regression(self, steps: int) -> WoeRegression:
        """The regression on WOE columns, of so many steps at most."""
        return WoeRegression(
            l2=self.l2,
            max_iter=steps,
            protocol=self.protocol,
            sigmoid=self.sigmoid,
            sigmoid_range=self.sigmoid_range,
            inference=self.inference,
            encryption=self.encryption,
        )

    def _against(self, draft: Draft, model: WoeRegression) -> list[tuple[str, Counted]]:
        """The columns, with their parties, whose coefficient has the wrong sign."""
        sign = 1 if self.bad_ else -1
        weights = sign * model.weights_[:-1, 0]
        out: list[tuple[str, Counted]] = [
            (self.active_.name, column)
            for column, weight in zip(draft.columns, weights, strict=True)
            if weight > 0
        ]
        for name, columns in self.partners_.items():
            if columns:
                numbers = self.peers_[name].ask(ScorecardSide.against, {"bad": self.bad_}).tolist()
                known = {column.number: column for column in columns}
                if not set(numbers) <= set(known):
                    raise self._wrong(name, "columns that it does not have")
                out += [(name, known[number]) for number in numbers]
        return out

    def _drop(self, draft: Draft, name: str, column: Counted) -> None:
        """Drop a column whose points would run against its bad rates."""
        self.dropped_[name][column.number] = Dropped(AGAINST, column.iv, 0.0)
        columns = draft.columns if name == self.active_.name else self.partners_[name]
        verdicts = np.zeros((len(columns), 2), dtype=np.int64)
        for line, other in enumerate(columns):
            verdicts[line] = (AGAINST if other.number == column.number else KEPT), -1
        figures = np.zeros(len(columns))
        if name == self.active_.name:
            draft.select(verdicts, figures)
            return
        self.partners_[name] = tuple(c for c in columns if c.number != column.number)
        self.peers_[name].ask(
            ScorecardSide.select,
            torch.from_numpy(verdicts.astype(np.int32)),
            torch.from_numpy(figures),
        )

    # -- scoring ---------------------------------------------------------------------------------

    @property
    def factor_(self) -> float:
        """Points for each unit of log-odds."""
        return self.pdo / math.log(2)

    def outputs(self, federation: Federation) -> NDArray[np.float64]:
        """Probabilities (n, 2) of the label's classes, as the points have them.

        A score of ``base_points`` means odds of ``base_odds`` goods to one bad.
        """
        against = (self.base_points - self.points(federation)) / self.factor_
        against -= math.log(self.base_odds)
        good, bad = expit(-against), expit(against)
        return np.stack((good, bad) if self.bad_ else (bad, good), axis=1)

    def said(self, outputs: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
        """The points, from which the probabilities came."""
        good, bad = outputs[:, 1 - self.bad_], outputs[:, self.bad_]
        odds = np.log(good) - np.log(bad) - math.log(self.base_odds)
        return {"points": np.rint(self.base_points + self.factor_ * odds).astype(np.int64)}

    def points(self, federation: Federation) -> NDArray[np.float64]:
        """Scores of a view's people, (n,): whole points, the more the better.

        Each partner is asked once for every 131,072 people.
        """
        people = self._people(federation)
        own = self.card_.points(federation.active.frame, federation.rows).sum(axis=1)
        out = np.asarray(self.intercept_points_ + own)
        for start in range(0, len(out), CHUNK):
            part = slice(start, start + CHUNK)
            for name, rows in people.items():
                answer = self.peers_[name].ask(ScorecardSide.points, rows[part])
                if answer.shape != (len(rows[part]),):
                    raise Refused(f"party '{name}' answered with the points of other people")
                out[part] += answer.double().numpy()
        return out

    def reasons(self, federation: Federation, most: int = 4) -> pl.DataFrame:
        """Scores of a view's people, and what cost them the most points.

        A column counts by how many points a person has less than the mean of the people in
        training. The active party's columns are named; a partner's are called what the partner
        gives as its ``reason``. Each partner tells how many points its worst columns cost each
        person, which is more than their total; see the policy's ``partial score``.

        Args:
            federation: Whose reasons.
            most: How many for each person, 16 at most; fewer where less costs points.

        Returns:
            Columns ``points``, ``reason 1``, ``reason 2`` …; ``None`` where there is no further
            one.
        """
        if not 1 <= most <= 16:
            raise InterlaceError("from 1 to 16 reasons can be asked for")
        people, points = self._people(federation), self.points(federation)
        names = {column.number: column.name for column in self.card_.columns}
        told: list[dict[int, str]] = [names]
        found = [self.card_.shortfalls(federation.active.frame, federation.rows, most)]
        for name, rows in people.items():
            told.append(self._reasons_of(name))
            parts = [
                self.peers_[name].ask(ScorecardSide.shortfalls, part, {"reasons": most})
                for part in torch.split(rows, CHUNK)
            ]
            answer = torch.cat(parts).double().numpy()
            if answer.shape != (len(rows), 2 * most):
                raise Refused(f"party '{name}' answered with reasons of another form")
            found.append(answer)
        lacking = np.concatenate([part[:, most:] for part in found], axis=1)
        numbers = np.concatenate([part[:, :most] for part in found], axis=1).astype(np.int64)
        order = np.argsort(-lacking, axis=1, kind="stable")[:, :most]
        out = pl.DataFrame({"points": points})
        for place in range(most):
            texts = [
                told[at // most].get(int(line[at])) if short[at] > 0 else None
                for line, short, at in zip(numbers, lacking, order[:, place].tolist(), strict=True)
            ]
            out = out.with_columns(pl.Series(f"reason {place + 1}", texts, dtype=pl.String))
        return out

    def _reasons_of(self, name: str) -> dict[int, str]:
        """What a partner calls its columns, by number."""
        out: dict[int, str] = {}
        for first in range(0, len(self.partners_[name]), CODES):
            page = self.peers_[name].ask(ScorecardSide.reasons, {"first": first})
            out |= {
                int(number): str(text)[:60] for number, text in page.items() if number.isdigit()
            }
        return out

    def _people(self, federation: Federation) -> dict[str, Tensor]:
        """Positions of a view's people at every partner that has columns in the card."""
        if not hasattr(self, "card_"):
            raise NotFittedError("this Scorecard has learnt nothing yet; call `fit`")
        if not len(federation.rows):
            raise InterlaceError("there is nobody to score in this view of the federation")
        if self.session_ is not None:
            self.peers_ = federation.peers(self.session_)
        return {
            name: federation.positions(name, federation.rows).to(torch.int32)
            for name in self.peers_
            if self.partners_[name]
        }

    # -- showing ---------------------------------------------------------------------------------

    def table(self) -> pl.DataFrame:
        """The active party's own card: a line for each bin of its columns.

        Columns ``column``, ``bin``, ``people``, ``goods``, ``bads``, ``bad rate``, ``WOE``, ``IV``
        and ``points``. Every score starts from ``intercept_points_``.
        """
        return self.card_.table()

    def partner_table(self) -> pl.DataFrame:
        """What the active party knows of partners' columns: IV, and whether and why each was
        dropped.

        Columns ``party``, ``column`` (its number from 1), ``IV``, ``kept`` and ``why not``.
        """
        words = {
            LOW_IV: "low IV",
            CORRELATED: "correlation {:.2f}",
            INFLATED: "variance inflation {:.1f}",
            AGAINST: "points against its bad rates",
        }
        lines: list[dict[str, Any]] = []
        for name, columns in self.partners_.items():
            lines += [
                {"party": name, "column": c.number + 1, "IV": c.iv, "why not": None}
                for c in columns
            ]
            lines += [
                {
                    "party": name,
                    "column": number + 1,
                    "IV": dropped.iv,
                    "why not": words[dropped.why].format(dropped.figure),
                }
                for number, dropped in self.dropped_[name].items()
            ]
        schema = {"party": pl.String, "column": pl.Int64, "IV": pl.Float64, "why not": pl.String}
        return pl.DataFrame(lines, schema=schema).sort("party", "column")

    def schemes(self) -> dict[str, str]:
        """The encryption of outcomes, of columns against columns, and of the regression."""
        return dict(self._used)

    def sheets(self) -> list[Sheet]:
        """The active party's own card, and all columns as far as it knows them."""
        lines: list[list[str | int | float | None]] = []
        before = ""
        for row in self.table().iter_rows(named=True):
            new, before = row["column"] != before, row["column"]
            wanted = ("bin", "people", "bad rate", "WOE", "IV", "points")
            lines.append([row["column"] if new else "", *(row[key] for key in wanted)])
        mine, name = self.card_.summary(), self.active_.name
        shown = {"Coefficient": "coefficient"}
        if self.inference:
            shown |= {"Standard error": "standard error", "p": "p"}
        columns: list[list[str | int | float | None]] = [
            [row["column"], name, row["IV"], *(row[key] for key in shown.values()), row["left out"]]
            for row in mine.iter_rows(named=True)
        ]
        columns += [
            [
                f"{row['party']}-{row['column']}",
                row["party"],
                row["IV"],
                *(None for _ in shown),
                row["why not"],
            ]
            for row in self.partner_table().iter_rows(named=True)
        ]
        scale = (
            f"Every score starts from {self.intercept_points_} points. {self.base_points:g} points "
            f"are odds of {self.base_odds:g} goods to one bad, and {self.pdo:g} more double them."
        )
        if not self.converged_:
            scale += (
                f" The regression had not converged after {self.max_iter} steps, and signs were "
                "not looked at again: raise `max_iter`, or set `l2`."
            )
        partners = (
            "Partners' columns have numbers here; their names, bins and points are in each "
            "partner's own file."
        )
        return [
            Sheet(
                title=f"Scorecard of {name}",
                note=scale,
                columns=["Column", "Bin", "People", "Bad rate", "WOE", "IV", "Points"],
                rows=lines,
            ),
            Sheet(
                title="Columns",
                note=partners if self.partners_ else "",
                columns=["Column", "Party", "IV", *shown, "Left out for"],
                rows=columns,
            ),
        ]

    # -- keeping ---------------------------------------------------------------------------------

    def save(self, name: str) -> None:
        """Every party keeps its own card as JSON, and its bins and points as CSV."""
        for peer in self.peers_.values():
            peer.ask(ScorecardSide.save, {"name": name})
        partners = {
            party: [column.model_dump(mode="json") for column in columns]
            for party, columns in self.partners_.items()
        }
        model = {
            "label_plan": self.label_plan_.to_json(),
            "bad": self.bad_,
            "intercept": self.intercept_,
            "intercept_points": self.intercept_points_,
            "scale": {
                "pdo": self.pdo,
                "base_points": self.base_points,
                "base_odds": self.base_odds,
            },
            "partners": partners,
            "dropped": {
                party: {
                    str(number): {"why": dropped.why, "iv": dropped.iv, "figure": dropped.figure}
                    for number, dropped in columns.items()
                }
                for party, columns in self.dropped_.items()
            },
            "history": history_to_json(self.history_),
            "converged": self.converged_,
        }
        write_card(self.active_, name, self.card_, model)

    def load(self, name: str, federation: Federation) -> Self:
        """Take the cards that :meth:`save` kept."""
        model = MODEL.read(federation.active, name)
        self.active_, self.peers_ = federation.active, federation.open("scorecard", ScorecardSide)
        self.session_ = next((peer.session for peer in self.peers_.values()), None)
        self.card_ = Card.model_validate(model["card"])
        self.label_plan_ = LabelPlan.from_json(model["label_plan"])
        self.bad_, self.intercept_ = int(model["bad"]), float(model["intercept"])
        self.intercept_points_ = int(model["intercept_points"])
        self.pdo, self.base_points, self.base_odds = (
            float(model["scale"][key]) for key in ("pdo", "base_points", "base_odds")
        )
        self.partners_ = {
            party: tuple(Counted.model_validate(column) for column in columns)
            for party, columns in model["partners"].items()
        }
        self.dropped_ = {
            party: {int(number): Dropped(**dropped) for number, dropped in columns.items()}
            for party, columns in model["dropped"].items()
        }
        self.history_ = history_from_json(model["history"])
        self.converged_ = bool(model["converged"])
        for partner, peer in self.peers_.items():
            held = peer.ask(ScorecardSide.load, {"name": name}).get("columns")
            if held != len(self.partners_.get(partner, ())):
                raise InterlaceError(
                    f"party '{partner}' keeps another part of the model '{name}' than the "
                    f"{len(self.partners_.get(partner, ()))} columns that belong to the active "
                    "party's part; save the model anew"
                )
        return self

    def _wrong(self, name: str, what: str) -> Refused:
        return Refused(f"party '{name}' answered with {what}; the scorecard was dropped")


def _fits(scheme: Scheme, people: int, groups: int, bits: int) -> bool:
    """Whether scalar products of such columns fit a scheme."""
    if scheme in ("okamoto-uchiyama", "paillier"):
        return True
    largest = 2**bits - 1
    setting: Literal["fast", "strict"] = "fast" if scheme == "rlwe-fast" else "strict"
    return holds_product(setting, workload_of(people, groups, largest), largest * people**0.5, 0)
