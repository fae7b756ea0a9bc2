"""Reading a party's table, whatever holds it, into one polars DataFrame.

Ids read from text files stay text, and so do whole numbers of which one has a leading zero, so that
``00123`` keeps its zeros; every other column's type is inferred over the whole file, so that a late
``n/a`` cannot break a run at its last row. No error raised here repeats a value of the table.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO
from urllib.parse import unquote

import numpy as np
import polars as pl

from interlace.data.gaps import is_gap
from interlace.data.suggest import did_you_mean
from interlace.errors import DataError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

TEXT_FORMATS = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
ARROW_FORMATS = (".arrow", ".feather", ".ipc")
IMAGE_FORMATS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")


def read_table(
    source: Any,
    *,
    party: str,
    ids: Sequence[str] = (),
    columns: Sequence[str] | None = None,
) -> pl.DataFrame:
    """Read a table.

    Args:
        source: one of

            - a polars or pandas DataFrame, a pyarrow Table;
            - a NumPy array: two-dimensional (columns ``x0``, ``x1``, ...), structured (its fields),
              or with three or four dimensions (one column ``image``);
            - a mapping from column name to array; an array with more than one dimension becomes a
              column of arrays (images);
            - a path to ``.csv``, ``.tsv`` (both also ``.gz``), ``.parquet``, ``.arrow``,
              ``.feather`` or ``.ipc``;
            - ``duckdb:///data/my.db?table=t`` or ``duckdb:my.db?query=SELECT ...``, opened for
              reading only; the path is what stands between ``duckdb:`` (or ``duckdb://``) and
              ``?``;
            - ``sql:SELECT ...`` over anything that DuckDB can read;
            - a folder of images: column ``id`` is the file name without its extension, column
              ``image`` the encoded bytes.
        party: whose table this is, for the errors.
        ids: the id columns. They must be there, and are text when the source is a text file.
        columns: the other columns to keep; all when ``None``.

    Returns:
        The table, id columns first when ``columns`` is given, with at least one row.

    Raises:
        DataError: the source is missing, empty, of an unknown kind or not readable; a named column
            is not there; two columns have one name; arrays differ in length.
    """
    if isinstance(source, str | Path):
        frame, file = _read_named(str(source), party, ids)
    else:
        frame, file = _from_memory(source, party), None
    for name in (*ids, *(columns or ())):
        if name not in frame.columns:
            raise missing_column(name, frame.columns, party=party, file=file, is_id=name in ids)
    if frame.height == 0:
        raise DataError(
            "the table has no rows",
            party=party,
            file=file,
            way_out="Check that the file is complete and that the query selects someone.",
        )
    if columns is not None:
        frame = frame.select(list(dict.fromkeys((*ids, *columns))))
    return frame


def source_name(source: Any) -> str | None:
    """What errors and reports call a source, if it has a name: never a query, which may hold
    people's values or a password."""
    if not isinstance(source, str | Path):
        return None
    name = str(source)
    if name.startswith("sql:"):
        return "sql:..."
    return name.partition("?")[0] if name.startswith("duckdb:") else name


def missing_column(
    name: str,
    there: Sequence[str],
    *,
    party: str,
    file: str | None = None,
    is_id: bool = False,
) -> DataError:
    """The error for a column that a party file names and the table does not have."""
    return DataError(
        f"the table has no {'id ' if is_id else ''}column of this name",
        party=party,
        file=file,
        column=name,
        way_out=did_you_mean(name, there, what="columns"),
    )


# --- in memory ---------------------------------------------------------------------------------


def _from_memory(source: Any, party: str) -> pl.DataFrame:
    if isinstance(source, pl.DataFrame):
        return source
    if isinstance(source, np.ndarray):
        return _from_arrays(_named_arrays(source), party)
    if isinstance(source, Mapping):
        return _from_arrays(source, party)
    package = type(source).__module__.partition(".")[0]
    if package == "pandas":
        return _from_pandas(source, party)
    if package == "pyarrow":
        return _from_arrow(source, party, None)
    raise DataError(
        f"a table cannot be read from {type(source).__module__}.{type(source).__qualname__}",
        party=party,
        way_out="Give a polars, pandas or Arrow table, NumPy arrays by name, or a path.",
    )


def _named_arrays(array: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
    if array.dtype.names:
        return {name: array[name] for name in array.dtype.names}
    if array.ndim in (3, 4):
        return {"image": array}
    if array.ndim == 1:
        return {"x0": array}
    if array.ndim == 2:
        return {f"x{i}": array[:, i] for i in range(array.shape[1])}
    return {}


def _from_arrays(arrays: Mapping[str, Any], party: str) -> pl.DataFrame:
    lengths = {name: len(values) for name, values in arrays.items() if np.ndim(values) > 0}
    if not lengths or len(lengths) < len(arrays):
        raise DataError(
            "an array with one to four dimensions is needed for each column",
            party=party,
            way_out="Rows run along the first dimension.",
        )
    if len(set(lengths.values())) > 1:
        longest = max(lengths.values())
        short = next(name for name, n in lengths.items() if n != longest)
        raise DataError(
            f"it has {lengths[short]} rows while another column has {longest}",
            party=party,
            column=short,
            way_out="Every column needs one value a row.",
        )
    series = []
    for name, values in arrays.items():
        try:
            series.append(pl.Series(str(name), values))
        except Exception:  # polars raises many types here, and their texts repeat values
            raise _mixed_types(str(name), party) from None
        if series[-1].dtype == pl.Object:
            raise _mixed_types(str(name), party)
    return pl.DataFrame(series)


def _from_pandas(source: pd.DataFrame, party: str) -> pl.DataFrame:
    names = [str(name) for name in source.columns]
    _refuse_repeated(names, party, None)
    try:
        return pl.from_pandas(source).rename(dict(zip(source.columns, names, strict=True)))
    except Exception:  # polars and Arrow raise many types here, and their texts repeat values
        for column, name in zip(source.columns, names, strict=True):
            try:
                pl.from_pandas(source[[column]])
            except Exception:
                raise _mixed_types(name, party) from None
        raise


def _from_arrow(table: pa.Table, party: str, file: str | None) -> pl.DataFrame:
    _refuse_repeated(table.column_names, party, file)
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame


def _mixed_types(column: str, party: str) -> DataError:
    return DataError(
        "its values have more than one type",
        party=party,
        column=column,
        way_out="Convert the column to one type, for instance to text.",
    )


def _refuse_repeated(names: Sequence[str], party: str, file: str | None) -> None:
    for i, name in enumerate(names):
        if name in names[:i]:
            raise DataError(
                "two columns have this name",
                party=party,
                file=file,
                column=name,
                way_out="Rename or remove one of them.",
            )


# --- by name -----------------------------------------------------------------------------------


def _read_named(source: str, party: str, ids: Sequence[str]) -> tuple[pl.DataFrame, str]:
    """The table, and the name that errors give it."""
    if source.startswith("sql:"):
        return _query(source.removeprefix("sql:"), None, party, "sql:..."), "sql:..."
    if source.startswith("duckdb:"):
        return _read_duckdb(source, party)
    path = Path(source).expanduser()
    name = path.name.lower()
    if not path.exists():
        siblings = sorted(p.name for p in path.parent.iterdir()) if path.parent.is_dir() else []
        raise DataError(
            "there is no such file",
            party=party,
            file=source,
            way_out=did_you_mean(path.name, siblings, what="files"),
        )
    try:
        if path.is_dir():
            return _read_images(path, party), source
        if name.endswith(TEXT_FORMATS):
            return _read_text(path, party, source, ids), source
        if name.endswith(".parquet"):
            return pl.read_parquet(path), source
        if name.endswith(ARROW_FORMATS):
            return pl.read_ipc(path), source
    except (pl.exceptions.PolarsError, OSError, EOFError, UnicodeError) as error:
        # The cause is not chained: texts of the readers repeat values of the table.
        raise DataError(
            f"the file cannot be read ({type(error).__name__})",
            party=party,
            file=source,
            way_out=_diagnose(path, name, error),
        ) from None
    raise DataError(
        f"tables with the extension '{path.suffix}' are not known",
        party=party,
        file=source,
        way_out="Known are .csv, .csv.gz, .tsv, .parquet, .arrow, .feather, .ipc, a folder of "
        "images, duckdb:FILE?table=NAME and sql:SELECT ...",
    )


def _open_text(path: Path) -> TextIO:
    if path.name.lower().endswith(".gz"):
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _separator(path: Path, header: str) -> str:
    if ".tsv" in path.name.lower():
        return "\t"
    # A ".csv" without a comma in its header is one of the other customs, or has a single column.
    return next((mark for mark in (",", ";", "\t", "|") if mark in header), ",")


def _read_text(path: Path, party: str, file: str, ids: Sequence[str]) -> pl.DataFrame:
    with _open_text(path) as text:
        first = text.readline()
        separator = _separator(path, first)
        text.seek(0)
        header = next(csv.reader(text, delimiter=separator), [])
    _refuse_repeated(header, party, file)
    types = pl.scan_csv(
        path,
        separator=separator,
        infer_schema_length=None,
        schema_overrides={name: pl.String for name in ids if name in header},
    ).collect_schema()
    # Whole numbers are read as text first: a leading zero, which marks a code (a postcode, an
    # account), is lost in a number.
    whole = [name for name, dtype in types.items() if dtype.is_integer()]
    frame = pl.read_csv(
        path, separator=separator, schema={**types, **dict.fromkeys(whole, pl.String)}
    )
    numbers = [name for name in whole if not frame[name].str.contains(r"^0[0-9]").any()]
    frame = frame.with_columns(pl.col(name).cast(types[name], strict=False) for name in numbers)
    return _decimal_commas(frame, ids, proven=separator != ",")


# Neither thousands, whose groups have three digits, nor two items of a list.
_PROOF = r"^[+-]?(\d{4,},\d+|\d+,0\d|\d+,0\d{3,})$"


def _decimal_commas(frame: pl.DataFrame, ids: Sequence[str], *, proven: bool) -> pl.DataFrame:
    """Where fields are not separated by commas, ``0,5`` is a number as much of Europe writes it; in
    quotes between commas it is one if another value of the column, as ``2442,1`` or ``1,05``,
    proves that its commas part neither thousands nor items of a list.

    Value by value, so that one which is no number leaves the others readable. A column in which a
    value has several commas, or a point after one, is left: they part thousands, or the items of a
    list. Points may part thousands too, as ``1.234,5`` or ``1.234.567`` in the column proves; where
    none does, or another value has a point that cannot, ``1.234`` could be either number, and the
    column is left.
    """
    read = []
    for series in frame:
        if series.dtype != pl.String or series.name in ids:
            continue
        text = series.str.strip_chars()
        if not text.str.contains(r"^[+-]?\d+,\d+$").any():
            continue
        if text.str.contains(r"^[+-]?\d+((,\d+){2,}|(,\d{3})+\.\d+)$").any():
            continue
        if not (proven or text.str.contains(_PROOF).any()):
            continue
        grouped = text.str.contains(r"^[+-]?[1-9]\d{0,2}(\.\d{3})+(,\d+)?$").fill_null(False)
        if grouped.any():
            proven = text.filter(grouped).str.contains(r"\.\d{3}[.,]").any()
            if not proven or text.filter(~grouped).str.contains(r"^[+-]?\d+\.\d+$").any():
                continue
            text = text.str.replace_all(".", "", literal=True).zip_with(grouped, text)
        spelt = text.str.replace(r"^([+-]?\d+),(\d+)$", "$1.$2")
        numbers = spelt.cast(pl.Float64, strict=False)
        whole = (numbers.is_not_null() | is_gap(spelt)).all()
        read.append(numbers if whole else spelt)
    return frame.with_columns(read)


def _diagnose(path: Path, name: str, error: Exception) -> str:
    """What to do about a file that its reader refused."""
    if isinstance(error, PermissionError):
        return "Let this user read it."
    if not name.endswith(TEXT_FORMATS):
        return f"Check that it is a complete {path.suffix} file."
    if path.stat().st_size == 0:
        return "The file is empty."
    try:
        with _open_text(path) as text:
            separator = _separator(path, text.readline())
            text.seek(0)
            rows = _numbered_rows(text, separator)
            width = len(next(rows)[1])
            for line, row in rows:
                if len(row) > width:
                    return f"Line {line} has {len(row)} fields and the header {width}."
    except UnicodeError:
        return "Its text is not in UTF-8: save it again in that encoding."
    except (OSError, EOFError, csv.Error, StopIteration):
        return "The file is damaged or cut off."
    return "Check its quotes and its separator."


def _numbered_rows(text: TextIO, separator: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(text, delimiter=separator)
    for row in reader:
        yield reader.line_num, row


def _read_duckdb(source: str, party: str) -> tuple[pl.DataFrame, str]:
    place, _, asked = source.removeprefix("duckdb:").partition("?")
    path = place.removeprefix("//")
    path = path if Path(path).is_file() else unquote(path)
    key, _, value = asked.partition("=")
    if not path or key not in ("table", "query") or not value:
        raise DataError(
            "a DuckDB source needs a path and either a table or a query",
            party=party,
            file=source.partition("?")[0],
            way_out="Write duckdb:///data/my.db?table=NAME, or ?query=SELECT ... after the path.",
        )
    if not Path(path).is_file():
        folder = Path(path).parent
        siblings = sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []
        raise DataError(
            "there is no such file",
            party=party,
            file=path,
            way_out=did_you_mean(Path(path).name, siblings, what="files"),
        )
    if key == "query":  # as it stands: in SQL a plus adds and a percent sign is a wildcard
        return _query(value, path, party, path), path
    table = ".".join(f'"{part}"' for part in unquote(value).replace('"', '""').split("."))
    return _query(f"SELECT * FROM {table}", path, party, path), path


def _query(query: str, database: str | None, party: str, file: str) -> pl.DataFrame:
    try:
        import duckdb
    except ImportError:
        raise DataError(
            "SQL needs DuckDB",
            party=party,
            file=file,
            way_out="Install it with `pip install 'interlace[sql]'`.",
        ) from None
    try:
        with duckdb.connect(database or ":memory:", read_only=database is not None) as connection:
            relation = connection.sql(query)
            if relation is None:
                raise DataError(
                    "the query selects nothing", party=party, file=file, way_out="Use a SELECT."
                )
            table = relation.to_arrow_table()
    except duckdb.Error as error:
        # These three speak of names in the query; the other texts may repeat values.
        speaks = isinstance(
            error, duckdb.CatalogException | duckdb.ParserException | duckdb.BinderException
        )
        raise DataError(
            f"DuckDB refused the query ({type(error).__name__})",
            party=party,
            file=file,
            way_out=" ".join(str(error).split("\n\n")[0].split()) if speaks else "Check the query.",
        ) from None
    return _from_arrow(table, party, file)


def _read_images(folder: Path, party: str) -> pl.DataFrame:
    files = sorted(p for p in folder.rglob("*") if p.suffix.lower() in IMAGE_FORMATS)
    if not files:
        raise DataError(
            "the folder holds no images",
            party=party,
            file=str(folder),
            way_out=f"Known are {', '.join(IMAGE_FORMATS)}.",
        )
    return pl.DataFrame(
        {"id": [p.stem for p in files], "image": [p.read_bytes() for p in files]},
        schema={"id": pl.String, "image": pl.Binary},
    )
