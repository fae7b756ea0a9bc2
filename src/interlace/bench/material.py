"""The data sets of ``interlace bench limited-overlap``, and how people are drawn from them.

A data set is cut in two by columns. Of its people a fixed part is for testing and never trained on
in any draw, nor does it take part in the choice of hyper-parameters. The others are drawn anew by
every seed: some are held by both parties (the overlap), the rest by one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from interlace.errors import DataError, JobError
from interlace.federation import Federation
from interlace.models import BottomSpec
from interlace.party import Party

Index = NDArray[np.int64]
Labels = Literal["all", "overlap"]
Judge = Literal["test", "validation"]

APART = 20_240_711  # draws the people who are for testing and for choosing, the same for ever
SMALL = BottomSpec(network="mlp", hidden=(64,), width=32)
IMAGES = BottomSpec(network="resnet", hidden=(8, 16), width=32)


@dataclass(frozen=True, eq=False)
class Material:
    """A data set cut in two by columns; row i of every table is person i.

    Attributes:
        name: What the benchmark calls it.
        views: Each party's columns, the active party first.
        label: What is to be learnt.
        test: How many people are for testing.
        validation: How many are for choosing hyper-parameters; they are trained on when scored.
        overlaps: How many people both hold, in turn.
        unaligned: At most so many people at one party alone, a side.
        bottom: The network of every party.
        categories: Columns whose numbers are codes, by party.
        flip: For images, whether a mirrored one is still of its class; ``None`` for tables.
        labels: Whose label the active party knows: of ``all`` its people, or of the ``overlap``.
    """

    name: str
    views: Mapping[str, pl.DataFrame]
    label: pl.Series
    test: int
    validation: int
    overlaps: tuple[int, ...] = (32, 64, 128, 256, 512, 1024)
    unaligned: int = 1000
    bottom: BottomSpec = SMALL
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    flip: bool | None = None
    labels: Labels = "all"

    @property
    def dear(self) -> bool:
        """Whether training takes so long that methods are left out and epochs are few."""
        return self.bottom.network == "resnet"


@dataclass(frozen=True, eq=False)
class Draw:
    """One draw of people.

    Attributes:
        train: Everybody but those to be judged by.
        judged: Shared people whom the training does not see.
        truth: For each party the class number of every row of its table.
        unaligned: People at each party alone.
    """

    train: Federation
    judged: Federation
    truth: Mapping[str, Tensor]
    unaligned: int


def draw(material: Material, overlap: int, seed: int, judge: Judge) -> Draw:
    """Draw the people of one federation.

    Args:
        overlap: People whom both hold, to train on.
        seed: Draws them and those at one party alone, and seeds the training.
        judge: Whom the model is to be judged by: the people for testing, or those for validation,
            who are then not trained on either.

    Raises:
        JobError: the data do not have so many people.
    """
    people = parted(material)
    pool = people["pool"] if judge == "test" else np.setdiff1d(people["pool"], people["validation"])
    if overlap > len(pool):
        raise JobError(
            f"'{material.name}' has {len(pool):,} people to train on, so an overlap of "
            f"{overlap:,} cannot be drawn; its overlaps are {material.overlaps}"
        )
    rng = np.random.default_rng(seed)
    codes = material.label.rank("dense").to_numpy().astype(np.int64) - 1
    order = pool[in_proportion(codes[pool], rng)]
    each = min(material.unaligned, (len(order) - overlap) // 2)
    shared, rest = order[:overlap], order[overlap : overlap + 2 * each]
    judged = people[judge]
    parties, truth = [], {}
    for i, (name, view) in enumerate(material.views.items()):
        rows = rng.permutation(np.concatenate([shared, judged, rest[i::2]]))
        table = view[rows].with_columns(pl.Series("id", [f"P{row:07d}" for row in rows]))
        if i == 0:
            known = material.label.gather(rows)
            if material.labels == "overlap":
                apart = pl.Series(np.isin(rows, rest))
                known = pl.select(pl.when(~apart).then(known)).to_series()
            table = table.with_columns(known.alias("label"))
        truth[name] = torch.from_numpy(codes[rows])
        parties.append(
            Party(
                name,
                table,
                label="label" if i == 0 else None,
                categories=material.categories.get(name, ()),
            )
        )
    federation = Federation.simulate(parties, seed=seed, protocol="kkrt")
    ids = parties[0].frame["id"]
    held_out = np.flatnonzero(ids.is_in([f"P{row:07d}" for row in judged]).to_numpy())
    train = np.setdiff1d(np.arange(len(ids)), held_out)
    return Draw(federation.view(train, held_out), federation.view(held_out), truth, each)


def parted(material: Material) -> dict[str, Index]:
    """People by what they are for: ``test``, ``pool`` (the others), ``validation`` (of those)."""
    codes = material.label.rank("dense").to_numpy().astype(np.int64) - 1
    order = in_proportion(codes, np.random.default_rng(APART))
    first, second = material.test, material.test + material.validation
    return {"test": order[:first], "pool": order[first:], "validation": order[first:second]}


def in_proportion(codes: Index, rng: np.random.Generator) -> Index:
    """A random order every beginning of which has the classes in their shares."""
    place = np.empty(len(codes))
    for code in np.unique(codes):
        of = rng.permutation(np.flatnonzero(codes == code))
        place[of] = (np.arange(len(of)) + rng.random(len(of))) / len(of)
    return np.argsort(place, kind="stable")


# --- the data sets -----------------------------------------------------------------------------


def credit(folder: Path | None) -> Material:
    """UCI credit card clients: a bank knows who they are and who defaulted, another party their
    history of bills and payments."""
    frame = pl.read_csv(
        _file(folder, "uci_credit_card", "UCI_Credit_Card.csv"), infer_schema_length=None
    )
    bank = ["LIMIT_BAL", "SEX", "EDUCATION", "MARRIAGE", "AGE"]
    label = "default.payment.next.month"
    return Material(
        "credit",
        {"bank": frame.select(bank), "history": frame.drop("ID", label, *bank)},
        frame[label],
        test=2000,
        validation=2000,
        categories={"bank": ("SEX", "EDUCATION", "MARRIAGE")},
    )


def caravan(folder: Path | None) -> Material:
    """Who buys caravan insurance: an insurer's products against where people live."""
    from interlace.data import datasets

    tables = datasets.caravan(shared=5822).tables
    insurer = tables["insurer"].sort("id")
    vendor = tables["vendor"].sort("id")
    return Material(
        "caravan",
        {"insurer": insurer.drop("id", "Purchase"), "vendor": vendor.drop("id")},
        insurer["Purchase"],
        test=1500,
        validation=1000,
    )


def breast(folder: Path | None) -> Material:
    """Is a tumour malignant: one clinic has mean measurements, the other errors and extremes."""
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    frame = pl.DataFrame(data.data, schema=[str(name) for name in data.feature_names])
    return Material(
        "breast",
        {"clinic": frame[:, :10], "laboratory": frame[:, 10:]},
        pl.Series("benign", data.target),
        test=170,
        validation=80,
        overlaps=(32, 64, 128, 256),
    )


def vehicle(folder: Path | None) -> Material:
    """Which of four vehicles is it, by nine measures of its silhouette at each of two parties."""
    guest = pl.read_csv(_file(folder, "vehicle", "vehicle_scale_hetero_guest.csv"))
    host = pl.read_csv(_file(folder, "vehicle", "vehicle_scale_hetero_host.csv"))
    both = guest.join(host, on="id", suffix="_host", maintain_order="left")
    mine = [c for c in guest.columns if c not in ("id", "y")]
    return Material(
        "vehicle",
        {"guest": both.select(mine), "host": both.drop("id", "y", *mine)},
        both["y"],
        test=250,
        validation=120,
        overlaps=(32, 64, 128, 256),
    )


def digits(folder: Path | None) -> Material:
    """Which digit is it: the left and the right half of 8x8 images."""
    from sklearn.datasets import load_digits

    data = load_digits()
    return Material(
        "digits",
        _halves(data.images.astype(np.uint8)),
        pl.Series("digit", data.target),
        test=450,
        validation=250,
        overlaps=(32, 64, 128, 256, 512),
        flip=False,
    )


def pneumonia(folder: Path | None) -> Material:
    """Pneumonia or not, by the left and the right half of a chest X-ray of 28x28."""
    with np.load(_file(folder, "pneumonia", "pneumoniamnist.npz"), allow_pickle=False) as data:
        parts = ("train", "val", "test")
        images = np.concatenate([data[f"{part}_images"] for part in parts])
        label = np.concatenate([data[f"{part}_labels"][:, 0] for part in parts])
    return Material(
        "pneumonia",
        _halves(images),
        pl.Series("pneumonia", label),
        test=700,
        validation=400,
        overlaps=(64, 256),
        bottom=IMAGES,
        flip=False,
    )


def cifar(folder: Path | None) -> Material:
    """Which of ten things is it: halves of CIFAR-10's images, a subset of 10,000."""
    from PIL import Image

    frame = pl.read_parquet(_file(folder, "cifar10", "cifar10_train.parquet")).head(10_000)
    images = np.stack([np.asarray(Image.open(BytesIO(jpeg))) for jpeg in frame["jpeg"]])
    return Material(
        "cifar10",
        _halves(images),
        frame["label"].cast(pl.Int64),
        test=2000,
        validation=1000,
        overlaps=(64, 256),
        bottom=IMAGES,
        flip=True,
    )


def _halves(images: NDArray[np.uint8]) -> dict[str, pl.DataFrame]:
    middle = images.shape[2] // 2
    halves = {"left": images[:, :, :middle], "right": images[:, :, middle:]}
    return {
        name: pl.DataFrame([pl.Series("image", np.ascontiguousarray(half))])
        for name, half in halves.items()
    }


def _file(folder: Path | None, *path: str) -> Path:
    """A file of the data folder.

    Raises:
        DataError: there is no folder, or it lacks the file.
    """
    if folder is None:
        raise DataError(
            f"{'/'.join(path)} does not install with interlace",
            way_out="Say by --data (or INTERLACE_DATA) in which folder it lies.",
        )
    file = folder.joinpath(*path)
    if not file.is_file():
        raise DataError("there is no such file", file=str(file), way_out="Check --data.")
    return file


_MAKERS: dict[str, Callable[[Path | None], Material]] = {
    "breast": breast,
    "vehicle": vehicle,
    "caravan": caravan,
    "credit": credit,
    "digits": digits,
    "pneumonia": pneumonia,
    "cifar10": cifar,
}
FEW = "-few-labels"  # ends the name of the same data where only shared people have a label
NAMES = (*_MAKERS, *(name + FEW for name in _MAKERS))


@cache
def material(name: str, folder: Path | None) -> Material:
    """A data set by its name.

    Raises:
        JobError: no data set has that name.
        DataError: it is not there.
    """
    plain = name.removesuffix(FEW)
    if plain not in _MAKERS:
        raise JobError(f"there is no data set '{name}'; there are: {', '.join(NAMES)}")
    made = _MAKERS[plain](folder)
    return made if plain == name else replace(made, name=name, labels="overlap")
