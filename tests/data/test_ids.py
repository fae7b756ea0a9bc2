"""Ids to keys: exact, unambiguous, and nothing handled silently."""

from __future__ import annotations

from datetime import date
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from interlace.data.ids import IdRule, Keys, keys_of, make_keys, notes_once_matched
from interlace.errors import DataError

TEXT = st.text(alphabet="aA0 1:é\t2", max_size=5)


def keys(values: Any, **rule: Any) -> Keys:
    frame = pl.DataFrame({"id": values})
    return make_keys(frame, IdRule(columns=["id"], **rule), party="bank", file="f.csv")


def test_integers_and_the_text_that_spells_them_are_one_key() -> None:
    as_text = keys(["7", "-12", "123"]).values
    assert as_text == [b"7", b"-12", b"123"]
    assert keys([7, -12, 123]).values == as_text
    assert keys(np.array([7.0, -12.0, 123.0])).values == as_text
    assert keys(pl.Series([7, -12, 123], dtype=pl.Decimal(10, 2))).values == as_text
    assert keys(pl.Series(["7", "-12", "123"], dtype=pl.Categorical)).values == as_text
    assert keys([date(2020, 1, 2)]).values == keys(["2020-01-02"]).values
    assert keys([2**64 - 1]).values == [b"18446744073709551615"]


def test_single_ids_have_the_keys_that_a_table_of_them_has() -> None:
    frame = pl.DataFrame({"land": ["a ", "B", "a "], "number": [7, 12, 7]})
    rule = IdRule(columns=["land", "number"], strip=True, case="lower", duplicates="first")
    found = keys_of(frame, rule, party="bank")
    assert found == [b"1:a1:7", b"1:b2:12", b"1:a1:7"]
    assert found[:2] == make_keys(frame, rule, party="bank").values


def test_gaps_turn_integers_into_floats_and_still_match() -> None:
    found = keys([1.0, None, float("nan"), 3.0], blanks="drop")
    assert found.values == [b"1", b"3"]
    assert found.rows.tolist() == [0, 3]
    assert found.rows.dtype == np.int64


def test_leading_zeros_are_kept_and_reported_until_the_rule_says_otherwise() -> None:
    kept = keys(["00123", "123", "0", "00A"])
    assert kept.values == [b"00123", b"123", b"0", b"00A"]
    assert kept.report.with_leading_zeros == 1
    assert kept.report.would_merge_without_zeros == 1
    assert any("zeros: strip" in note for note in kept.report.notes)
    stripped = keys(["00123", "000", "00A"], zeros="strip")
    assert stripped.values == [b"123", b"0", b"00A"]
    assert any("were removed" in note for note in stripped.report.notes)
    with pytest.raises(DataError, match="1 of 2 rows repeat"):
        keys(["00123", "123"], zeros="strip")


def test_a_form_that_matched_ids_have_keeps_nobody_apart() -> None:
    frame = pl.DataFrame({"id": ["001", "02", "3", "4.0"]})
    rule = IdRule(columns=["id"])
    report = make_keys(frame, rule, party="bank").report
    assert set(report.forms) == {"zeros", "decimals"}
    assert notes_once_matched(report, rule, frame[[0, 2]]) == [report.forms["decimals"]]
    assert notes_once_matched(report, rule, frame[[2]]) == report.notes
    assert notes_once_matched(report, rule, frame[:0]) == report.notes


def test_surrounding_blanks() -> None:
    kept = keys([" a", "a", "b\t"])
    assert (kept.values, kept.report.with_surrounding_blanks) == ([b" a", b"a", b"b\t"], 2)
    assert kept.report.would_merge_without_blanks == 1
    assert any("strip: true" in note for note in kept.report.notes)
    assert keys([" a", "b\t"], strip=True).values == [b"a", b"b"]


def test_letter_case() -> None:
    kept = keys(["Ab", "ab", "cd"])
    assert (kept.report.mixed_case, kept.report.would_merge_without_case) == (1, 1)
    assert any("case: lower" in note for note in kept.report.notes)
    lowered = keys(["AB", "cd"], case="lower")
    assert lowered.values == [b"ab", b"cd"]
    assert any("made small" in note for note in lowered.report.notes)
    assert keys(["AB", "CD"]).report.notes == []


@pytest.mark.parametrize(
    ("duplicates", "rows"), [("first", [0, 1, 3]), ("drop", [1, 3])], ids=["first", "drop"]
)
def test_duplicates_as_the_rule_says(duplicates: str, rows: list[int]) -> None:
    found = keys(["a", "b", "a", "c", "a"], duplicates=duplicates)
    assert found.rows.tolist() == rows
    assert (found.report.duplicates, found.report.kept) == (2, len(rows))
    assert f"left out: {5 - len(rows)} rows" in found.report.notes[0]


@pytest.mark.parametrize(
    ("values", "rule", "said"),
    [
        (["a", "a", "b"], {}, "1 of 3 rows repeat the id"),
        (["a", None, "", "  "], {}, "3 of 4 rows have no id"),
        ([None, " "], {"blanks": "drop"}, "no row is left"),
        (["a", "a"], {"duplicates": "drop"}, "no row is left"),
        ([1.5, 2.0], {}, "1 ids are fractions"),
        ([1e300], {}, "1 ids are fractions"),
        ([[1], [2]], {}, "cannot name people"),
        ([b"x"], {}, "cannot name people"),
    ],
)
def test_ids_that_cannot_be_keys_are_refused(values: Any, rule: Any, said: str) -> None:
    with pytest.raises(DataError, match=said) as caught:
        keys(values, **rule)
    assert (caught.value.party, caught.value.file, caught.value.column) == ("bank", "f.csv", "id")
    assert caught.value.way_out


@pytest.mark.parametrize(
    ("values", "line"),
    [
        (["a", "a"], "`id: {columns: [cust no, 'b:'], case: lower, duplicates: first}`"),
        (["a", None], "`id: {columns: [cust no, 'b:'], case: lower, blanks: drop}`"),
        (["a", "b "], "`id: {columns: [cust no, 'b:'], case: lower, strip: true}`"),
        (["1", "02"], "`id: {columns: [cust no, 'b:'], case: lower, zeros: strip}`"),
    ],
)
def test_what_to_set_can_be_copied(values: list[Any], line: str) -> None:
    """The line is YAML and holds the party's own rule, with one option more."""
    rule = IdRule(columns=["cust no", "b:"], case="lower")
    frame = pl.DataFrame({"cust no": values, "b:": ["x"] * len(values)})
    try:
        said = " ".join(make_keys(frame, rule, party="bank").report.notes)
    except DataError as e:
        said = str(e)
    assert line in said
    copied = yaml.safe_load(said.split("`")[1])
    assert IdRule.model_validate(copied["id"]).columns == rule.columns


def test_one_column_needs_no_brackets() -> None:
    assert IdRule.model_validate({"columns": "cust_no"}) == IdRule(columns=["cust_no"])


def test_a_rule_that_names_no_column_of_the_table() -> None:
    with pytest.raises(DataError, match="Did you mean 'person'"):
        make_keys(pl.DataFrame({"person": [1]}), IdRule(columns=["persn"]), party="bank")


def test_no_id_stands_in_a_report_or_error() -> None:
    with pytest.raises(DataError) as caught:
        keys(["secret1", "secret1"])
    assert "secret" not in str(caught.value)
    found = keys(["secret1", " SECRET2", "secret3"])
    assert "secret" not in found.report.model_dump_json().lower()


def test_id_columns_may_have_any_name() -> None:
    names = ["key", "row", "blank", "id0"]
    frame = pl.DataFrame({name: ["a", "b"] for name in names})
    found = make_keys(frame, IdRule(columns=names), party="bank")
    assert found.values == [b"1:a" * 4, b"1:b" * 4]


@given(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=20, unique=True))
def test_keys_of_several_columns_never_collide(pairs: list[tuple[str, str]]) -> None:
    pairs = [p for p in pairs if all(part.strip() for part in p)]
    frame = pl.DataFrame(pairs, schema={"a": pl.String, "b": pl.String}, orient="row")
    if not pairs:
        return
    found = make_keys(frame, IdRule(columns=["a", "b"]), party="bank")
    assert len(set(found.values)) == len(pairs)
    assert found.rows.tolist() == list(range(len(pairs)))


@given(
    st.lists(st.one_of(st.none(), TEXT), min_size=1, max_size=20),
    st.booleans(),
    st.sampled_from(["keep", "lower"]),
    st.sampled_from(["keep", "strip"]),
    st.sampled_from(["first", "drop"]),
)
def test_every_row_is_kept_or_counted(
    values: list[str | None], strip: bool, case: str, zeros: str, duplicates: str
) -> None:
    rule = {"strip": strip, "case": case, "zeros": zeros, "duplicates": duplicates}

    def canonical(text: str) -> str:
        text = text.strip() if strip else text
        text = text.lower() if case == "lower" else text
        return str(int(text)) if zeros == "strip" and text.isascii() and text.isdigit() else text

    expected: dict[str, list[int]] = {}
    for row, value in enumerate(values):
        if value is not None and value.strip():
            expected.setdefault(canonical(value), []).append(row)
    kept = {k: r[0] for k, r in expected.items() if duplicates == "first" or len(r) == 1}
    frame = pl.DataFrame({"id": pl.Series(values, dtype=pl.String)})
    if not kept:
        with pytest.raises(DataError, match="no row is left"):
            make_keys(frame, IdRule(columns=["id"], blanks="drop", **rule), party="p")  # type: ignore[arg-type]
        return
    found = make_keys(frame, IdRule(columns=["id"], blanks="drop", **rule), party="p")  # type: ignore[arg-type]
    assert {v.decode(): r for v, r in zip(found.values, found.rows.tolist(), strict=True)} == kept
    report = found.report
    assert report.blanks + report.duplicates + len(expected) == report.rows == len(values)
    assert report.kept == len(kept)
