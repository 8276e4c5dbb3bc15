"""A validation as what trackers log: parameters, tags, metrics by batch size, and the record itself."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from treeopt.storage.model_names import drafter_name, target_name
from treeopt.storage.provenance import look, rule_in

FILE = "validation.json"  # name of the logged record
SIDES = ("predicted", "measured")
CONDITIONS = (
    "device",
    "acceptance",
    "verification",
    "temperature",
    "prompts",
    "new_tokens",
    "blocks",
    "graphs",
    "seed",
)


@dataclass(frozen=True)
class LoggedValues:
    """A run.

    Attributes:
        name: name of the run.
        params: conditions by name.
        tags: provenance by name.
        by_batch: batch size -> metrics by name; trackers take the batch size as the step.
        summary: metrics of the whole run.
        text: the record as JSON.
    """

    name: str
    params: Mapping[str, Any]
    tags: Mapping[str, str]
    by_batch: Mapping[int, Mapping[str, float]]
    summary: Mapping[str, float]
    text: str


def validation_values(record: Mapping[str, Any]) -> LoggedValues:
    """Return the values of a validation, as `treeopt validate` writes it.

    A metric's name is `CONFIGURATION/FIGURE`, such as `best_chain/measured_speedup`. A tree that is both the chosen one
    and the best chain is logged as both.
    """
    meta = record["meta"]
    target, drafter = (
        target_name(meta),
        drafter_name(meta) or look(meta, "drafter", "kind") or look(meta, "engine_drafter", "name"),
    )
    params = {name: meta[name] for name in CONDITIONS if meta.get(name) is not None}
    provenance = {name: look(meta, "provenance", name) for name in ("treeopt", "commit", "processor", "date")}
    tags = {**provenance, "rule": rule_in(meta), "predictions_sha256": look(meta, "predictions", "sha256")}
    by_batch: dict[int, dict[str, float]] = {}
    for cell in record["cells"]:
        by_batch.setdefault(cell["batch"], {}).update(_metrics(cell))
    coverage = record["coverage"]
    summary = {
        "mean_error": record["mean_error"],
        "max_error": record["max_error"],
        "covered": coverage["covered"]["value"],
        "cells": float(coverage["cells"]),
    }
    return LoggedValues(
        f"validate {target or 'target'} {drafter or 'drafter'}",
        {"target": target, "drafter": drafter, **params},
        {name: str(value) for name, value in tags.items() if value},
        by_batch,
        summary,
        json.dumps(record, indent=1) + "\n",
    )


def _metrics(cell: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of a configuration at one batch size, under each of its names."""
    metrics: dict[str, float] = {"error": cell["error"], "covered": float(cell["covered"])}
    for side in SIDES:
        figures = cell[side]
        metrics |= {f"{side}_tau": figures["tau"]["value"], f"{side}_step_s": figures["step_s"]}
        metrics |= {
            f"{side}_speedup{'' if end == 'value' else f'_{end}'}": figures["speedup"][end]
            for end in ("value", "low", "high")
        }
    names = map(metric_name, cell["name"].split(", "))
    return {f"{name}/{figure}": value for name in names for figure, value in metrics.items()}


def metric_name(text: str) -> str:
    """Return a configuration's name in letters that every tracker takes.

    >>> metric_name("Medusa's tree"), metric_name("best tree of 15")
    ('medusa_s_tree', 'best_tree_of_15')
    """
    return re.sub(r"[^a-z0-9]+", "_", text.casefold()).strip("_") or "configuration"
