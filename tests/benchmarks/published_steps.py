"""Predicted beside published speedups of engines, from data sheets alone.

    python -m tests.benchmarks.published_steps

writes docs/results/engines_published.md.

Each row of data/published/steps.json states tokens per step, so that step times alone are compared.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

from simulate.model_sizes.drafter_kinds import drafter_shape
from simulate.model_sizes.hf_config import known_models
from simulate.model_sizes.model_shape import Shape
from simulate.roofline.data_sheets import find_hardware
from simulate.roofline.host_overhead import Overheads
from simulate.roofline.roofline_model import Roofline
from treeopt.cost_model import StepShape
from treeopt.storage.user_files import shipped


@dataclass(frozen=True)
class Study:
    """Runs of one target and drafter on one machine.

    Attributes:
        source: where the figures come from; studies of one source are left out together.
        engine: name of the engine.
        version: its version; "" where the source does not state it.
        device: as `whatif --hardware` takes it.
        target: name in data/model_configs.json, or in `models` of the file.
        kind: kind of drafter.
        use: `fit`, or `judge` for what nothing is fitted to.
        drafter: its config, or a known model's name; None: as the target.
        weight_bytes: bytes of a weight of the target.
        draft_bytes: bytes of a weight of the drafter.
        head_bytes: bytes of a weight of the target's LM head; None: as in `whatif`.
    """

    source: str
    engine: str
    device: str
    target: str
    kind: str
    use: str
    version: str = ""
    drafter: str | None = None
    weight_bytes: float = 2.0
    draft_bytes: float = 2.0
    head_bytes: float | None = None


@dataclass(frozen=True)
class Row:
    """A published speedup: tokens per sequence and levels of a step, tokens committed, milliseconds of a plain step."""

    study: Study
    setting: str
    width: int
    batch: int
    context: int
    tokens: int
    levels: int
    tau: float
    speedup: float
    plain_ms: float | None

    @property
    def shape(self) -> StepShape:
        """The step that is priced."""
        widths = (1, *[self.width] * (self.levels - 1))
        return StepShape(self.batch, self.tokens, widths, self.context, committed=self.tau)

    @property
    def dynamic(self) -> bool:
        """True for a tree that is grown anew in each step."""
        return self.width > 1 and (self.study.engine == "sglang" or self.setting.startswith("EAGLE2"))


@dataclass(frozen=True)
class Predicted:
    """A row with its predicted speedup, and the relative error that the prediction states."""

    row: Row
    speedup: float
    stated: float

    @property
    def error(self) -> float:
        """Relative error of the speedup."""
        return self.speedup / self.row.speedup - 1

    @property
    def inside(self) -> bool:
        """True if the published speedup is inside the interval."""
        return abs(self.row.speedup / self.speedup - 1) <= self.stated


@cache
def published_rows() -> tuple[Row, ...]:
    """Read the rows.

    >>> len([row for row in published_rows() if row.study.use == "fit"])
    202
    """
    content = _content()
    rows = []
    for entry in content["studies"]:
        study = Study(**{name: value for name, value in entry.items() if name != "rows"})
        rows += [Row(study, *values) for values in entry["rows"]]
    return tuple(rows)


@cache
def _content() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(shipped("published/steps.json").read_text("utf-8"))
    return content


@cache
def model_of(study: Study) -> Roofline:
    """Return the step times of a study's models and devices."""
    content = _content()
    configs = {**known_models(), **content["models"], **content["drafters"]}
    target = replace(Shape.from_config(configs[study.target]), head_bytes=study.head_bytes)
    drafter = drafter_shape(configs[study.drafter or study.target], kind=study.kind, target=target)
    count, _, name = study.device.partition("x") if study.device[0].isdigit() else ("1", "", study.device)
    like = {"rtx-5060-ti": "l40s"}.get(name)
    sizes = {"weight_bytes": study.weight_bytes, "draft_bytes": study.draft_bytes}
    return Roofline(
        target, drafter, find_hardware(name), like=like and find_hardware(like), devices=int(count), **sizes
    )


@cache
def engine_of(row: Row) -> Overheads:
    """Return the overheads of the engine that ran a row."""
    study = row.study
    trees, devices = "dynamic" if row.dynamic else "static", model_of(study).devices
    return Overheads.of(study.engine, kind=study.kind, version=study.version or None, trees=trees, devices=devices)


def predict(rows: Iterable[Row], overheads: Callable[[Row], Overheads] = engine_of) -> list[Predicted]:
    """Predict the speedup of each row."""
    predicted = []
    for row in rows:
        cost = replace(model_of(row.study), overheads=overheads(row))
        plain_s = cost.plain_s(batch=row.batch, context=row.context)
        speedup = row.tau * plain_s / float(cost.step_s([row.shape])[0])
        predicted.append(Predicted(row, speedup, cost.error(row.shape)))
    return predicted


# --- what was not fitted


Fit = Callable[[Sequence[Row]], Callable[[Row], Overheads]]


def left_out(rows: Sequence[Row], group: Callable[[Row], object], fit: Fit) -> list[Predicted]:
    """Predict each group of rows by a fit to the other groups."""
    predicted = []
    for held in dict.fromkeys(map(group, rows)):
        others = [row for row in rows if group(row) != held]
        predicted += predict([row for row in rows if group(row) == held], fit(others))
    return predicted


def refitted(train: Sequence[Row]) -> Callable[[Row], Overheads]:
    """Return overheads whose step_s and level_s come from `train` alone: the table's rows that `train` knows, fitted.

    A row of the table that `train` does not know takes those of all of `train` of that engine; an engine that it does
    not know, those of an engine without a row.
    """

    def of(row: Row) -> Overheads:
        same = [other for other in train if engine_of(other).source == engine_of(row).source]
        known = same or [other for other in train if other.study.engine == row.study.engine]
        if not known:
            return Overheads.of("an engine without a row", kind=row.study.kind)
        return _fitted(tuple(known), engine_of(row if same else known[0]))

    return of


@cache
def _fitted(rows: tuple[Row, ...], start: Overheads) -> Overheads:
    """Return overheads with step_s and level_s of least squares of the relative error of step over plain step."""
    bare, steps, ratios, levels = replace(start, step_s=0.0, level_s=0.0), [], [], []
    for row in rows:
        cost = replace(model_of(row.study), overheads=bare)
        plain_s = cost.plain_s(batch=row.batch, context=row.context)
        steps.append(float(cost.step_s([row.shape])[0]) / plain_s)
        ratios.append(row.tau / row.speedup)
        levels.append((1 / plain_s, (0 if cost.drafter.parallel else row.levels) / plain_s))
    design = np.array(levels) / np.array(ratios)[:, None]
    (step_s, level_s), _ = nnls(design, 1 - np.array(steps) / np.array(ratios))
    return replace(bare, step_s=float(step_s), level_s=float(level_s))


def calibrated(train: Sequence[Row]) -> Callable[[Row], Overheads]:
    """Return overheads fitted to the rows of `train` of the same model and trees, as if its user had measured them."""

    def of(row: Row) -> Overheads:
        own = [other for other in train if other.study == row.study and other.dynamic == row.dynamic]
        return _fitted(tuple(own), engine_of(row))

    return of


def in_plain_steps(rows: Sequence[Row]) -> list[Predicted]:
    """Predict each task of a model with experts from its other tasks, with the three constants of reference study E6d.

    A speculative step is a + b levels + c experts plain steps, by non-negative least squares of the relative error over
    all trees of a model; experts: the time of those that more tokens need if each routes independently.
    """
    predicted = []
    for row in rows:
        same = [other for other in rows if other.study.target == row.study.target and _task(other) != _task(row)]
        design = np.array([_in_plain_steps(other) for other in same])
        ratios = np.array([other.tau / other.speedup for other in same])
        numbers, _ = nnls(design / ratios[:, None], np.ones(len(same)))
        cost = replace(model_of(row.study), overheads=engine_of(row))
        predicted.append(Predicted(row, row.tau / float(numbers @ _in_plain_steps(row)), cost.error(row.shape)))
    return predicted


@cache
def _in_plain_steps(row: Row) -> tuple[float, int, float]:
    """Return what a, b and c of `in_plain_steps` are multiplied with."""
    none, every = (replace(model_of(row.study), overheads=engine_of(row), spread=spread) for spread in (1e-6, 1.0))
    none_s, every_s = (float(cost.step_s([row.shape])[0]) for cost in (none, every))
    return 1.0, row.levels, (every_s - none_s) / none.plain_s(batch=row.batch, context=row.context)


def _task(row: Row) -> str:
    return row.setting.split()[0]


# --- the page

PAGE = Path(__file__).resolve().parents[2] / "docs" / "results" / "engines_published.md"
BEFORE = {  # mean and largest error of the model before it had engines' overheads, %
    ("fit", "vllm"): (9.6, 47),
    ("fit", "sglang"): (15.1, 62),
    ("fit", "transformers"): (18.4, 33),
    ("fit", "tensorrt-llm"): (14.5, 23),
    ("fit", "llama.cpp"): (92.9, 111),
    ("judge", "vllm"): (2.8, 7),
    ("experts", "sglang"): (8.8, 24),
}
INTRODUCTION = """# Published speedups of engines

`make published-steps` predicts every row of `data/published/steps.json` from data sheets, sizes and
`data/engine_overheads.json`. A row states its tokens per step, so step times alone are compared. The error is that of
the speedup. "Inside": the published speedup is inside the predicted interval. Before: the model that had no engines'
overheads, and a p-norm of 2.

"fit" rows: the overheads are fitted to them. "judge" rows: nothing is. "experts" rows: SpecBundle's mixtures of
experts; the spread of experts, and SGLang's overheads with several devices, are fitted to them and to Llama-3.3-70B.
"""
READING = """
* A study is one source. Left out within its engine, it is predicted by the other studies of that engine: SGLang without
  SpecBundle has only runs of early 2025 and one study of Qwen3-30B-A3B, vLLM's EAGLE-3 before 0.11 has EAGLE's
  overheads, and transformers has no other study. The aim of 6 % is not met there: there are no other sources.
* Fewer constants do not help: an engine's step and level drawn towards those of any engine, which count as one study or
  two, lower this error to 15.5 or 14.5 % (12 % without any fit). Counted by study it stays at 27 %: versions differ.
* One model of SpecBundle left out is predicted from the other three.
* The reference study's E6d leaves a task out with three constants for each mixture: a plain step, levels, experts (6.9
  and 4.4 %). So fitted, these rows err alike. A fit of host time alone, to static and dynamic trees apart, has two
  constants and half the rows. What is left goes with the task and changes its sign between trees (gsm8k: +20 to -15 %).
* SpecForge's issue 339 (Qwen3-30B-A3B, two H100) is off by up to 49 %. Its speculative steps take 5 ms more than those
  of SpecBundle; a slow host would explain it.
* Throughputs of SpecBundle hold prefill; its gsm8k and financeqa rows err most.
* llama.cpp multiplies up to eight rows one by one. The share that a row takes differs between devices by more than two.
"""


def summary(name: str, rows: Sequence[Predicted], *, before: tuple[float, float] | None = None) -> str:
    """Return a row of a table: count, mean and largest error, intervals that hold, mean half-width."""
    size = 100 * np.abs([each.error for each in rows])
    inside, width = sum(each.inside for each in rows), 100 * np.mean([each.stated for each in rows])
    old = "" if before is None else f" {before[0]} %, {before[1]} % |"
    errors = f"{size.mean():.1f} % | {size.max():.0f} %"
    return f"| {name} | {len(rows)} |{old} {errors} | {inside} of {len(rows)} | {width:.0f} % |"


def page() -> str:
    """Return docs/results/engines_published.md."""
    rows = published_rows()
    predicted = predict(rows)
    columns = "| mean error | largest | inside | mean half-width |"
    lines = [INTRODUCTION, f"| rows | count | before: mean, largest {columns}", "|---|---|---|---|---|---|---|"]
    groups = dict.fromkeys((row.study.use, row.study.engine) for row in rows)
    for use, engine in groups:
        each = [one for one in predicted if (one.row.study.use, one.row.study.engine) == (use, engine)]
        lines.append(summary(f"{use}: {engine}", each, before=BEFORE[use, engine]))
    fit = [row for row in rows if row.study.use == "fit"]
    lines.append(summary("fit: all", [one for one in predicted if one.row.study.use == "fit"], before=(15.3, 111)))
    lines += ["\n## Left out\n", f"| what is left out | rows {columns}", "|---|---|---|---|---|---|"]
    studies = left_out(fit, lambda row: row.study.source, refitted)
    engines = left_out(fit, lambda row: row.study.engine, refitted)
    for title, found in (("a study, within its engine", studies), ("an engine, wholly", engines)):
        for engine in dict.fromkeys(row.study.engine for row in fit):
            lines.append(summary(f"{title}: {engine}", [one for one in found if one.row.study.engine == engine]))
        lines.append(summary(f"{title}: all", found))
    bundle = [row for row in rows if "spec_bundle" in row.study.source]
    for target, found in _by_target(left_out(bundle, lambda row: row.study.target, refitted)):
        lines.append(summary(f"a model of SpecBundle: {target}", found))
    for target, found in _by_target(left_out(bundle, _task, calibrated)):
        lines.append(summary(f"a task of SpecBundle, overheads fitted to the model's other tasks: {target}", found))
    for target, found in _by_target(in_plain_steps([row for row in bundle if row.study.use == "experts"])):
        lines.append(summary(f"a task of SpecBundle, three constants by the model's other tasks: {target}", found))
    lines += [READING, "## All rows\n"]
    lines += ["| source, engine, device, models | setting | batch | tau | published | predicted | error | inside |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    last: Study | None = None
    for one in predicted:
        row, study = one.row, one.row.study
        ran = f"{study.engine} {study.version}, {study.device}, {study.target}, {study.kind} ({study.use})"
        low, high = (one.speedup * (1 + sign * one.stated) for sign in (-1, 1))
        interval = f"{one.speedup:.2f} [{low:.2f}, {high:.2f}]"
        tail = f"{row.speedup:.2f} | {interval} | {100 * one.error:+.1f} % | {'yes' if one.inside else 'no'} |"
        words = f"{study.source}; {ran}" if study != last else ""
        lines.append(f"| {words} | {row.setting} | {row.batch} | {row.tau:.2f} | {tail}")
        last = study
    return "\n".join(lines) + "\n"


def _by_target(predicted: Sequence[Predicted]) -> list[tuple[str, list[Predicted]]]:
    """Return predictions by the target's name without its organisation."""
    targets = dict.fromkeys(one.row.study.target for one in predicted)
    return [(name.rpartition("/")[2], [one for one in predicted if one.row.study.target == name]) for name in targets]


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
