"""Names of models in provenance: of the shipped model with these weights, else as recorded."""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from treeopt.storage.atomic_files import shipped
from treeopt.storage.provenance import look

SHIPPED = "model_names.json"  # hash of float32 weights -> name; tests/system/test_shipped_names.py computes it


def target_name(meta: Any) -> str | None:
    """Return the name of the target; None if neither name nor weights are known.

    >>> target_name({"target": {"name": "target", "weights": "73b602c94121bd88"}})
    'stdlib-medusa2/target'
    """
    return _name(look(meta, "target"))


def drafter_name(meta: Any) -> str | None:
    """Return the name of the drafter, unless it is its kind; None if it is not known.

    >>> drafter_name({"drafter": {"kind": "eagle", "weights": "4a04083bdee5ae42"}})
    'stdlib-hass'
    >>> drafter_name({"drafter": {"kind": "eagle", "name": "my-eagle"}})
    """
    name, kind = _name(look(meta, "drafter")), look(meta, "drafter", "kind")
    return None if name is None or name.endswith(str(kind)) else name


def _name(model: Any) -> str | None:
    name = _shipped_names().get(str(look(model, "weights"))) or look(model, "name")
    return name if isinstance(name, str) and name else None


@cache
def _shipped_names() -> Mapping[str, str]:
    names: dict[str, str] = json.loads(shipped(SHIPPED).read_text("utf-8"))
    return names
