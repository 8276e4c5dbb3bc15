"""Rows as pandas tables, and tables as CSV and Parquet files, whole or not at all. Parquet needs pyarrow."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treeopt.errors import UsageError
from treeopt.storage.provenance import this_run
from treeopt.storage.user_files import whole

if TYPE_CHECKING:
    import pandas as pd

PARQUET = ".parquet"
ENDINGS = (".csv", PARQUET)


def table_of(rows: Sequence[Mapping[str, Any]]) -> "pd.DataFrame":
    """Return rows as a table whose columns have one type: missing numbers are NaN, missing truth values <NA>.

    >>> table_of([{"x": None, "kept": True}, {"x": None, "kept": None}]).dtypes.astype(str).to_dict()
    {'x': 'float64', 'kept': 'boolean'}
    """
    import pandas as pd

    frame = pd.DataFrame(list(rows))
    for name in filter(lambda name: pd.api.types.is_object_dtype(frame[name]), frame.columns):
        known = frame[name].dropna()
        if known.empty:
            frame[name] = frame[name].astype("float64")
        elif known.map(lambda value: isinstance(value, bool)).all():
            frame[name] = frame[name].astype("boolean")
    return frame


def check_table_file(path: Path) -> None:
    """Check before any work that a table can be written to a file of this name.

    Raises:
        UsageError: another ending.
        ModuleNotFoundError: pyarrow, which writes Parquet, is not installed.
    """
    if path.suffix.lower() not in ENDINGS:
        raise UsageError(f"{path}: a table's file ends in {' or '.join(ENDINGS)}")
    if path.suffix.lower() == PARQUET:
        import_module("pyarrow")


def save_table(frame: "pd.DataFrame", path: Path) -> None:
    """Write a table without its index: Parquet with its provenance in `attrs`, or CSV with every digit.

    Raises:
        UsageError, ModuleNotFoundError: see `check_table_file`.
        OSError: the file cannot be written.
    """
    check_table_file(path)
    with whole(path) as temporary:
        if path.suffix.lower() == PARQUET:
            kept = frame.copy(deep=False)
            kept.attrs = {"provenance": this_run()}
            kept.to_parquet(temporary, engine="pyarrow", index=False)
        else:
            frame.to_csv(temporary, index=False, lineterminator="\n")
