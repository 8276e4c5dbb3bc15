"""What the methods of values do: tables, charts, files; and records read from files."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treeopt.errors import UsageError
from treeopt.results.kinds import RESULTS, Record, ResultKind, Validation, kind_of_schema, known
from treeopt.storage.atomic_files import why, write_text
from treeopt.storage.json_records import RecordError, parse
from treeopt.storage.user_files import read_text

if TYPE_CHECKING:
    import altair as alt
    import pandas as pd
    from matplotlib.axes import Axes


def frame_of(value: Any) -> "pd.DataFrame":
    """Return the main table of a value."""
    kind, value = known(value)
    return kind.frame(value)


def plot_value(value: Any, ax: "Axes | None" = None, *, chart: str | None = None) -> "alt.LayerChart | Axes":
    """Return a chart of a value, or draw it into matplotlib's axes and return them; see `ValueMethods.plot`."""
    kind, shown = known(value)
    if ax is None:
        drawn: alt.LayerChart = kind.drawn(shown, chart)
        return drawn
    from treeopt.charts.matplotlib_axes import DRAWN

    if not hasattr(ax, "set_xlabel"):
        raise UsageError(f"ax must be matplotlib's axes, got {ax!r:.40}: name a chart as chart=...")
    name = chart or next(iter(kind.charts), "")
    if (kind.name, name) not in DRAWN:
        raise UsageError("only the charts speedup and tau are drawn into axes: leave ax out for altair's chart")
    DRAWN[kind.name, name](ax, shown)
    return ax


def save_value(value: Any, path: Path | str) -> None:
    """Write a value to a file, whole or not at all: a trace as .npz, a tree as its rank paths, the rest as records.

    Raises:
        TraceError, TreeError: a value that its file cannot hold.
        OSError: the file cannot be written.
    """
    if isinstance(value, Mapping):
        write_text(Path(path), json.dumps(value, indent=1) + "\n")
        return
    kind, value = known(value)
    kind.save(value, Path(path))


def load_validation(path: Path | str) -> Validation:
    """Read and check what `treeopt validate --output` or `save` of a validation wrote.

    Raises:
        UsageError: the file cannot be read, or is no validation; names file and field.

    Examples:
        >>> import treeopt
        >>> validation = treeopt.load_validation("data/validations/medusa-cpu.json")
        >>> f"{validation['mean_error']:.1%} of {len(validation.frame())} cells"
        '2.6% of 31 cells'
    """
    validation: Validation = _read(Path(path), (RESULTS["validation"],))
    return validation


def load_record(path: Path | str) -> Record:
    """Read what `simulate`, `whatif`, `compare` or `validate` wrote with `--output`.

    Raises:
        UsageError: the file cannot be read, or is no such record; names file and field.

    Examples:
        >>> import treeopt
        >>> type(treeopt.load_record("data/validations/medusa-cpu.json")).__name__
        'Validation'
    """
    record: Record = _read(Path(path), [kind for kind in RESULTS.values() if kind.schemas and not kind.read])
    return record


def _read(path: Path, kinds: Iterable[ResultKind]) -> Any:
    """Return the value of a JSON file of one of these kinds."""
    try:
        record = parse(read_text(path), *(schema for kind in kinds for schema in kind.schemas))
        return kind_of_schema(record["schema"]).of_record(record)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {why(error)}") from error
    except RecordError as error:
        raise UsageError(f"{path}: {error}") from error
