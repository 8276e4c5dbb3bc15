"""Results as the JSON values that `--json` prints, with the methods of values."""

from typing import Any

from treeopt.value_methods import ValueMethods


class Record(ValueMethods, dict[str, Any]):
    """The result of `simulate` or `whatif`, or the file of any result: the JSON values that `--json` prints.

    `frame()` has one row per configuration; `tree_nodes` counts drafted nodes. Lists, such as the paths of a tree, stay
    in the record.
    """


class Validation(Record):
    """The result of `validate`: predicted beside measured figures of each configuration and batch size.

    `frame()` has one row per configuration and batch size: `predicted_*` and `measured_*` are tau (tokens per step),
    step_s (seconds) and speedup (over plain decoding); `error` is predicted / measured speedup − 1; `covered` says
    whether the predicted interval holds the measured speedup.
    """
