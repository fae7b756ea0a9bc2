"""What a table of cells says: means, who beats whom beyond the interval, what is advised."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from interlace.bench.cells import SCHEMA
from interlace.bench.page import within, write_page
from interlace.bench.summary import ORDER, advice, leading, lines, verdicts


def cells(overlap: int = 64, **utilities: list[float]) -> pl.DataFrame:
    """Cells of the breast data with so many seeds as there are values."""
    rows = [
        {
            "data": "breast",
            "overlap": overlap,
            "seed": seed,
            "method": method,
            "unaligned": 100,
            "measure": "auc",
            "utility": value,
            "rounds": 3,
            "messages": 6,
            "bytes": 0 if method == "active_alone" else 1000 * (seed + 1),
            "seconds": 0.5,
        }
        for method, values in utilities.items()
        for seed, value in enumerate(values)
    ]
    return pl.DataFrame(rows, schema=SCHEMA)


def test_a_line_is_a_mean_over_seeds_and_says_how_right_kept_rows_were() -> None:
    some = cells(fedcvt=[0.8, 0.9]).with_columns(choice=100, kept=50, known=40, right=30)
    (line,) = lines(some)
    assert line.utility is not None
    assert line.utility.mean == pytest.approx(0.85)
    assert (line.bytes, line.seeds, line.kept, line.choice) == (1500, 2, 50, 100)
    assert line.precision == 0.75


def test_a_method_that_cannot_be_fitted_keeps_its_line_with_the_reason() -> None:
    some = cells(one_shot=[0.0]).with_columns(utility=pl.lit(None), failed=pl.lit("too few"))
    (line,) = lines(some)
    assert (line.utility, line.failed) == (None, "too few")
    assert not verdicts(some.filter(pl.col("failed").is_null()))


def test_a_mean_over_fewer_draws_says_so_and_is_never_the_best(tmp_path: Path) -> None:
    some = cells(shared_only=[0.7] * 3, fedcvt=[0.8, 0.81, 0.82], transfer=[0.9, 0.9, 0.0])
    lost = (pl.col("method") == "transfer") & (pl.col("seed") == 2)
    some = some.with_columns(
        utility=pl.when(~lost).then("utility"), failed=pl.when(lost).then(pl.lit("too few"))
    )
    line = lines(some)[-1]
    assert (line.method, line.seeds, line.draws, line.failed) == ("transfer", 2, 3, "too few")
    assert within(line) == "0.900 ± 0.000 (2 of 3 draws)"
    assert verdicts(some)[0].best == advice(some, None)[0].best == "fedcvt"
    assert "(2 of 3 draws)" in write_page(some, tmp_path, "a command").read_text()
    assert (tmp_path / "limited-overlap.svg").read_text().count('class="dot') == 2


@pytest.mark.parametrize(
    ("best", "alone", "beats", "says"),
    [
        ([0.90, 0.91, 0.92], [0.80, 0.81, 0.83], True, "beyond the interval"),
        ([0.90, 0.91, 0.92], [0.89, 0.92, 0.90], False, "within the interval"),
        ([0.90, 0.91, 0.92], [0.95, 0.97, 0.98], False, "the active party alone, worse"),
    ],
)
def test_the_best_must_beat_both_beyond_the_interval(
    best: list[float], alone: list[float], beats: bool, says: str
) -> None:
    some = cells(
        shared_only=[0.7, 0.72, 0.71], active_alone=alone, few_shot=best, one_shot=[0.5, 0.5, 0.5]
    )
    (verdict,) = verdicts(some)
    assert verdict.best == "few_shot"
    assert verdict.beats_both is beats
    assert says in verdict.text


def test_a_gain_is_taken_seed_by_seed() -> None:
    some = cells(shared_only=[0.1, 0.5, 0.9], active_alone=[0.0, 0.4, 0.8], fedcvt=[0.2, 0.6, 1.0])
    assert verdicts(some)[0].beats_both, "the spread over seeds is common to all, so it cancels"


def test_what_is_advised_is_held_against_the_best_that_a_federation_can_run() -> None:
    some = cells(
        pooled=[1.0, 1.0], mean_imputation=[1.0, 1.0], one_shot=[0.8, 0.81], fedcvt=[0.82, 0.80]
    )
    (found,) = advice(some, None)
    assert found.best == "fedcvt"
    assert found.method in ORDER
    worse = cells(**{found.method: [0.5, 0.5]}, transfer=[0.82, 0.80])
    assert advice(worse, None)[0].within is False
    failed = pl.col("method") == found.method
    broken = worse.with_columns(
        utility=pl.when(~failed).then("utility"), failed=pl.when(failed).then(pl.lit("too few"))
    )
    assert advice(broken, None)[0].within is False, "what cannot be fitted is no good advice"
    assert advice(worse.filter(~failed), None)[0].within is None, "it was not run"


def test_methods_that_come_first_get_a_line_of_their_own(tmp_path: Path) -> None:
    some = pl.concat(
        cells(n, one_shot=[0.9, 0.9], fedcvt=[0.8, 0.8], transfer=[0.1, 0.1], shared_only=[1, 1])
        for n in (32, 64)
    )
    assert leading(some, 2) == ["one_shot", "fedcvt"]
    page = write_page(some, tmp_path, "a command").read_text()
    assert 'class="line method"' in page
    assert "a command" in page
    picture = (tmp_path / "limited-overlap.svg").read_text()
    assert picture.count('class="name"') == 1
    assert "breast" in picture
