"""Policies as JSON objects, with everything that was fitted, so that the decoding loop drafts the same trees."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import Any

from treeopt.errors import TreeError, UsageError
from treeopt.policies.cost_aware import CostAware
from treeopt.policies.eagle2 import DynamicTree
from treeopt.policies.opt_tree import OptTree
from treeopt.policies.policy import Policy, settings
from treeopt.policies.reranking import Calibration
from treeopt.statistics.isotonic_regression import Curve
from treeopt.storage.json_records import RecordError, get, of_kind

KINDS: Mapping[str, type[Any]] = {"dynamic-tree": DynamicTree, "opt-tree": OptTree, "cost-aware": CostAware}


def to_record(policy: Policy) -> dict[str, Any]:
    """Return the policy's kind and fields."""
    (kind,) = (name for name, cls in KINDS.items() if isinstance(policy, cls))
    return {"kind": kind, **asdict(policy)}  # type: ignore[call-overload]


def identity(policy: Policy) -> dict[str, Any]:
    """Return the policy's kind and settings, and a hash of its whole record (`to_record`)."""
    record = to_record(policy)
    sha256 = hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
    return {"kind": record["kind"], **settings(policy), "sha256": sha256}


def from_record(record: Any, where: str) -> Policy:
    """Return the policy from a record that `to_record` made.

    Raises:
        RecordError: names the field that is missing, wrong or unknown.
    """
    kind = get(record, "kind", str, where)
    if kind not in KINDS:
        raise RecordError(f"{where}: `kind` must be one of {', '.join(KINDS)}, found {kind!r}")
    known = {field.name: field.type for field in fields(KINDS[kind])}
    for name in record:
        if name != "kind" and name not in known:
            raise RecordError(f"{where}: `{name}` is no setting of {kind}")
    values = {}
    for name, type_ in known.items():
        if name not in record:
            raise RecordError(f"{where}: `{name}` is missing")
        values[name] = _READERS[type_](record[name], f"{where}: `{name}`")
    try:
        policy: Policy = KINDS[kind](**values)
    except TreeError as error:
        raise RecordError(f"{where}: {error}") from error
    return policy


def _list(value: Any, read: Callable[[Any, str], Any], name: str) -> tuple[Any, ...]:
    return tuple(read(item, f"{name}[{i}]") for i, item in enumerate(of_kind(value, list, name)))


def _of(kind: type[Any]) -> Callable[[Any, str], Any]:
    return lambda value, name: of_kind(value, kind, name)


def _each(read: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    return lambda value, name: _list(value, read, name)


def _or_none(read: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    return lambda value, name: None if value is None else read(value, name)


def _curve(value: Any, name: str) -> Curve:
    x, y = (_list(get(value, axis, list, name), _of(float), f"{name}.{axis}") for axis in ("x", "y"))
    try:
        return Curve(x, y)
    except UsageError as error:
        raise RecordError(f"{name}: {error}") from error


# The reader of a field, by the field's type.
_READERS: Mapping[Any, Callable[[Any, str], Any]] = {
    int: _of(int),
    float: _of(float),
    bool: _of(bool),
    int | None: _or_none(_of(int)),
    tuple[tuple[float, ...], ...]: _each(_each(_of(float))),
    tuple[Curve, ...]: _each(_curve),
    Calibration: _each(_each(_curve)),
    Calibration | None: _or_none(_each(_each(_curve))),
}
