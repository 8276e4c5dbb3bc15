"""Results as the JSON values that `--json` prints, with their main table as a DataFrame."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

TABLES = ("cells", "ways")  # keys of the rows of a record's main table, the first that it has


class Record(dict[str, Any]):
    """The result of `simulate`, `whatif` or `validate`: JSON values, the same that the command prints with `--json`."""

    def frame(self) -> "pd.DataFrame":
        """Return the main table, one row per configuration; `tau` has its interval in `tau_low` and `tau_high`.

        Lists, such as the paths of a tree, stay in the record.

        >>> tau = {"value": 2.0, "low": 1.9, "high": 2.1}
        >>> Record(ways=[{"name": "tree", "tau": tau, "tree": {"nodes": 3}}]).frame().iloc[0].to_dict()
        {'name': 'tree', 'tau': 2.0, 'tau_low': 1.9, 'tau_high': 2.1, 'tree_nodes': 3}
        """
        import pandas as pd

        rows: list[dict[str, Any]] = next((self[key] for key in TABLES if key in self), [])
        return pd.DataFrame([_flat(row) for row in rows])


def _flat(record: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the plain values of a record, keys of nested ones joined by `_`; an estimate's value has its own name."""
    flat: dict[str, Any] = {}
    for key, value in record.items():
        name = prefix.removesuffix("_") if key == "value" and prefix else prefix + key
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{name}_")
        elif not isinstance(value, list | tuple):
            flat[name] = value
    return flat
