"""What every method has in common: scikit-learn's manners, epochs, and how it is kept on disk."""

from __future__ import annotations

import inspect
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache, wraps
from hashlib import blake2b
from typing import Annotated, Any, ClassVar, Self, get_type_hints

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError
from sklearn.base import BaseEstimator
from torch import Tensor

from interlace.data.labels import LabelPlan, is_known
from interlace.errors import InterlaceError, JobError
from interlace.federation import Federation
from interlace.job.results import Sheet
from interlace.models import seed_for


@dataclass(frozen=True)
class Epoch:
    """What one epoch came to; ``validation`` is the loss on people kept aside to stop early by."""

    number: int
    loss: float
    validation: float | None
    seconds: float


OnEpoch = Callable[[Epoch], None]

# How constructors annotate hyper-parameters; :func:`validated` holds values against it.
Natural = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(gt=0)]
Several = Annotated[int, Field(gt=1)]
Passes = Annotated[int, Field(ge=0, le=100_000)]  # a partner proposes them, and this is a bound
AtLeastZero = Annotated[float, Field(ge=0)]
AboveZero = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, lt=1)]
Part = Annotated[float, Field(ge=0, le=1)]
Widths = Sequence[Annotated[int, Field(gt=0)]]


def validated(make: type, settings: dict[str, Any]) -> dict[str, Any]:
    """Hyper-parameters as a method's constructor annotates them.

    Raises:
        JobError: a value does not fit; the message names the hyper-parameter.
    """
    out = {}
    for key, value in settings.items():
        try:
            out[key] = adapters(make)[key].validate_python(value)
        except ValidationError as e:
            first = e.errors()[0]
            inner = [p for p in first["loc"] if isinstance(p, str) and p.isidentifier()]
            raise JobError(f"`{'.'.join([key, *inner])}`: {first['msg']}") from None
    return out


@cache
def adapters(make: type) -> dict[str, TypeAdapter[Any]]:
    """What each of a constructor's arguments is held against, by name."""
    hints = get_type_hints(make.__init__, include_extras=True)  # type: ignore[misc]
    foreign = ConfigDict(arbitrary_types_allowed=True)
    out: dict[str, TypeAdapter[Any]] = {}
    for name in inspect.signature(make).parameters:
        try:
            out[name] = TypeAdapter(hints[name], config=foreign)
        except PydanticUserError:  # a pydantic model brings its own configuration
            out[name] = TypeAdapter(hints[name])
    return out


def _of_a_federation(fit: Callable[..., Any]) -> Callable[..., Any]:
    """A method's ``fit`` that says what to give it, where it is given a party or a table."""

    @wraps(fit)
    def checked(self: Any, federation: Federation, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(federation, Federation):
            raise JobError(
                f"`{type(self).__name__}.fit` takes a Federation, not a "
                f"{type(federation).__name__}: make one of all parties, as in "
                "`Federation.simulate([bank, shop])`, and give `fit` that or a view of it, as "
                "`train` of `train, test = federation.split()`"
            )
        return fit(self, federation, *args, **kwargs)

    return checked


class Method(BaseEstimator, ABC):  # type: ignore[misc]
    """An estimator over a federation: hyper-parameters in the constructor, ``fit`` learns.

    What was learnt ends in an underscore: ``label_plan_`` (task and classes), ``history_``.
    """

    # Whether people count whom only some of the partners hold; else all must hold them.
    partial: ClassVar[bool] = False
    # Whether it scores people whom only some of the partners hold, as well as it can.
    scores_some: ClassVar[bool] = False
    # Whether it learns a label; a clustering does not.
    supervised: ClassVar[bool] = True
    # Whether it is compared with itself on fewer and on all columns, and not with networks.
    alike: ClassVar[bool] = False
    # Whether it needs a party without a table, that holds a key for the others.
    helped: bool = False
    # Settings under which a rehearsal on made-up data sends no less than a run on real ones.
    rehearsal: ClassVar[dict[str, Any]] = {}
    label_plan_: LabelPlan
    history_: list[Epoch]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "fit" in vars(cls):
            cls.fit = _of_a_federation(cls.fit)  # type: ignore[method-assign]

    @abstractmethod
    def fit(
        self,
        federation: Federation,
        *,
        checkpoint: str | None = None,
        on_epoch: OnEpoch | None = None,
    ) -> Self:
        """Learn from the people of a view.

        Args:
            federation: Whom to learn from; its held-out people are left alone.
            checkpoint: Name under which every party keeps a checkpoint after each epoch, in its own
                folder; a fit that finds one goes on from it, to the same result. ``None``: none.
            on_epoch: Called after every epoch, for progress bars and the like.

        Raises:
            DataError: labels or columns are not usable.
            AlignmentError: too few people are shared.
            JobError: it is given something else than a federation.
        """

    @abstractmethod
    def outputs(self, federation: Federation) -> NDArray[np.float64]:
        """What the model says of the people of a view, in their order: (n, classes) or (n, labels)
        probabilities, or (n,) regression estimates."""

    @abstractmethod
    def save(self, name: str) -> None:
        """Every party keeps its own part of the model, under ``name``, in its own folder."""

    @abstractmethod
    def load(self, name: str, federation: Federation) -> Self:
        """Take the parts that :meth:`save` kept, in a federation of the same parties."""

    def _fingerprint(self, federation: Federation, *more: object) -> str:
        """What a training is of: settings, seed and people. A checkpoint of another is not used."""
        settings = f"{sorted(self.get_params().items())!r} {federation.seed}"
        text = " ".join([settings, *map(repr, more)])
        return blake2b(text.encode() + federation.rows.tobytes(), digest_size=16).hexdigest()

    def figures(self, federation: Federation) -> dict[str, float]:
        """How well a method without a label fits a view's people, by the names of measures."""
        raise NotImplementedError

    def said(self, outputs: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
        """Further columns of a file of scores, by name, that follow from :meth:`outputs`."""
        return {}

    @property
    def variance_power(self) -> float | None:
        """Of a model of a quantity whose loss is a Tweedie deviance, the power of the mean that the
        variance goes with (1 is Poisson, 2 gamma); it is judged by that deviance too."""
        return None

    def schemes(self) -> dict[str, str]:
        """The encryption that training used, by what it was for; empty where nothing was
        encrypted."""
        return {}

    def sheets(self) -> list[Sheet]:
        """Tables of what was learnt, for the report, as far as the active party knows it."""
        return []

    def predict_proba(self, federation: Federation) -> NDArray[np.float64]:
        """Probabilities of shape (n, classes), for the people of a view in their order.

        For several labels at once, (n, labels). Not for regression: use :meth:`predict`.
        """
        if self.label_plan_.task == "regression":
            raise InterlaceError("a regression has no probabilities; use `predict`")
        return self.outputs(federation)

    def predict(self, federation: Federation) -> NDArray[Any]:
        """Classes as the label column has them, 0/1 for each label, or regression estimates."""
        return self.decide(self.outputs(federation))

    def decide(self, outputs: NDArray[np.float64]) -> NDArray[Any]:
        """The prediction that follows from :meth:`outputs`."""
        if self.label_plan_.task == "regression":
            return outputs
        if self.label_plan_.task == "multilabel":
            return (outputs >= 0.5).astype(np.int64)
        classes: NDArray[Any] = np.asarray(self.label_plan_.classes)[outputs.argmax(1)]
        return classes

    def score(self, federation: Federation) -> float:
        """Accuracy, or R² for a regression, over the people of a view whose label is known."""
        from sklearn.metrics import accuracy_score, r2_score

        # By the model's own classes: the labels of new people may lack some of them.
        labels = self.label_plan_.encode(federation.active.label_series)
        y = labels[torch.from_numpy(federation.rows)]
        known = is_known(y)
        outputs = self.outputs(federation.view(federation.rows[known.numpy()]))
        if self.label_plan_.task == "regression":
            return float(r2_score(y[known], outputs))
        if self.label_plan_.task == "multilabel":
            return float(accuracy_score(y[known], self.decide(outputs)))
        return float(accuracy_score(y[known], outputs.argmax(1)))


def check_is_of_classes(plan: LabelPlan, why: str) -> None:
    """Make sure that a label is one of some classes.

    Raises:
        JobError: it is not; ``why`` a method needs that is the message's beginning.
    """
    if plan.task not in ("binary", "multiclass"):
        raise JobError(
            f"{why}, so it is for classes; the label is a {plan.task} (take the method 'split')"
        )


def shuffled(rows: int, seed: int, epoch: int) -> Tensor:
    """Positions 0..rows-1 in an order that only the seed and the epoch decide."""
    generator = torch.Generator().manual_seed(seed_for(seed, "batches", epoch))
    return torch.randperm(rows, generator=generator)


def usual_batch(rows: int) -> int:
    """A batch size that gives a small table enough steps an epoch: 16 to 256, a power of two."""
    return int(min(256, max(16, 2 ** round(math.log2(max(rows, 1) / 32)))))


def batches(rows: int, size: int) -> Iterator[slice]:
    """Cut positions 0..rows-1 into batches.

    A last batch of a single person joins the one before: alone it says too little, and it breaks
    layers that normalise over a batch.
    """
    for start in range(0, rows, size):
        stop = start + size
        if rows - stop == 1:
            yield slice(start, rows)
            return
        yield slice(start, stop)


def keep_aside(rows: int, share: float, seed: int, strata: Tensor | None) -> tuple[Tensor, Tensor]:
    """Split positions into those to train on and those to stop early by, classes in proportion."""
    from sklearn.model_selection import train_test_split

    every = np.arange(rows)
    count = round(rows * share)
    if count == 0:
        return torch.from_numpy(every), torch.empty(0, dtype=torch.int64)
    y = None if strata is None else strata.numpy()
    if y is not None:
        counts = np.bincount(y)
        counts = counts[counts > 0]
        if counts.min() < 2 or count < len(counts) or rows - count < len(counts):
            y = None
    kept, aside = train_test_split(
        every, test_size=count, random_state=seed_for(seed, "aside") % 2**32, stratify=y
    )
    return torch.from_numpy(np.sort(kept)), torch.from_numpy(np.sort(aside))


class EarlyStopping:
    """Remembers the best epoch; asks to stop when ``patience`` epochs in a row were not better."""

    def __init__(self, patience: int | None) -> None:
        self.patience = patience
        self.best = float("inf")
        self.best_epoch = -1

    def better(self, epoch: int, validation: float) -> bool:
        """Whether this epoch is the best so far."""
        if validation < self.best:
            self.best, self.best_epoch = validation, epoch
            return True
        return False

    def over(self, epoch: int) -> bool:
        """Whether it is time to stop."""
        return self.patience is not None and epoch - self.best_epoch >= self.patience


class Clock:
    """Seconds since it was last read."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def lap(self) -> float:
        """Seconds since the last lap."""
        now = time.perf_counter()
        seconds, self._last = now - self._last, now
        return seconds


def history_to_json(history: Sequence[Epoch]) -> list[dict[str, Any]]:
    """A training history for a checkpoint."""
    return [asdict(e) for e in history]


def history_from_json(history: Sequence[dict[str, Any]]) -> list[Epoch]:
    """A training history from a checkpoint."""
    return [Epoch(**e) for e in history]
