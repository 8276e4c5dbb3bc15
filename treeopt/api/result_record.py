"""Results as the JSON values that `--json` prints, with their main table as a DataFrame."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from treeopt.storage.table_files import table_of
from treeopt.value_methods import ValueMethods

if TYPE_CHECKING:
    import pandas as pd

TABLES = ("cells", "ways")  # keys of the rows of a record's main table, the first that it has
NESTED = ("grown", "tree")  # fields that are an object or null
TRANSPARENT = ("figures_",)  # a key of the format whose name says nothing in a column


class Record(ValueMethods, dict[str, Any]):
    """The result of `simulate`, `whatif` or `validate`, or their file: the JSON values that `--json` prints."""

    def frame(self) -> "pd.DataFrame":
        """Return the main table, one row per configuration; `tau` has its interval in `tau_low` and `tau_high`.

        Names end in their unit: `_s` is seconds, but `tokens_s`, `requests_s` and `goodput_s` are rates per second.
        `tree_nodes` counts drafted nodes. Lists, such as the paths of a tree, stay in the record.

        >>> tau = {"value": 2.0, "low": 1.9, "high": 2.1}
        >>> Record(ways=[{"name": "tree", "tau": tau, "tree": {"paths": [[0], [1]]}}]).frame().iloc[0].to_dict()
        {'name': 'tree', 'tau': 2.0, 'tau_low': 1.9, 'tau_high': 2.1, 'tree_nodes': 2}
        """
        rows: list[dict[str, Any]] = next((self[key] for key in TABLES if key in self), [])
        if "contests" in self:
            rows = [_standing(contest, standing) for contest in self["contests"] for standing in contest["standings"]]
        return table_of([_flat(row) for row in rows])


class Validation(Record):
    """The result of `validate`: predicted beside measured figures of each configuration and batch size.

    `frame()` has one row per configuration and batch size: `predicted_*` and `measured_*` are tau (tokens per step),
    step_s (seconds) and speedup (over plain decoding); `error` is predicted / measured speedup − 1; `covered` says
    whether the predicted interval holds the measured speedup.
    """


def _standing(contest: Mapping[str, Any], standing: Mapping[str, Any]) -> dict[str, Any]:
    """Return a drafter in one contest as a row, as `Comparison.frame` has it."""
    tree = standing["tree"] or {"nodes": 0, "depth": 0}
    sizes = {name: tree[name] for name in ("nodes", "depth")}
    row = {"contest": contest["name"], "batch": contest["batch"], "drafter": standing["drafter"], **sizes}
    missing = dict.fromkeys(("value", "low", "high"))
    estimates = {name: standing[name] or missing for name in ("tau", "speedup", "over")}
    return {**row, **{name: standing[name] for name in ("step_s", "plain_s")}, **estimates}


def _flat(record: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the plain values of a record, keys of nested ones joined by `_`; an estimate's value has its own name."""
    prefix = "" if prefix in TRANSPARENT else prefix
    flat: dict[str, Any] = {}
    for key, value in record.items():
        name = prefix.removesuffix("_") if key == "value" and prefix else prefix + key
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{name}_")
        elif key == "paths" and isinstance(value, list | tuple):
            flat.setdefault(f"{prefix}nodes", len(value))
        elif not isinstance(value, list | tuple) and not (value is None and key in NESTED):
            flat[name] = value
    return flat
