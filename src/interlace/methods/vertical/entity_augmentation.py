"""Entity augmentation, after Amalanshu et al., "Entity Augmentation for Efficient Classification of
Vertically Partitioned Data with Limited Overlap", 2024, arXiv 2406.17899.

In a batch every party embeds people of its own choice, and the active party joins the embeddings of
different people as if they were one. The label of such an augmented person is the mean of theirs,
weighed by how much each party's columns are of all columns. So nobody has to be shared by all::

    active                                         passive k
      │ ── begin(held-out rows, settings) ──────────► │   builds f_k, scales its columns
      │ ◄───────────────────────── width of h_k ───── │
      │ ── inputs() ────────────────────────────────► │
      │ ◄─────────────────────── how many columns ─── │   → its weight in a label
      │ for every batch:                              │
      │ ── forward(rows of k's own people) ─────────► │
      │ ◄──────────────────────────────── h_k ─────── │
      │ ── backward(∂L/∂h_k) ───────────────────────► │   θ_k ← θ_k − η ∂L/∂θ_k
      │ after every epoch: embed(validation rows), keep or recall the best, checkpoint

The paper's text was at hand only in its abstract and in a summary by others, which state the label
rule; the rest is split learning, and ours where they differ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from interlace.boundary.control import whole_number
from interlace.boundary.kinds import Control
from interlace.errors import AlignmentError
from interlace.federation import Federation, Rows
from interlace.methods.base import (
    OnEpoch,
    batches,
    check_is_of_classes,
    keep_aside,
    shuffled,
    usual_batch,
)
from interlace.methods.vertical.split import Asked, Batch, SplitSide, SplitVFL
from interlace.models import seed_for
from interlace.party import operation

MOST_INPUTS = 2**40  # columns or pixels that a partner may say it has


class EntitySide(SplitSide):
    """What a passive party answers in entity augmentation."""

    @operation
    def inputs(self) -> Control:
        """How many columns, or pixels, its bottom model reads."""
        return {"inputs": self.bottom.x[:1].numel()}


@dataclass
class Once(Asked):
    """A batch of people put together: where each party's part of one stands among the people who
    are embedded."""

    place: dict[str, Tensor]


class EntityAugmentation(SplitVFL):
    """Entity augmentation: embeddings of different people are joined, and their labels mixed.

    For classes, as in the source; not for regression. Works for two to many parties, tables and
    images, with columns at the active party or without. A partner's people are those whom the
    active party shares with it and has a label for, whether other partners hold them or not; the
    active party's own are all its labelled people. Nobody need be held by all, but to choose the
    best epoch, and to be scored.

    The labels still have to be found, so people are matched pair by pair; the source does without
    matching where the label holder knows every row by name. A party's unaligned rows have no label
    and are not used.

    Args: as for :class:`SplitVFL`; ``validation`` is a share of the people whom all hold.
    """

    side = EntitySide
    protocol = "entity-augmentation"

    def fit(
        self,
        federation: Federation,
        *,
        checkpoint: str | None = None,
        on_epoch: OnEpoch | None = None,
    ) -> Self:
        """Learn from all labelled people whom anybody with columns holds; see :meth:`Method.fit`.

        Raises:
            JobError: the label is not a class.
            AlignmentError: a party with columns shares fewer than two labelled people.
        """
        check_is_of_classes(federation.label_plan, "entity augmentation mixes classes")
        fed = federation.labelled()
        self._start(fed)
        whole = fed.shared()
        _, chosen = keep_aside(len(whole.rows), self.validation, fed.seed, whole.y)
        aside = whole.view(whole.rows[chosen.numpy()])
        people = self._cast(fed, aside.rows)
        weights = self._weights()
        most = max(map(len, people))
        size = self.batch_size or usual_batch(most)
        labels = torch.full((len(fed.active),), -1)
        labels[torch.from_numpy(fed.rows)] = fed.y

        def learn(epoch: int) -> float:
            # Every party goes round its people in an order of its own, the smaller ones repeatedly.
            drawn = [
                torch.from_numpy(rows)[in_turn(len(rows), most, fed.seed, k, epoch)]
                for k, rows in enumerate(people)
            ]
            some = ([rows[batch] for rows in drawn] for batch in batches(most, size))
            put = (self._put_together(fed, rows, labels, weights) for rows in some)
            return self._learn(fed, put).item() / most

        self._in_epochs(fed, learn, aside, checkpoint, on_epoch)
        return self

    def _put_together(
        self, fed: Federation, rows: list[Tensor], labels: Tensor, weights: Tensor
    ) -> Batch:
        """A batch of the rows (n,) that each party contributes, with the labels mixed."""
        where = {
            name: fed.positions(name, some.numpy())
            for name, some in zip(self.peers_, rows, strict=False)
        }
        y = mixed_labels([labels[some] for some in rows], weights, self.objective_.outputs)
        return Batch(where, rows[-1], y)

    def _ask(self, fed: Federation, batch: Batch) -> Asked:
        """Whoever stands in several of the people put together is embedded once."""
        seen = {name: first_seen(rows) for name, rows in batch.positions.items()}
        once = {name: rows for name, (rows, _) in seen.items()}
        place = {name: where for name, (_, where) in seen.items()}
        return Once(batch, once, self._start_forward(fed, once), place)

    def _losses(self, fed: Federation, asked: Asked) -> tuple[Tensor, Tensor]:
        assert isinstance(asked, Once)
        cuts = self._cuts(asked, asked.batch.own)
        views = [cut[place] for cut, place in zip(cuts, asked.place.values(), strict=False)]
        views += cuts[len(views) :]
        self.top_.train()
        with self.randomness_.stream():
            loss = self.objective_.loss(self.top_(views), asked.batch.y)
        return loss, loss

    def _cast(self, fed: Federation, aside: Rows) -> list[Rows]:
        """Rows of the people whom each party may choose from, the active party last."""
        rows = np.setdiff1d(fed.rows, aside)
        held = fed.alignment.holders[rows]
        people = {name: rows[held[:, k]] for k, name in enumerate(self.peers_)}
        if self.own_ is not None:
            people[fed.active.name] = rows
        for name, mine in people.items():
            if len(mine) < 2:
                raise AlignmentError(
                    f"{len(mine)} people with a label are held by '{name}'; "
                    "at least two are needed to learn from"
                )
        return list(people.values())

    def _weights(self) -> Tensor:
        """Each party's share of all columns, the active party's last; they sum to 1."""
        inputs = [
            whole_number(peer.ask(EntitySide.inputs), "inputs", MOST_INPUTS, least=1)
            for peer in self.peers_.values()
        ]
        if self.own_ is not None:
            inputs.append(self.own_.x[:1].numel())
        counts = torch.tensor(inputs, dtype=torch.float32)
        return counts / counts.sum()


def first_seen(positions: Tensor) -> tuple[Tensor, Tensor]:
    """Each position once, in the order in which they come first, and where each of (n,) stands."""
    numbers = positions.tolist()
    place = {number: i for i, number in enumerate(dict.fromkeys(numbers))}
    return torch.tensor(list(place)), torch.tensor([place[number] for number in numbers])


def in_turn(people: int, count: int, seed: int, party: int, epoch: int) -> Tensor:
    """``count`` positions 0..people-1 in a random order, all of them before any comes again."""
    rounds = math.ceil(count / people)
    seeds = [seed_for(seed, "party", party, turn) for turn in range(rounds)]
    return torch.cat([shuffled(people, s, epoch) for s in seeds])[:count]


def mixed_labels(labels: list[Tensor], weights: Tensor, classes: int) -> Tensor:
    """The label of people put together from several: Σ_k w_k · onehot(y_k).

    Args:
        labels: For each party (n,), the classes of those whom it contributes.
        weights: (parties,), sum 1.
        classes: How many there are.

    Returns:
        (n, classes); rows sum to 1.
    """
    each = torch.stack([F.one_hot(y, classes) for y in labels]).float()
    return (weights[:, None, None] * each).sum(0)
