"""Values written to files, and records read from them."""

import json
from pathlib import Path
from typing import Any

from simulate.profiles.profile import Profile, save_profile
from simulate.validation.predicted_vs_measured import SCHEMA as VALIDATION
from simulate.validation.predicted_vs_measured import check_validation
from treeopt.api.result_record import Record, Validation
from treeopt.comparison.compare_drafters import Comparison
from treeopt.errors import TreeError, UsageError
from treeopt.notebook.record_summaries import RECORDS
from treeopt.plans.plan import Plan
from treeopt.plans.plan_json import save_plan
from treeopt.results.comparison import comparison_record
from treeopt.storage.atomic_files import why, write_text
from treeopt.storage.json_records import RecordError, parse
from treeopt.storage.user_files import read_text
from treeopt.traces.trace import Trace, save_trace
from treeopt.tree import Tree


def save_value(value: Any, path: Path | str) -> None:
    """Write a value to a file, whole or not at all: a trace as .npz, a tree as its rank paths, the rest as records.

    Raises:
        TraceError, TreeError: a value that its file cannot hold.
        OSError: the file cannot be written.
    """
    path = Path(path)
    if isinstance(value, Trace):
        save_trace(value, path)
    elif isinstance(value, Plan):
        save_plan(value, path)
    elif isinstance(value, Profile):
        save_profile(value, path)
    elif isinstance(value, Tree):
        if not value.nodes:
            raise TreeError("a tree without nodes has no file: it means that nothing is drafted")
        write_text(path, json.dumps(value.paths) + "\n")
    else:
        record = comparison_record(value) if isinstance(value, Comparison) else value
        write_text(path, json.dumps(record, indent=1) + "\n")


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
    record = _parsed(Path(path), VALIDATION)
    try:
        check_validation(record)
    except RecordError as error:
        raise UsageError(f"{path}: {error}") from error
    return Validation(record)


def load_record(path: Path | str) -> Record:
    """Read what `simulate`, `whatif`, `compare` or `validate` wrote with `--output`.

    Raises:
        UsageError: the file cannot be read, or is no such record; names file and field.

    Examples:
        >>> import treeopt
        >>> type(treeopt.load_record("data/validations/medusa-cpu.json")).__name__
        'Validation'
    """
    record = _parsed(Path(path), VALIDATION, *RECORDS)
    return load_validation(path) if record["schema"] == VALIDATION else Record(record)


def _parsed(path: Path, *schemas: str) -> dict[str, Any]:
    try:
        return parse(read_text(path), *schemas)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {why(error)}") from error
    except RecordError as error:
        raise UsageError(f"{path}: {error}") from error
