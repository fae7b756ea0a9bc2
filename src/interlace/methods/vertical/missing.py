"""Estimating the view that a party does not have, from people whom it shares with others."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

# Queries at a time, and weights, so that those of all over all need not fit in memory.
_QUERIES, _WEIGHTS = 4096, 2**26


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    temperature: float = 1.0,
    but: Tensor | None = None,
) -> Tensor:
    """Scaled dot-product attention: softmax(Q Kᵀ / √d) V.

    Each answer is a weighted mean of real rows of ``values``, with more weight on those whose key
    is like the query.

    Args:
        query: (n, d).
        keys: (m, d), one a row of ``values``.
        values: (m, e).
        temperature: Below 1 it sharpens the weights w to w^(1/T) / Σ w^(1/T).
        but: (n,), a key for each query that it must not see.

    Returns:
        Shape (n, e).
    """
    scale = temperature * math.sqrt(query.shape[1])
    size = min(_QUERIES, max(1, _WEIGHTS // max(1, len(keys))))
    out = []
    for start in range(0, len(query), size):
        scores = query[start : start + size] @ keys.T / scale
        if but is not None:
            scores = scores.scatter(1, but[start : start + size, None], -math.inf)
        out.append(scores.softmax(1) @ values)
    return torch.cat(out) if out else query.new_empty(0, values.shape[1])


def complete(
    views: Sequence[Tensor], held: Tensor, known: tuple[Sequence[Tensor], Tensor] | None = None
) -> list[Tensor]:
    """Fill in every view that its party does not hold.

    The transform T of Sun et al. (ICCV 2023): whoever lacks the view of party j asks with the
    views there are, the keys are the same views of the people who have j's too, and the values are
    those. With one view and one missing this is T(H_u^A, H_o^A, H_o^B); that several views ask
    together, side by side, is ours. Where nobody has both, j's mean stands in.

    Args:
        views: For each party (n, d_k); what stands in rows that it does not hold is not looked at.
        held: (n, parties), bool; each person is held by at least one.
        known: Views (m, d_k) and holders (m, parties) of the people who are looked among; without,
            it is those who ask.

    Returns:
        The views, whole.
    """
    theirs, by = known or (views, held)
    full = [view.clone() for view in views]
    for pattern in torch.unique(held, dim=0):
        asking = (held == pattern).all(1)
        present = pattern.nonzero()[:, 0].tolist()
        query = torch.cat([views[k][asking] for k in present], 1)
        for j in (~pattern).nonzero()[:, 0].tolist():
            both = by[:, [*present, j]].all(1)
            if bool(both.any()):
                keys = torch.cat([theirs[k][both] for k in present], 1)
                full[j][asking] = attend(query, keys, theirs[j][both])
            else:
                full[j][asking] = theirs[j][by[:, j]].mean(0)
    return full
