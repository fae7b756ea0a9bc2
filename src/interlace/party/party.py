"""A party: its table, its people, its policy, and the sides it takes in conversations."""

from __future__ import annotations

import copy
import io
import secrets
from collections.abc import Callable, Sequence
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, Literal, cast

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from interlace.boundary import Boundary, Ledger, Message, Policy
from interlace.data.columns import Reading, read_columns
from interlace.data.ids import IdRule, Keys, make_keys, no_keys
from interlace.data.tables import missing_column, read_table, source_name
from interlace.errors import (
    AlignmentError,
    DataError,
    InterlaceError,
    PartyFailed,
    Refused,
)
from interlace.models import seed_for
from interlace.party.operation import PassiveSide

Task = Literal["auto", "binary", "multiclass", "multilabel", "regression"]


class _Digest(io.RawIOBase):
    """A file that keeps nothing but the digest of what was written to it."""

    def __init__(self) -> None:
        self.digest = blake2b(digest_size=16)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.digest.update(data)
        return len(data)


class Party:
    """An organisation with a table about people.

    Args:
        name: What the others call it.
        table: A pandas, polars or Arrow table, NumPy arrays, or where to read one
            (a CSV, Parquet or Feather file, ``duckdb:///...``, ``sql:SELECT ...``). ``None`` for a
            party that only drives a horizontal federation and has no records.
        id: The column (or columns) that say who a row is about, or a whole :class:`IdRule`;
            ``None`` where nobody is matched, as in a horizontal federation.
        label: The column to learn, at the party that has it.
        columns: The columns to learn from; by default all but the ids and the label.
        categories: Columns whose numbers are codes of categories.
        task: What the label is; by default read off the label.
        policy: What may leave this party, and how it is guarded.
        bottom: An own torch module from this party's (n, d) features to (n, e) embeddings, or from
            images (n, c, h, w). d counts the numeric inputs and one code for each category, as
            ``FeaturePlan.spec.names`` lists them; ``nn.LazyLinear(e)`` finds d itself, except in
            horizontal averaging.
        folder: Where this party keeps its checkpoints, models and ledger.
        secret: Makes what this party draws repeatable: the weights that its networks start from
            and the noise of its guards, with a job's seeds. Whoever knows it can read columns out
            of embeddings, so it stays with the party. ``None``: drawn anew by the operating system.
        label_needed: Whether a table without the label column is an error; people to be scored
            have no label yet.

    Raises:
        DataError: the table, an id or a column is not usable as it stands.
        InterlaceError: the name cannot be, or ``bottom`` is not a module.
    """

    def __init__(
        self,
        name: str,
        table: Any = None,
        *,
        id: str | Sequence[str] | IdRule | None = "id",
        label: str | Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        categories: Sequence[str] = (),
        task: Task = "auto",
        policy: Policy | None = None,
        bottom: torch.nn.Module | None = None,
        folder: Path | None = None,
        secret: int | None = None,
        label_needed: bool = True,
    ) -> None:
        check_name(name)
        if bottom is not None and not isinstance(bottom, torch.nn.Module):
            raise InterlaceError(
                f"the `bottom` of party '{name}' is not a torch module; give it a built "
                "`torch.nn.Module`, as in `bottom=nn.Sequential(nn.LazyLinear(16), nn.ReLU())`"
            )
        if isinstance(id, str):
            id = [id]
        self.name = name
        if id is None or table is None:
            self.id_rule = IdRule(columns=[])
        else:
            self.id_rule = id if isinstance(id, IdRule) else IdRule(columns=list(id))
        self.labels_columns = [label] if isinstance(label, str) else list(label or ())
        self.categories = tuple(categories)
        self.task = task
        self.policy = policy or Policy()
        self.bottom = bottom
        self.folder = folder
        self.own_secret = secret
        self.noise_anew = False  # whether its guards' noise follows from no secret that is kept
        self.progress = ("", 0.0)  # what its driver said last
        self.tell: Callable[[str], None] = lambda _what: None  # of long learning by itself
        self.trainings: int | None = None  # how many more its driver may begin
        self.aligned: dict[str, NDArray[np.int64]] = {}
        self.sides: dict[str, PassiveSide] = {}
        self.record_in(Ledger(), seed=None)
        self._label_needed = label_needed
        self._wanted = list(columns) if columns is not None else None
        self._read(table)

    def _read(self, table: Any) -> None:
        self.file = source_name(table)
        if table is None:
            raw = pl.DataFrame()
            self.labels_columns = []
        else:
            raw = read_table(table, party=self.name, ids=self.id_rule.columns)
        if self.id_rule.columns:
            keys = make_keys(raw, self.id_rule, party=self.name, file=self.file)
        else:
            keys = no_keys(raw.height)
        self.frame: pl.DataFrame = raw[keys.rows]
        self.keys: Keys = keys
        if not self._label_needed and not set(self.labels_columns) <= set(self.frame.columns):
            self.labels_columns = []
        special = {*self.id_rule.columns, *self.labels_columns}
        wanted = self._wanted
        if wanted is None:
            wanted = [c for c in self.frame.columns if c not in special]
        for column in (*wanted, *self.labels_columns, *self.categories):
            if column not in self.frame.columns:
                there = self.frame.columns
                raise missing_column(column, there, party=self.name, file=self.file)
        for column in self.labels_columns:
            if column in wanted:
                raise DataError(
                    "the label is named among the columns to learn from, which would tell the "
                    "model what it is to learn",
                    party=self.name,
                    file=self.file,
                    column=column,
                    way_out="Leave it out of `columns`",
                )
        self.columns: list[str] = wanted

    secret: int
    """What this party seeds its networks with. No message carries it: a partner who knows a
    network's weights reads the columns out of the embeddings."""

    def __len__(self) -> int:
        """How many people the party can use."""
        return self.frame.height

    def __repr__(self) -> str:
        label = f", label={self.labels_columns}" if self.labels_columns else ""
        return f"Party({self.name!r}, {len(self):,} people, {len(self.columns)} columns{label})"

    @property
    def has_label(self) -> bool:
        """Whether this party holds what is to be learnt."""
        return bool(self.labels_columns)

    @cached_property
    def label_series(self) -> pl.Series:
        """The label as it stands in the table; a struct when it has several columns."""
        if len(self.labels_columns) == 1:
            return self.frame[self.labels_columns[0]]
        return self.frame.select(self.labels_columns).to_struct("label")

    @cached_property
    def readings(self) -> dict[str, Reading]:
        """How each column is read by every model."""
        return read_columns(self.frame, self.columns, self.categories)

    def shared_with(self, partner: str) -> NDArray[np.int64]:
        """Rows of the people shared with ``partner``, in the order both agreed on.

        Raises:
            AlignmentError: the two have not matched their people yet.
        """
        if partner not in self.aligned:
            raise AlignmentError(f"'{self.name}' and '{partner}' have not matched their people yet")
        return self.aligned[partner]

    @cached_property
    def people(self) -> str:
        """A name for exactly these people in exactly this order; it says nothing about them but
        to those who hold the same table."""
        digest = blake2b(digest_size=16)
        for key in self.keys.values:
            digest.update(len(key).to_bytes(4, "little") + key)
        return digest.hexdigest()

    @cached_property
    def table(self) -> str:
        """A name for exactly this table, columns and all; it says nothing about what is in it."""
        sink = _Digest()
        self.frame.rechunk().write_ipc(cast(IO[bytes], sink))
        return sink.digest.hexdigest()

    def path(self, *parts: str) -> Path:
        """A place in this party's own folder.

        Raises:
            InterlaceError: the party has no folder, or a part would lead out of it.
        """
        if self.folder is None:
            raise InterlaceError(
                f"party '{self.name}' has no folder to keep anything in; "
                "give the federation one (`Federation.simulate(..., folder=...)`)"
            )
        for part in parts:
            if not _names_a_file(part):
                raise Refused(f"'{part[:60]}' cannot be the name of a checkpoint or model")
        return self.folder.joinpath(*parts)

    def record_in(self, ledger: Ledger, seed: int | None) -> None:
        """Write what passes from now on into ``ledger``.

        Args:
            ledger: This party's own.
            seed: Makes a simulation repeatable: the guards' noise and the party's :attr:`secret`
                follow from it. ``None`` takes both from the operating system.
        """
        before = self.__dict__.get("boundary")
        noise = None if self.noise_anew else seed
        self.boundary = Boundary(self.name, self.policy, ledger, noise)
        if before is not None and before.ledger is ledger:  # another training of the same run
            self.boundary.go_on_from(before)
        self.secret = secrets.randbits(63) if seed is None else seed

    def train_anew(self, seed: int, otherwise: int | None = None) -> None:
        """Begin a training: the guards' accounts start from nought.

        Args:
            seed: The training's; what this party draws follows from it and its own secret.
            otherwise: What all that follows from if this party has no secret of its own;
                ``None`` takes it from the operating system.
        """
        if self.own_secret is not None:
            otherwise = seed_for(self.own_secret, "training", seed)
        self.record_in(self.boundary.ledger, otherwise)

    def with_table(self, table: Any) -> Party:
        """The same organisation with other people: same rules, same models, another table."""
        other = copy.copy(self)
        for cached in ("label_series", "people", "readings", "table"):
            other.__dict__.pop(cached, None)
        other._wanted, other._label_needed = self.columns, False
        other._read(table)
        other.aligned = {}
        other.sides = {session: side.at(other) for session, side in self.sides.items()}
        return other

    def open(self, session: str, side: type[PassiveSide], partner: str) -> None:
        """Take part in a conversation that ``partner`` drives.

        Raises:
            Refused: another partner drives a conversation of that name.
        """
        if not session.isprintable():  # the ledger shows it to people
            raise Refused(
                f"party '{self.name}' was asked for a conversation without a legible name"
            )
        held = self.sides.get(session)
        if held is not None and held.partner != partner:
            raise Refused(f"the conversation '{session}' of party '{self.name}' is another's")
        self.boundary.expect(side.answers_with)
        self.sides[session] = side(self, partner)

    def answer(self, message: Message) -> Message:
        """Carry out what a partner asks: the one way into a party.

        Raises:
            Refused: there is no such conversation or operation, or the message is not as agreed.
            PolicyError: the answer may not leave.
            PartyFailed: the operation failed; the reason names the error's type, not the data.
        """
        side = self.sides.get(message.session)
        operation = side.operations.get(message.operation) if side is not None else None
        if side is None or operation is None or message.sender != side.partner:
            raise self.boundary.refusal(
                message,
                f"it has no operation '{message.operation}' for '{message.sender}' "
                f"in conversation '{message.session}'",
            )
        self.boundary.answering(message)
        self.boundary.round = message.round
        arguments = self.boundary.admit(message, operation.takes)
        try:
            result = getattr(side, operation.name)(*arguments)
        except InterlaceError:
            raise
        except Exception as e:
            # The text of a foreign error may quote the data, so only its type crosses over.
            raise PartyFailed(self.name, message.operation, type(e).__name__) from e
        values = [result] if operation.gives else []
        return self.boundary.release(
            message.session, message.operation, message.sender, operation.gives, values
        )


def check_name(name: str) -> None:
    """Make sure that a party can be called so: its folder in a run bears its name.

    Raises:
        InterlaceError: it cannot.
    """
    if not _names_a_file(name):
        raise InterlaceError(
            f"'{name[:60]}' cannot be a party's name: it is empty, starts with a '.', holds a '/' "
            "or what cannot be printed, or is too long for a folder's name"
        )


def _names_a_file(name: str) -> bool:
    """Whether a name that others chose leads nowhere else as the name of a file or folder."""
    fits = name.isprintable() and len(name.encode()) <= 200  # of the 255 bytes that disks take
    return bool(name) and fits and not name.startswith(".") and Path(name).name == name
