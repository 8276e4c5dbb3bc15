"""Speedups that papers measured, read from `data/published/`, with sizes and latencies of their models."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from simulate.model_sizes.drafter_sizes import eagle_parameters
from simulate.model_sizes.model_shape import Shape
from treeopt.errors import CostError
from treeopt.storage.atomic_files import shipped, why
from treeopt.storage.json_records import RecordError, get, parse
from treeopt.storage.user_files import read_text

SCHEMA = "treeopt.published-speedups/1"


@dataclass(frozen=True)
class Measured:
    """A published speedup over plain decoding in the same code, at batch 1.

    Attributes:
        source: paper, a key of `Published.sources`.
        model: target.
        drafter: drafter.
        task: kind of text that was decoded.
        temperature: 0 is greedy.
        gamma: drafter forwards per step.
        speedup: as measured.
        tau: tokens committed per step, where the paper gives it.
        alpha: share of drafted tokens accepted, where the paper gives it.
        c: drafter forward over plain step, where the paper gives it.
    """

    source: str
    model: str
    drafter: str
    task: str
    temperature: float
    gamma: int
    speedup: float
    tau: float | None = None
    alpha: float | None = None
    c: float | None = None


@dataclass(frozen=True)
class Published:
    """All published speedups that predictions are compared with.

    Attributes:
        sources: paper and conditions of each source.
        rows: the measurements.
        shapes: sizes of the models.
        gpus: number of devices that each model was spread over.
        latencies: (drafter forward, plain step) in seconds, for the models of CORAL's Table 1.
        table_weights: (W_d, W_t) of the same models, as printed in the table.
    """

    sources: Mapping[str, str]
    rows: tuple[Measured, ...]
    shapes: Mapping[str, Shape]
    gpus: Mapping[str, int]
    latencies: Mapping[str, tuple[float, float]]
    table_weights: Mapping[str, tuple[int, int]]

    def of(self, source: str, *models: str) -> tuple[Measured, ...]:
        """Return the rows of one source, for the given models or for all.

        >>> len(published_speedups().of("CORAL", "Llama2-7B"))
        18
        """
        return tuple(row for row in self.rows if row.source == source and (not models or row.model in models))

    def weights(self, model: str) -> tuple[int, int]:
        """Return the weights that an EAGLE drafter's forward and a plain step of a model read, from Table 1 or counted.

        Raises:
            CostError: the model's sizes are not known.

        >>> published_speedups().weights("Llama3-70B")
        (2040537088, 69503033344)
        """
        if model not in self.shapes:
            raise CostError(f"model must be one of {', '.join(self.shapes)}; got {model!r}")
        shape = self.shapes[model]
        return self.table_weights.get(model, (eagle_parameters(shape), shape.step_parameters))

    def forwards_s(self, model: str) -> tuple[float, float]:
        """Return the seconds of an EAGLE drafter's forward and of a plain step of a model, on CORAL's A6000.

        From Table 1 if it has the model; otherwise weights read times the table's mean seconds per weight.

        Raises:
            CostError: the model's sizes are not known.

        >>> [round(1000 * seconds, 2) for seconds in published_speedups().forwards_s("Llama2-7B")]
        [1.36, 23.65]
        """
        if model in self.latencies:
            return self.latencies[model]
        weights = np.array(self.weights(model))
        rates = [np.divide(self.latencies[known], self.weights(known)) for known in self.latencies]
        draft_s, plain_s = np.mean(rates, axis=0) * weights
        return float(draft_s), float(plain_s)


@cache
def published_speedups(path: Path | None = None) -> Published:
    """Read the shipped measurements, or those of another file of the same form.

    Raises:
        CostError: a file cannot be read, or names the field that is wrong.

    >>> [len(published_speedups().of(source)) for source in published_speedups().sources]
    [12, 108]
    """
    path = shipped("published/speedups.json") if path is None else path
    table = shipped("published/coral_table1.json")
    try:
        record = parse(read_text(path), SCHEMA)
        timed = {row["model"]: row for row in json.loads(table.read_text("utf-8"))["rows"]}
        return Published(
            sources=get(record, "sources", dict, "file"),
            rows=tuple(_row(row, f"rows[{i}]") for i, row in enumerate(get(record, "rows", list, "file"))),
            shapes={name: Shape.from_config(sizes) for name, sizes in get(record, "configs", dict, "file").items()},
            gpus=get(record, "gpus", dict, "file"),
            latencies={name: (row["L_d_ms"] / 1000, row["L_t_ms"] / 1000) for name, row in timed.items()},
            table_weights={name: (row["W_d_M"] << 20, row["W_t_M"] << 20) for name, row in timed.items()},
        )
    except (OSError, UnicodeDecodeError) as error:
        raise CostError(f"{getattr(error, 'filename', None) or path}: cannot be read: {why(error)}") from error
    except (RecordError, CostError) as error:
        raise CostError(f"{path}: {error}") from error


def _row(record: Any, where: str) -> Measured:
    """Return the measurement of a record; `where` starts the messages of its errors."""
    texts = {name: get(record, name, str, where) for name in ("source", "model", "drafter", "task")}
    given = {name: get(record, name, float, where) for name in ("tau", "alpha", "c") if name in record}
    row = Measured(
        **texts,
        temperature=get(record, "temperature", float, where),
        gamma=get(record, "gamma", int, where),
        speedup=get(record, "speedup", float, where),
        **given,
    )
    if row.speedup <= 0 or row.gamma < 0 or row.temperature < 0:
        raise RecordError(f"{where}: `speedup` must be above 0, `gamma` and `temperature` 0 or more")
    if (row.tau is None) == (row.alpha is None or row.c is None):
        raise RecordError(f"{where}: either `tau` or both `alpha` and `c` must be given")
    return row
