"""What a party does with its own columns in a scorecard, and what a passive party answers.

See :mod:`interlace.methods.vertical.scorecard` for the conversation.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from interlace.boundary.control import real_number, whole_number
from interlace.boundary.kinds import (
    Ciphertext,
    Control,
    Histogram,
    PartialScore,
    RowSelection,
    SplitChoice,
)
from interlace.crypto.base import (
    PrivateKey,
    PublicKey,
    Sums,
    Vector,
    Workload,
)
from interlace.crypto.base import Rows as EncryptedRows
from interlace.crypto.schemes import read_public_key
from interlace.data.columns import Reading, read_columns
from interlace.errors import (
    PolicyError,
    Refused,
)
from interlace.methods.vertical.linear_side import LinearSide, allowed_by, key_for
from interlace.models import seed_for
from interlace.models.binning import (
    Bins,
    Cuts,
    Floats,
    Integers,
    codes_of,
    fine_bins,
    merged,
)
from interlace.models.glm import Columns
from interlace.models.scorecard import Card, CardColumn, looked_up
from interlace.models.trees import MISSING, NumericBins
from interlace.party import ModelFile, Party, PassiveSide, operation

MOST_BINS = 256
MODEL = ModelFile("scorecard.json", "interlace scorecard 1", "scorecard")
TABLE_FILE = "scorecard.csv"  # the same for people, and not read again
MOST_FACTOR = 1e6
CODES = 32  # reasons told in one message
PEOPLE_A_PRODUCT = 5  # of so many people in training a partner answers one scalar product

Flags = NDArray[np.bool_]
KEPT, LOW_IV, CORRELATED, INFLATED, AGAINST = range(5)


class CardSettings(BaseModel):
    """What the parties agree on before a scorecard is made; see :class:`Scorecard`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cuts: Cuts
    fine: int = Field(ge=2, le=MOST_BINS)
    fewest: int = Field(ge=1)
    rare: int = Field(ge=1)
    hide_order: bool
    min_iv: float = Field(ge=0)
    max_correlation: float | None
    max_vif: float | None


@dataclass(frozen=True)
class Cells:
    """What a party says of its columns: how they lie side by side in a table of counts.

    Attributes:
        widths: Fine bins of known values of each column, (columns,).
        ordered: Whether only neighbours can be merged, (columns,).
        missing: Whether a bin of missing values stands behind them, (columns,).
    """

    widths: Integers
    ordered: Flags
    missing: Flags

    @property
    def sizes(self) -> Integers:
        """Cells of each column."""
        return self.widths + self.missing

    @property
    def total(self) -> int:
        """Cells of all columns."""
        return int(self.sizes.sum())

    def parts(self, cells: NDArray[Any]) -> list[NDArray[Any]]:
        """What belongs to each column, of something that has a line for each cell."""
        return np.split(cells, np.cumsum(self.sizes)[:-1]) if len(self.widths) else []


# -- what a party does with its own columns ------------------------------------------------------


class Draft:
    """A party's columns while the scorecard is made.

    Args:
        party: Whose.
        rows: The people to learn from, as rows of its table.
        settings: As agreed.
    """

    def __init__(self, party: Party, rows: Integers, settings: CardSettings) -> None:
        self.party, self.rows, self.settings = party, rows, settings
        policy = party.policy
        # A party's own policy may ask for larger bins than were agreed on.
        self.fewest = max(settings.fewest, policy.min_bin_rows or 1, policy.smallest_group or 1)
        self.left_out: dict[str, str] = {}
        found: list[tuple[Bins, Integers, int]] = []
        for name in party.columns:
            series = party.frame[name].gather(rows)
            bins = fine_bins(
                series,
                cuts=settings.cuts,
                most=settings.fine,
                fewest=self.fewest,
                rare=settings.rare,
                reading=party.readings[name],
                party=party.name,
                file=party.file,
            )
            if isinstance(bins, str):
                self.left_out[name] = bins
                continue
            codes, home = codes_of(bins, series, party=party.name), MISSING
            if 0 < int((codes == MISSING).sum()) < self.fewest:
                # Too few to be counted by themselves: they join the bin with the most people.
                home = 1 + int(np.bincount(codes, minlength=bins.width + 1)[1:].argmax())
                codes[codes == MISSING] = home
            found.append((bins, codes, home))
        rng = np.random.default_rng(seed_for(party.secret, "order"))
        hide = settings.hide_order
        order = rng.permutation(len(found)) if hide else np.arange(len(found))
        self.fine: list[Bins] = [found[j][0] for j in order]
        self.home = [found[j][2] for j in order]
        self._codes = np.empty((len(rows), len(found)), dtype=np.int64)
        for j, source in enumerate(order):
            self._codes[:, j] = found[source][1]
        self._records = torch.from_numpy(self._codes)
        party.boundary.protect(self._records)
        # For each column the bins in the order of its cells, missing values last.
        self._bins: list[Integers] = []
        for j, bins in enumerate(self.fine):
            known = np.arange(1, bins.width + 1)
            if hide:
                ordered = isinstance(bins, NumericBins)
                known = known[:: rng.choice([1, -1])] if ordered else rng.permutation(known)
            gaps = (self._codes[:, j] == MISSING).any()
            self._bins.append(np.append(known, MISSING) if gaps else known)
        self.cells = Cells(
            np.array([bins.width for bins in self.fine], dtype=np.int64),
            np.array([isinstance(bins, NumericBins) for bins in self.fine], dtype=np.bool_),
            np.array([MISSING in bins for bins in self._bins], dtype=np.bool_),
        )
        self.columns: list[CardColumn] = []
        self._final = np.empty((len(rows), 0), dtype=np.int64)  # bins of the columns left

    def index(self) -> Integers:
        """The cell of each person and column, (n, columns)."""
        out = np.empty_like(self._codes)
        first = 0
        for j, bins in enumerate(self._bins):
            cell = np.full(self.fine[j].width + 1, -1, dtype=np.int64)
            cell[bins] = first + np.arange(len(bins))
            out[:, j] = cell[self._codes[:, j]]
            first += len(bins)
        return out

    def merge(self, columns: Integers, into: Integers, counts: Floats) -> None:
        """Take the final bins of some columns.

        Args:
            columns: Their numbers, rising.
            into: For each of their cells the number of its final bin, from 1; 0 for missing values.
            counts: Goods and bads of their final bins, for each column missing values first.

        Raises:
            Refused: bins would be merged that cannot be, or are not of this party's people.
        """
        if len(columns) and not (
            columns.min() >= 0
            and columns.max() < len(self.fine)
            and (np.diff(columns) > 0).all()
            and len(into) == int(self.cells.sizes[columns].sum())
        ):
            raise self._refused("bins of columns that it does not have")
        taken: list[CardColumn] = []
        placed = [np.empty((0, len(self.rows)), dtype=np.int64)]
        for j in columns.tolist():
            bins, fine = self._bins[j], self.fine[j]
            mine, into = np.split(into, [len(bins)])
            known = bins != MISSING
            told = np.empty(fine.width, dtype=np.int64)
            told[bins[known] - 1] = mine[known]
            last = int(told.max())
            numbers, first = np.unique(told, return_index=True)
            gapless = np.array_equal(numbers, np.arange(1, last + 1))
            if mine[~known].any() or not gapless or len(counts) < last + 1:
                raise self._refused("bins that cannot be merged so")
            held, counts = np.split(counts, [last + 1])
            order = np.argsort(first)  # this party's own, whatever order it told
            number = np.argsort(order)[told - 1] + 1
            held = held[np.append(MISSING, order + 1)]
            final = merged(fine, number)
            codes = np.append(MISSING, number)[self._codes[:, j]]
            people = np.bincount(codes, minlength=last + 1)
            if (held < 0).any() or (held != np.rint(held)).any() or (held.sum(1) != people).any():
                raise self._refused(f"goods and bads of other people than column {j + 1} has")
            placed.append(codes[None])
            home = self.home[j]
            taken.append(
                CardColumn(
                    number=j,
                    goods=tuple(held[:, 0].astype(int).tolist()),
                    bads=tuple(held[:, 1].astype(int).tolist()),
                    bins=final,
                    missing=MISSING if home == MISSING else int(number[home - 1]),
                    reason=f"{self.party.name}-{j + 1}",
                )
            )
        self.columns, self._final = taken, np.concatenate(placed).T
        for j, fine in enumerate(self.fine):
            if j not in columns:
                self.left_out[fine.name] = f"an IV below {self.settings.min_iv:g}"

    def woe(self) -> Floats:
        """WOE columns that are left, (n, columns left)."""
        return looked_up([column.woe for column in self.columns], self._final)

    def whole(self, largest: int) -> Integers:
        """The same less their means, as whole numbers up to ``largest``."""
        tables = [column.whole(largest).astype(np.float64) for column in self.columns]
        return looked_up(tables, self._final).astype(np.int64)

    def select(self, verdicts: Integers, figures: Floats) -> None:
        """Drop columns.

        Args:
            verdicts: (columns left, 2): why each is dropped, or ``KEPT``; and which column of this
                party it is too like, -1 for another party's.
            figures: The correlation or variance inflation factor, (columns left,).

        Raises:
            Refused: they are not about these columns.
        """
        if verdicts.shape != (len(self.columns), 2) or figures.shape != (len(self.columns),):
            raise self._refused("verdicts on another number of columns than are left")
        names = {column.number: column.name for column in self.columns}
        dropped: dict[str, str] = {}
        for column, (why, rival), figure in zip(
            self.columns, verdicts.tolist(), figures.tolist(), strict=True
        ):
            if why == KEPT:
                continue
            if why == CORRELATED:
                whom = f"'{names[rival]}'" if rival in names else "a column of another party"
                dropped[column.name] = (
                    f"a correlation of {figure:.2f} with {whom}, whose IV is greater"
                )
            elif why == INFLATED:
                dropped[column.name] = (
                    f"a variance inflation factor of {figure:.1f}, above {self.settings.max_vif:g}"
                )
            elif why == AGAINST:
                dropped[column.name] = "points that ran against its bad rates, beside other columns"
            else:
                raise self._refused("an unknown verdict")
        self.left_out |= dropped
        kept = np.flatnonzero(verdicts[:, 0] == KEPT)
        self.columns = [self.columns[j] for j in kept]
        self._final = self._final[:, kept]

    def as_party(self) -> Party:
        """The party as the regression sees it: its columns are the WOE columns that are left."""
        seen = copy.copy(self.party)
        names = [column.name for column in self.columns]
        woe = np.zeros((len(self.party), len(names)))
        woe[self.rows] = self.woe()
        labels = self.party.frame.select(self.party.labels_columns).get_columns()
        weights = [pl.Series(name, woe[:, j]) for j, name in enumerate(names)]
        seen.frame = pl.DataFrame([*labels, *weights])
        seen.columns, seen.categories = names, ()
        seen.readings = read_columns(seen.frame, names)
        return seen

    @property
    def card(self) -> Card:
        """What is kept of it all."""
        return Card(
            party=self.party.name, columns=tuple(self.columns), left_out=dict(self.left_out)
        )

    def _refused(self, what: str) -> Refused:
        return Refused(f"party '{self.party.name}' was sent {what}")


# -- the passive party ---------------------------------------------------------------------------


class ScorecardSide(PassiveSide):
    """What a passive party answers. It keeps its card; nobody else sees it.

    Attributes:
        card: Its part of the scorecard.
        draft: Its columns, while the scorecard is made.
        key: The public key that comes with what is to be computed on.
        secret: A key of its own.
        asked: Scalar products answered so far.
        coefficients: What the regression gave its WOE columns.
        errors: Their standard errors, if they were asked for.
    """

    card: Card
    draft: Draft
    key: PublicKey | None = None
    secret: PrivateKey | None = None
    asked: int
    coefficients: Floats
    errors: Floats | None

    @operation
    def terms(self) -> Control:
        """The schemes of encryption that this party's policy allows; ``None``: all."""
        return allowed_by(self.party)

    @operation
    def begin(self, rows: RowSelection, settings: Control) -> SplitChoice:
        """Cut fine bins. Answers (columns, 3): bins, whether they have an order, and whether
        there are missing values."""
        agreed = CardSettings.model_validate(settings)
        self.draft = Draft(self.party, self._mine(rows), agreed)
        self.key, self.secret, self.asked = None, None, 0
        cells = self.draft.cells
        table = np.stack([cells.widths, cells.ordered, cells.missing], axis=1)
        return torch.from_numpy(table.astype(np.int32).reshape(-1, 3))

    @operation
    def take_key(self, key: Ciphertext) -> None:
        """Take the public key that what follows is encrypted under."""
        self.key = read_public_key(key, self.party.policy.encryption)

    @operation
    def count(self, outcomes: Ciphertext) -> Ciphertext:
        """Encrypted goods and bads of each cell, re-randomised."""
        key = self._key()
        rows = key.read(outcomes)
        if not isinstance(rows, EncryptedRows) or len(rows) != len(self.draft.rows):
            raise Refused("the encrypted outcomes of everybody in training were due")
        sums = key.sum_by_index(
            rows,
            self.draft.index(),
            self.draft.cells.total,
            smallest=self.draft.fewest,
        )
        return sums.to_tensor()

    @operation
    def merge(self, columns: SplitChoice, into: SplitChoice, counts: Histogram) -> None:
        """Take the final bins of the columns that are left, see :meth:`Draft.merge`."""
        if counts.dim() != 2 or counts.shape[1] != 2:
            raise Refused("goods and bads were due")
        numbers = columns.numpy().astype(np.int64).reshape(-1)
        self.draft.merge(
            numbers, into.numpy().astype(np.int64).reshape(-1), counts.double().numpy()
        )

    @operation
    def own_products(self, scale: Control) -> Histogram:
        """Scalar products among this party's WOE columns as whole numbers; (columns, columns)."""
        columns = self.draft.whole(_largest(scale)).astype(np.float64)
        return torch.from_numpy(columns.T @ columns)

    @operation
    def products(self, scale: Control, column: Ciphertext) -> Ciphertext:
        """Scalar products of this party's WOE columns with an encrypted column.

        Raises:
            PolicyError: of so many columns and so few people, products would tell rows.
        """
        key = self._key()
        self.asked += 1
        if PEOPLE_A_PRODUCT * self.asked > len(self.draft.rows):
            raise PolicyError(
                f"party '{self.party.name}' answers no more than one scalar product for every "
                f"{PEOPLE_A_PRODUCT} of the {len(self.draft.rows):,} people in training, since "
                "more would tell too much of its columns; set `max_correlation` and `max_vif` to "
                "null"
            )
        vector = key.read(column)
        if not isinstance(vector, Vector) or len(vector) != len(self.draft.rows):
            raise Refused("an encrypted column of everybody in training was due")
        return key.scalar_product(vector, self.draft.whole(_largest(scale))).to_tensor()

    @operation
    def new_key(self, scale: Control) -> Ciphertext:
        """Make a key of this party's own, so that another partner can compute on its columns."""
        groups = whole_number(scale, "groups", 2**20, least=1)
        workload = workload_of(len(self.draft.rows), groups, _largest(scale))
        agreed = {"scheme": scale.get("scheme"), **asdict(workload)}
        self.secret = key_for(self.party, agreed)
        return self.secret.public.to_tensor()

    @operation
    def seal(self, scale: Control) -> Ciphertext:
        """One of this party's WOE columns under its own key; the active party cannot read it."""
        number = whole_number(scale, "column", len(self.draft.columns))
        return self._secret().encrypt(self.draft.whole(_largest(scale))[:, number]).to_tensor()

    @operation
    def unseal(self, products: Ciphertext) -> Histogram:
        """Scalar products that another partner computed, (columns of that partner,)."""
        key = self._secret()
        sums = key.public.read(products)
        if not isinstance(sums, Sums):
            raise Refused("scalar products were due")
        return torch.from_numpy(key.decrypt(sums)[:, 0].astype(np.float64))

    @operation
    def select(self, verdicts: SplitChoice, figures: Histogram) -> None:
        """Learn which columns are dropped and why, see :meth:`Draft.select`."""
        self.draft.select(verdicts.numpy().astype(np.int64), figures.double().numpy())
        self.card = self.draft.card
        self.coefficients, self.errors = np.zeros(len(self.card.columns)), None

    @operation
    def against(self, scale: Control) -> SplitChoice:
        """The numbers of columns that would get the fewer points the better their bin is."""
        sign = 1 if whole_number(scale, "bad", 2) else -1
        wrong = np.flatnonzero(sign * self.coefficients > 0)
        numbers = [self.card.columns[j].number for j in wrong]
        return torch.tensor(numbers, dtype=torch.int32)

    @operation
    def scale(self, scale: Control) -> None:
        """Turn the regression's coefficients into points: the score rises by ``factor`` for each
        unit of the log-odds of being good. ``bad`` is 1 if the regression's outcome was being bad;
        ``stretch`` is what its coefficients are to be multiplied with.
        """
        factor, stretch = (real_number(scale, name, MOST_FACTOR) for name in ("factor", "stretch"))
        sign = 1 if whole_number(scale, "bad", 2) else -1
        errors = None if self.errors is None else stretch * self.errors
        self.card = self.card.scaled(sign * stretch * self.coefficients, errors, factor)
        self.forget_people()

    @operation
    def points(self, rows: RowSelection) -> PartialScore:
        """Each person's points, added up over this party's columns; (n,)."""
        mine = self._mine(rows)
        self.party.boundary.about(torch.from_numpy(mine))
        found = self.card.points(self.party.frame, mine)
        return torch.from_numpy(found.sum(axis=1))

    @operation
    def shortfalls(self, rows: RowSelection, most: Control) -> PartialScore:
        """Where people lack the most points, see :meth:`Card.shortfalls`; only columns that this
        party gives a reason for count."""
        count = whole_number(most, "reasons", 17, least=1)
        mine = self._mine(rows)
        self.party.boundary.about(torch.from_numpy(mine))
        return torch.from_numpy(self.card.shortfalls(self.party.frame, mine, count))

    @operation
    def reasons(self, start: Control) -> Control:
        """What this party calls its columns where they cost points: texts by number, 32 at most."""
        first = whole_number(start, "first", max(1, len(self.card.columns)))
        some = self.card.columns[first : first + CODES]
        return {str(c.number): c.reason for c in some if c.reason is not None}

    @operation
    def save(self, model: Control) -> None:
        """Keep this party's card in its own folder."""
        write_card(self.party, model["name"], self.card)

    @operation
    def load(self, model: Control) -> Control:
        """Take this party's card; answers how many columns it has."""
        self.card = Card.model_validate(MODEL.read(self.party, model["name"])["card"])
        return {"columns": len(self.card.columns)}

    # -- its own affairs -------------------------------------------------------------------------

    def forget_people(self) -> None:
        """The card stays; what was computed from the former table goes."""
        self.__dict__.pop("draft", None)

    def _key(self) -> PublicKey:
        if self.key is None:
            raise Refused(f"party '{self.party.name}' was sent ciphertexts before their key")
        return self.key

    def _secret(self) -> PrivateKey:
        if self.secret is None:
            raise Refused(f"party '{self.party.name}' has made no key")
        return self.secret


class WoeColumns(Columns):
    """Columns that a linear model takes as they are: weights of evidence."""

    def __init__(self, names: Sequence[str]) -> None:
        object.__setattr__(self, "_names", list(names))  # such objects are frozen otherwise

    @classmethod
    def fit(
        cls,
        frame: pl.DataFrame,
        columns: Sequence[str],
        rows: Integers,
        *,
        party: str,
        file: str | None = None,
        readings: Mapping[str, Reading] | None = None,
    ) -> Self:
        """There is nothing to learn."""
        return cls(columns)

    @property
    def names(self) -> list[str]:
        """The columns' names."""
        names: list[str] = self.__dict__["_names"]
        return names

    def matrix(self, frame: pl.DataFrame, rows: Integers) -> Floats:
        """The columns of some rows, (n, d)."""
        return frame.select(self.names)[rows].to_numpy(writable=True)

    def to_json(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"names": self.names}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """What :meth:`to_json` gave."""
        return cls([str(name) for name in data["names"]])


class WoeSide(LinearSide):
    """A passive party's share of the regression, over the WOE columns of the scorecard that its
    party makes with the same partner."""

    kind = WoeColumns
    scorecard: ScorecardSide

    @operation
    def begin(self, rows: RowSelection, settings: Control) -> None:
        """Take the WOE columns; all weights are 0."""
        made = [
            side
            for side in self.party.sides.values()
            if isinstance(side, ScorecardSide) and side.partner == self.partner
        ]
        if not made:
            raise Refused(f"party '{self.party.name}' has no scorecard to fit")
        self.scorecard = made[-1]
        self.party = self.scorecard.draft.as_party()
        super().begin(rows, settings)

    @operation
    def finish(self) -> None:
        """The weights are the coefficients of the scorecard."""
        super().finish()
        errors = self.errors
        self.scorecard.coefficients = self.weights[:, 0]
        self.scorecard.errors = None if errors is None else errors[:, 0]


def _largest(scale: Mapping[str, Any]) -> int:
    return whole_number(dict(scale), "largest", 2**15, least=1)


def workload_of(rows: int, groups: int, largest: int) -> Workload:
    return Workload(rows=rows, largest=largest, width=1, groups=groups, factor=largest)


def write_card(party: Party, name: str, card: Card, model: dict[str, Any] | None = None) -> None:
    """Keep a party's card, with what else there is of the model, and as CSV for people to read.

    Raises:
        InterlaceError: the disk does not take it.
    """
    whole = {"card": card.model_dump(mode="json"), **(model or {})}
    MODEL.write(party, name, whole, {TABLE_FILE: card.table().write_csv().encode()})
