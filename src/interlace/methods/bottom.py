"""A party's bottom model over its own columns, and the operations that every method asks of it."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from interlace.boundary.control import real_number, whole_number
from interlace.boundary.kinds import Control, Embedding, RowSelection
from interlace.data.features import FeaturePlan
from interlace.errors import InterlaceError, JobError, PolicyError, Refused
from interlace.models import (
    BottomSpec,
    Optimisation,
    Randomness,
    load_training_state,
    seed_for,
    seeded,
    set_rate,
    training_state,
)
from interlace.party import (
    Party,
    PassiveSide,
    State,
    holds_state,
    operation,
    read_state,
    write_state,
)

MOST_WIDTH = 2**20  # of an embedding
CHUNK = 4096  # rows that go through a network at once outside of training, to bound the memory


class BottomSettings(BaseModel):
    """What the parties agree on about their bottom models before training."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bottom: BottomSpec = BottomSpec()
    optimisation: Optimisation = Optimisation()
    views: int = Field(
        default=1,
        gt=0,
        le=8,
        description="How many such networks stand side by side over the same columns.",
    )


class SideBySide(nn.Module):
    """Several networks over the same columns; their embeddings (n, d) are joined to (n, Σd)."""

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, x: Tensor) -> Tensor:
        """From a party's features to the joined embeddings."""
        return torch.cat([network(x) for network in self.networks], 1)


class Bottom:
    """Preprocessing, network and optimiser of one party.

    Args:
        party: Whose columns.
        settings: What was agreed.
        plan: The fitted preprocessing.

    Rows are positions in the party's table.

    Raises:
        InterlaceError: an own network does not take the features or give embeddings.
    """

    def __init__(self, party: Party, settings: BottomSettings, plan: FeaturePlan) -> None:
        self.party, self.settings, self.plan = party, settings, plan
        seed = seed_for(party.secret, "bottom", party.name)
        self.module = seeded(self._network, seed)
        self.optimiser = settings.optimisation.optimiser(self.module)
        self.randomness = Randomness(self.module, seed)
        self.best: dict[str, Tensor] | None = None
        self._pending: Tensor | None = None

    def _network(self) -> nn.Module:
        own, views = self.party.bottom, self.settings.views
        if own is None:
            networks = [self.settings.bottom.build(self.plan.spec) for _ in range(views)]
        else:
            networks = [copy.deepcopy(own) if views == 1 else _anew(own) for _ in range(views)]
            for network in networks:
                self._try(network)
        return networks[0] if views == 1 else SideBySide(networks)

    def _try(self, network: nn.Module) -> None:
        """Send two rows of zeros through an own network, from which lazy layers take their shape.

        Raises:
            InterlaceError: it cannot take them, or gives no embeddings (n, e).
        """
        zeros = self._zeros(2)
        network.eval()
        cause: Exception | None = None
        try:
            with torch.no_grad():
                out = network(zeros)
        except Exception as e:
            cause, found = e, f"failed with a {type(e).__name__}"
        else:
            if not isinstance(out, Tensor):
                found = f"returned a {type(out).__name__}"
            elif not out.is_floating_point() or out.dim() != 2 or len(out) != 2 or not out.shape[1]:
                found = f"returned a {out.dtype} tensor {tuple(out.shape)} for 2 rows"
            else:
                return
        spec = self.plan.spec
        categories = len(spec.cardinalities)
        given = (
            f"images (n, {', '.join(map(str, spec.image))})"
            if spec.image
            else f"d = {spec.width} features (n, {spec.width}), of which {spec.numeric} are "
            f"numeric and {categories} are codes of categories, in the order of `plan.spec.names`"
        )
        raise InterlaceError(
            f"the bottom network of party '{self.party.name}' {found}: it was given {given}, and "
            "must return a float tensor (n, e); `nn.LazyLinear(e)` as a network's linear layer "
            "takes its input width from what it is given"
        ) from cause

    def _zeros(self, rows: int) -> Tensor:
        spec = self.plan.spec
        return torch.zeros(rows, *(spec.image or (spec.width,)))

    @classmethod
    def fit(cls, party: Party, settings: BottomSettings, learn_from: NDArray[np.int64]) -> Bottom:
        """A fresh bottom model; columns are scaled and coded by the rows ``learn_from`` alone.

        Raises:
            DataError: no column is usable.
            InterlaceError: an own network does not take the features or give embeddings.
            PolicyError: an own network hands columns through as they are.
        """
        plan = FeaturePlan.fit(
            party.frame,
            party.columns,
            learn_from,
            party=party.name,
            file=party.file,
            readings=party.readings,
        )
        bottom = cls(party, settings, plan)
        bottom.refuse_copies()
        return bottom

    @cached_property
    def x(self) -> Tensor:
        """The party's whole table as the network reads it; never leaves."""
        x = self.plan.transform(self.party.frame)
        self.party.boundary.protect(x)
        return x

    @property
    def width(self) -> int:
        """Width d of the embedding."""
        self.module.eval()
        with torch.no_grad():
            return int(self.module(self._zeros(1)).shape[1])

    def over(self, party: Party) -> Bottom:
        """The same learnt model over another table of the same party."""
        other = copy.copy(self)
        other.party = party
        other.__dict__.pop("x", None)
        return other

    def forward(self, rows: Tensor) -> Tensor:
        """Embeddings (n, d) of a batch in training, with the graph back to the weights."""
        if not self.module.training:
            self.module.train()
        with self.randomness.stream():
            pending: Tensor = self.module(self.x.index_select(0, rows))
        self._pending = pending
        return pending

    def backward(self, gradient: Tensor) -> None:
        """Go on from the loss's gradient (n, d) at the cut of the last batch, and take one step.

        Raises:
            Refused: no batch is waiting for a gradient, or it has another shape.
        """
        pending = self._pending
        if pending is None or pending.shape != gradient.shape:
            due = "none was due" if pending is None else f"{tuple(pending.shape)} was due"
            raise Refused(f"a gradient of shape {tuple(gradient.shape)} came, {due}")
        self._pending = None
        if self.optimiser is not None:
            self.optimiser.zero_grad()
            pending.backward(gradient)  # type: ignore[no-untyped-call]
            self.optimiser.step()

    def embed(self, rows: Tensor) -> Tensor:
        """Embeddings (n, d) outside of training."""
        self.module.eval()
        with torch.no_grad():
            parts = rows.tensor_split(list(range(CHUNK, len(rows), CHUNK)))
            return torch.cat([self.module(self.x[some]) for some in parts])

    def set_rate(self, rate: float) -> None:
        """Change the learning rate."""
        if self.optimiser is not None:
            set_rate(self.optimiser, rate)

    def keep(self) -> None:
        """Remember the weights as they are now."""
        self.best = {k: v.clone() for k, v in self.module.state_dict().items()}

    def recall(self) -> None:
        """Go back to the weights remembered last, if any."""
        if self.best is not None:
            self.module.load_state_dict(self.best)

    def state(self) -> State:
        """Everything learnt, for a checkpoint or a saved model."""
        meta = {"settings": self.settings.model_dump(mode="json"), "plan": self.plan.to_json()}
        state = State(training_state(self.module, self.optimiser, self.randomness), meta)
        state.put("best", self.best or {})
        return state

    @classmethod
    def from_state(cls, party: Party, state: State) -> Bottom:
        """A bottom model as :meth:`state` gave it."""
        settings = BottomSettings.model_validate(state.meta["settings"])
        bottom = cls(party, settings, FeaturePlan.from_json(state.meta["plan"]))
        load_training_state(state.tensors, bottom.module, bottom.optimiser, bottom.randomness)
        bottom.best = state.part("best").tensors or None
        return bottom

    def refuse_copies(self) -> None:
        """Make sure that the network's outputs are not simply columns of the table.

        Raises:
            PolicyError: an embedding column equals an input column for all of some rows.
        """
        sample = torch.arange(min(64, len(self.party)))
        x, h = self.x[sample].flatten(1), self.embed(sample).flatten(1)
        varied = (x != x[:1]).any(0)
        equal = (h[:, :, None] == x[:, None, varied]).all(0)
        if len(sample) > 1 and bool(equal.any()):
            raise PolicyError(
                f"the bottom network of party '{self.party.name}' hands "
                f"{int(equal.any(0).sum())} of its columns through unchanged, so records would "
                "leave as embeddings; give it a network with a trained layer"
            )


def _anew(network: nn.Module) -> nn.Module:
    """A copy of a network with initial weights of its own, as far as its layers know how."""
    other = copy.deepcopy(network)
    for layer in other.modules():
        reset = getattr(layer, "reset_parameters", None)
        if callable(reset):
            reset()
    return other


class BottomSide(PassiveSide):
    """What a passive party with a bottom model answers, whatever the method.

    Rows are positions in the order of people shared with the active party.
    """

    bottom: Bottom

    @operation
    def begin(self, held_out: RowSelection, settings: Control) -> Control:
        """Build the bottom model; ``held_out`` people have no say in how columns are scaled."""
        learn_from = np.setdiff1d(np.arange(len(self.party)), self.mine(held_out).numpy())
        self.bottom = Bottom.fit(self.party, BottomSettings.model_validate(settings), learn_from)
        return {"width": self.bottom.width}

    @operation
    def embed(self, rows: RowSelection) -> Embedding:
        """Embeddings outside of training."""
        mine = self.mine(rows)
        self.party.boundary.about(mine)
        return self.bottom.embed(mine)

    @operation
    def schedule(self, settings: Control) -> None:
        """Change the learning rate."""
        self.bottom.set_rate(real_number(settings, "rate", 1000.0))

    @operation
    def keep(self) -> None:
        """Remember the weights as they are now."""
        self.bottom.keep()

    @operation
    def recall(self) -> None:
        """Go back to the weights remembered last."""
        self.bottom.recall()

    @operation
    def checkpoint(self, at: Control) -> None:
        """Keep everything that a resumed training needs, in this party's own folder."""
        epoch = whole_number(at, "epoch", MOST_EPOCHS)
        write_checkpoint(self.party, at["name"], epoch, self._training())

    @operation
    def resume(self, at: Control) -> Control:
        """Go back to a checkpoint."""
        self._go_on(read_checkpoint(self.party, at["name"], whole_number(at, "epoch", MOST_EPOCHS)))
        return {"width": self.bottom.width}

    @operation
    def save(self, model: Control) -> None:
        """Keep this party's part of the finished model in its own folder."""
        write_state(self.party.path("models", model["name"]), self.bottom.state())

    @operation
    def load(self, model: Control) -> Control:
        """Take this party's part of a finished model."""
        state = read_state(self.party.path("models", model["name"]))
        self.bottom = Bottom.from_state(self.party, state)
        return {"width": self.bottom.width}

    def _training(self) -> State:
        """What a checkpoint of this side holds."""
        return self.bottom.state()

    def _go_on(self, state: State) -> None:
        """Take back what :meth:`_training` gave."""
        self.bottom = Bottom.from_state(self.party, state)

    def forget_people(self) -> None:
        """The bottom model stays, if there is one yet; the former table's features go."""
        if hasattr(self, "bottom"):
            self.bottom = self.bottom.over(self.party)
        for cached in ("_shared", "_unaligned", "_people"):
            self.__dict__.pop(cached, None)

    def mine(self, rows: Tensor) -> Tensor:
        """Rows of this party's table for the positions that a partner names.

        Raises:
            Refused: a position lies outside of the people whom this side answers for, or there
                are more positions than people.
        """
        if len(rows) > len(self._people):
            raise Refused(
                f"party '{self.party.name}' was asked for {len(rows):,} rows at once; it answers "
                f"for {len(self._people):,} people"
            )
        try:
            return self._people.index_select(0, rows)
        except (IndexError, RuntimeError):
            others = len(self._people) - len(self._shared)
            raise Refused(
                f"party '{self.party.name}' was asked for a row outside of the "
                f"{len(self._shared):,} people it shares with '{self.partner}'"
                + (f" and its {others:,} others" if others else "")
            ) from None

    @cached_property
    def _shared(self) -> Tensor:
        return torch.from_numpy(self.party.shared_with(self.partner))

    @cached_property
    def _unaligned(self) -> Tensor:
        """Rows U_k of this party's table about people whom the active party does not hold."""
        everybody = np.arange(len(self.party))
        return torch.from_numpy(np.setdiff1d(everybody, self.party.shared_with(self.partner)))

    @cached_property
    def _people(self) -> Tensor:
        """Rows of the people whom this side answers for, in the order of their positions."""
        return self._shared


class WholeTableSide(BottomSide):
    """A side that also answers for people whom the active party does not hold.

    Their positions go on from those of the shared people, in the order of this party's table, so
    that a position stands for one person whatever the operation. Who they are stays here.
    """

    @cached_property
    def _people(self) -> Tensor:
        return torch.cat([self._shared, self._unaligned])


MOST_EPOCHS = 1_000_000
KEPT_CHECKPOINTS = 2  # a kill while parties write may leave some one epoch ahead of the others


def write_checkpoint(party: Party, name: str, epoch: int, state: State) -> None:
    """Keep a checkpoint with the noise generators of the party's guards; drop the oldest."""
    whole = State({**state.tensors}, {**state.meta, "table": party.table})
    whole.put("boundary", party.boundary.state())
    write_state(party.path("checkpoints", name, f"{epoch:06d}"), whole)
    party.boundary.ledger.flush()
    for old in _epochs(party, name)[:-KEPT_CHECKPOINTS]:
        shutil.rmtree(party.path("checkpoints", name, f"{old:06d}"))


def read_checkpoint(party: Party, name: str, epoch: int) -> State:
    """Read a checkpoint and set the party's guards back to it."""
    folder = party.path("checkpoints", name, f"{epoch:06d}")
    try:
        state = read_state(folder)
    except InterlaceError as e:
        raise InterlaceError(
            f"{e}; remove {Path('checkpoints', name)} at every party, and --resume begins this "
            "training anew and keeps the finished ones"
        ) from e
    if state.meta.pop("table") != party.table:
        raise JobError(
            f"the table of party '{party.name}' has changed since the checkpoint '{name}'; go on "
            "with the table as it was, or begin another run"
        )
    noise = state.part("boundary").tensors
    party.boundary.load_state(noise)
    for key in noise:
        del state.tensors[f"boundary/{key}"]
    return state


def last_checkpoint(party: Party, name: str, made_for: str) -> tuple[int, State] | None:
    """The newest epoch that a training can go on from and its checkpoint, if there is one; the
    party's guards are set back to it.

    Raises:
        JobError: it was made for another training than ``made_for``.
    """
    epoch = latest_checkpoint(party, name)
    if epoch is None:
        return None
    state = read_checkpoint(party, name, epoch)
    if state.meta["made_for"] != made_for:
        raise JobError(
            f"the checkpoint '{name}' was made with other settings or other people; "
            "choose another run folder, or the job as it was"
        )
    return epoch, state


def latest_checkpoint(party: Party, name: str) -> int | None:
    """The newest epoch that a party has a checkpoint of."""
    epochs = _epochs(party, name)
    return epochs[-1] if epochs else None


def _epochs(party: Party, name: str) -> list[int]:
    folder = party.path("checkpoints", name)
    if not folder.is_dir():
        return []
    return sorted(int(f.name) for f in folder.iterdir() if f.name.isdigit() and holds_state(f))
