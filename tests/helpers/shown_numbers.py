"""Numbers that the product shows, each with the library's own: tables, marks of charts, sliders, explore and terminal.

The library's own come from `treeopt`'s values and frames, never from the blocks and charts that are shown.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd

import treeopt
from simulate.model_sizes.model_shape import Shape
from simulate.profiles.profile import Profile
from tests.helpers.command_line import done
from treeopt.charts.page_charts import accepted_shares
from treeopt.explore import answers, markup
from treeopt.explore.offered_files import Offer
from treeopt.explore.questions import Question
from treeopt.planning.learning_curve import learning_curves
from treeopt.plans.plan import Plan
from treeopt.plans.plan_json import from_json
from treeopt.replay.priced_walk import step_seconds
from treeopt.replay.static_tree import replay_tree
from treeopt.searchers.static_trees.best_first import count_prefixes
from treeopt.statistics.clustered_estimate import ratio
from treeopt.traces.trace import PAST_END, Trace
from treeopt.tree import Tree
from treeopt.tree_files.paper_trees import published_trees

NUMBER = re.compile(r"[-+−]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
ENDS = ("", "_low", "_high")
LATENCIES = {"time to first token": "ttft_s", "time per output token": "tpot_s", "inter-token latency": "itl_s"}
LATENCIES |= {"admission to end": "e2e_s", "arrival to end": "e2e_s"}
FIGURES = {
    "tokens/s": ("tokens_s", 1), "tau": ("tau", 1), "mean occupancy": ("occupancy", 1),
    "requests/s ended": ("requests_s", 1), "goodput, requests/s": ("goodput_s", 1),
    "within the limits, %": ("within", 100), "requests decoding": ("running", 1),
    "requests waiting": ("waiting", 1), "busy, %": ("busy", 100),
}  # fmt: skip


@dataclass(frozen=True)
class Number:
    """A number that is shown, and the library's own.

    Attributes:
        where: its place.
        shown: as it is shown.
        own: the library's.
        error: how far both may be apart: half of the last digit that is shown.
    """

    where: str
    shown: float
    own: float
    error: float

    @property
    def equal(self) -> bool:
        """Both are the same number, as far as it is shown."""
        return abs(self.shown - self.own) <= self.error * (1 + 1e-6) + 1e-9 * abs(self.own)


@dataclass(frozen=True)
class ShownTable:
    """A table: the question of its section, its caption, and the texts of its rows."""

    question: str
    caption: str
    rows: Sequence[Sequence[str]]


class Tables(HTMLParser):
    """The tables of a page by section, as texts."""

    def __init__(self, page: str) -> None:
        """Read a page."""
        super().__init__()
        self.found: list[ShownTable] = []
        self._section, self._caption, self._rows, self._text = "", "", list[list[str]](), ""
        self._noted = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        """Begin a section, a table, a row or a cell."""
        given = dict(attrs)
        if tag == "section":
            self._section = given.get("id") or ""
        elif tag == "table":
            self._rows = []
        elif tag == "tr":
            self._noted = given.get("class") == "note"
            if not self._noted:
                self._rows.append([])
        elif tag in ("td", "th", "caption"):
            self._text = ""

    def handle_endtag(self, tag: str) -> None:
        """End a cell or a table."""
        if tag == "caption":
            self._caption = self._text.strip()
        elif tag in ("td", "th") and not self._noted:
            self._rows[-1].append(self._text.strip())
        elif tag == "table":
            self.found.append(ShownTable(self._section, self._caption, self._rows[1:]))

    def handle_data(self, data: str) -> None:
        """Collect text."""
        self._text += data


def numbers_in(where: str, text: str, own: Sequence[float]) -> Iterator[Number]:
    """Yield the numbers of a text with the library's, in their order; where the library has none, none is shown."""
    own = [value for value in own if value is not None and not math.isnan(value)]
    words = NUMBER.findall(text)
    if not words and not any(own):
        return  # a row's distance to itself
    if len(words) == 1:
        own = own[:1]  # an interval of nothing, such as that of plain decoding, is not shown
    assert len(words) == len(own), (where, text, own)
    for word, value in zip(words, own, strict=True):
        plain = word.replace(",", "").replace("−", "-")
        digits = len(plain.partition(".")[2].partition("e")[0])
        power = int(plain.partition("e")[2] or 0)
        yield Number(f"{where}: {text}", float(plain), float(value), 0.5 * 10.0 ** (power - digits))


# --- tables of the page


def table_numbers(tables: Sequence[ShownTable], results: Mapping[str, Path]) -> Iterator[Number]:
    """Yield every number of the page's tables, with those of the files' values."""
    own = {
        (question, caption): rows for question, path in results.items() for caption, rows in own_tables(question, path)
    }
    for table in tables:
        if (table.question, table.caption) not in own:
            continue  # the sliders', whose numbers are compared apart
        expected = own.pop((table.question, table.caption))
        assert len(table.rows) == len(expected), table.caption
        for texts, values in zip(table.rows, expected, strict=True):
            for text, value in zip(texts, values, strict=True):
                if value is not None:
                    yield from numbers_in(f"{table.caption}, {texts[0]}", text, value)
    assert own == {}, "each table is on the page"


Rows = list[list[Sequence[float] | None]]


def own_tables(question: str, path: Path) -> Iterator[tuple[str, Rows]]:
    """Yield captions with the library's numbers for each row; None for a cell of text."""
    if question == "plan":
        yield from plan_tables(treeopt.load_plan(path))
    elif question == "predictions":
        yield from plan_tables(predicted_plan(path))
    elif question == "trace":
        trace = treeopt.load_trace(path)
        title = "true token among the drafter's best, share of all positions (tau needs a replay)"
        yield title, [[[d + 1], *([share(trace, d, k)] for k in (1, 2, 4, 8))] for d in range(trace.depth)]
    elif question == "profile":
        yield "measured step times", [profile_row(treeopt.load_profile(path), times) for times in
                                      treeopt.load_profile(path).batches]  # fmt: skip
    else:
        yield from record_tables(question, treeopt.load_record(path))


def plan_tables(plan: Plan) -> Iterator[tuple[str, Rows]]:
    frame = plan.frame()
    for batch, rows in frame.groupby("batch", sort=False):
        yield (
            f"batch {batch}",
            [
                [None, *cells(row, "nodes", "depth", "tau", ("step_s", 1e3), "tokens_s", "speedup", ("behind", 100))]
                for _, row in rows.iterrows()
            ],
        )


def predicted_plan(path: Path) -> Plan:
    return from_json(json.dumps(json.loads(path.read_text("utf-8"))["plan"]))


def cells(row: "pd.Series[Any]", *columns: str | tuple[str, float]) -> list[list[float]]:
    """Return the values of columns with their intervals, those of a pair times its factor."""
    pairs = [(column, 1.0) if isinstance(column, str) else column for column in columns]
    return [[row[name + end] * scale for end in ENDS if name + end in row] for name, scale in pairs]


def profile_row(profile: Profile, times: Any) -> list[Sequence[float]]:
    error = profile.relative_error if times.relative_error is None else times.relative_error
    (few, few_s), (many, many_s) = times.rest[0], times.rest[-1]
    (_, first_s), (deepest, deepest_s) = times.draft[0], times.draft[-1]
    seconds = [times.plain_s, few, few_s, many, many_s, first_s, deepest, deepest_s]
    scales = [1e3, 1, 1e3, 1, 1e3, 1e3, 1, 1e3]
    return [
        [times.batch],
        [times.context],
        *([value * scale] for value, scale in zip(seconds, scales, strict=True)),
        [100 * error],
    ]


def record_tables(question: str, record: Any) -> Iterator[tuple[str, Rows]]:
    frame = record.frame()
    rows = [row for _, row in frame.iterrows()]
    if question == "validation":
        columns = ("tree_nodes", "predicted_tau", "measured_tau", ("predicted_step_s", 1e3), ("measured_step_s", 1e3))
        columns += ("predicted_speedup", "measured_speedup", ("error", 100))
        ends = ("closed_forms_leviathan", "closed_forms_coral", "end_to_end_predicted", "end_to_end")
        yield (
            "predicted and measured",
            [[[row["batch"]], None, *cells(row, *columns), None, *cells(row, *ends)] for row in rows],
        )
    elif question == "whatif":
        sizes = ("tree_nodes", "tree_depth", "tau", ("step_s", 1e3), ("plain_s", 1e3), "tokens_s", "speedup")
        for device, own in frame.groupby("device"):
            yield (
                f"{device}, 512 tokens of context",
                [[[row["batch"]], None, *cells(row, *sizes, "break_even_acceptance")] for _, row in own.iterrows()],
            )
    elif question == "comparison":
        same = [[None, None, *cells(row, "nodes", "depth", "tau", "over")] for row in rows if math.isnan(row["batch"])]
        each = ("nodes", "depth", "tau", ("step_s", 1e3), ("plain_s", 1e3), "speedup", "over")
        own = [row for row in rows if not math.isnan(row["batch"])]
        yield "trees of one size", same
        yield "each drafter with its own best tree", [[[row["batch"]], None, *cells(row, *each)] for row in own]
    elif question == "capacity":
        yield f"server of {record['rows']} rows", [[None, *cells(row, "requests_s", "over")] for row in rows]
    else:
        title = (
            f"batch {record['batch']}, {record['mode']}" if question == "run" else f"server of {record['rows']} rows"
        )
        yield title, list(figures(question, rows))


def figures(question: str, rows: Sequence["pd.Series[Any]"]) -> Iterator[list[Sequence[float] | None]]:
    """Yield the rows of a table whose columns are configurations."""
    latencies = [(f"{label}, p{p}, ms", (f"{key}_p{p}", 1e3)) for label, key in LATENCIES.items() for p in (50, 95, 99)]
    left_out = "arrival to end" if question == "run" else "admission to end"
    for label, (key, scale) in (*FIGURES.items(), *latencies):
        if key in rows[0] and not label.startswith(left_out):
            yield [None, *(cells(row, (key, scale))[0] for row in rows)]


# --- marks of the page's charts


Mark = tuple[float, ...]


def chart_numbers(
    specs: Mapping[str, Any], titles: Mapping[str, tuple[str, str]], results: Mapping[str, Path]
) -> Iterator[Number]:
    """Yield the numbers of every mark, with those of the library's nearest mark of the same chart.

    Args:
        specs: what the page hands to Vega, by the chart's name.
        titles: question and title by the chart's name.
        results: files by question.
    """
    for name, spec in specs.items():
        question, title = titles[name]
        own = [tuple(map(float, mark)) for mark in own_marks(question, title, results)]
        assert own, (question, title)
        for mark in marks(spec, title):
            nearest = min(own, key=lambda other: math.dist(other[: len(mark)], mark))
            for shown, value in zip(mark, nearest, strict=False):
                yield Number(f"{question}, {title}: {mark}", shown, value, 0.0)


def marks(spec: Mapping[str, Any], title: str) -> Iterator[Mark]:
    """Yield the points of a chart with their intervals; of trees the sizes, of stairs every moment."""
    wanted = "line" if title.startswith("Load") else "circle" if "ree, batch" in title else "point"
    for layer in spec["layer"]:
        if layer["mark"]["type"] != wanted:
            continue
        x, y = (layer["encoding"][side] for side in "xy")
        for row in spec["datasets"][layer["data"]["name"]]:
            if wanted == "circle":
                yield (row["accepted"],)
            elif title.startswith("Step time") and "plain step, ms" not in row:
                continue  # points that the model predicts without having seen them
            else:
                ends = [row[end] for end in ("low", "high", "left", "right") if end in row]
                place = row[y["field"]]
                yield (row[x["field"]], y["sort"].index(place) if "sort" in y else place, *ends)


def own_marks(question: str, title: str, results: Mapping[str, Path]) -> Iterator[Mark]:
    """Yield the marks of a chart as the library has them, as tuples of x, y and the ends of their interval."""
    path = results[question]
    if question in ("plan", "predictions"):
        plan = treeopt.load_plan(path) if question == "plan" else predicted_plan(path)
        yield from plan_marks(plan, title, treeopt.load_trace(results["trace"]))
    elif question == "trace":
        yield from trace_marks(treeopt.load_trace(path), title, treeopt.load_plan(results["plan"]))
    elif question == "profile":
        profile = treeopt.load_profile(path)
        yield from ((tokens, 1e3 * seconds) for times in profile.batches for tokens, seconds in times.rest)
    else:
        yield from record_marks(question, title, treeopt.load_record(path))


def plan_marks(plan: Plan, title: str, trace: Trace) -> Iterator[Mark]:
    frame = plan.frame()
    if title == "Predicted speedup by batch size":
        yield from frame[["batch", "speedup", "speedup_low", "speedup_high"]].itertuples(index=False)
    elif title == "Throughput and latency":
        yield from zip(1e3 * frame["step_s"] / frame["tau"], frame["tokens_s"], strict=True)
    else:
        batch = int(re.findall(r"\d+", title)[0])
        tree = plan.entry(batch).choice.tree
        yield from ((size,) for size in accepted_shares(tree, trace))


def trace_marks(trace: Trace, title: str, plan: Plan) -> Iterator[Mark]:
    frontier = count_prefixes(trace, nodes=63, depth=trace.depth)
    if title == "Acceptance by depth and rank":
        yield from ((d + 1, share(trace, d, k)) for d in range(trace.depth) for k in (1, 2, 4, 8))
    elif title == "Tokens per step by tree size":
        trees = [frontier.tree(size, trace.depth) for size in (1, 2, 4, 8, 16, 32, 63)]
        trees += [Tree.chain(depth + 1) for depth in range(trace.depth)]
        trees += [entry.choice.tree for entry in plan.entries]
        trees += [tree for tree in published_trees().values() if tree.depth <= trace.depth]
        yield from ((tree.nodes, *tau(tree, trace)) for tree in trees)
    elif title == "Acceptance by domain":
        counts = treeopt.replay_tree(frontier.tree(8, trace.depth), trace)
        found = []
        for domain in range(len(trace.domain_names)):
            own = trace.domain == domain
            if own.any():
                found.append((domain, ratio(counts.committed[own], counts.steps[own]), own.sum()))
        found.sort(key=lambda row: -row[2])
        for place, (_, value, _) in enumerate(sorted(found[:40], key=lambda row: -row[1].value)):
            wide = not math.isfinite(value.high) or value.high - value.low > 1.5 * counts.tau
            yield (value.value, place, *((value.value,) * 2 if wide else (value.low, value.high)))
    else:
        for curve in learning_curves(trace, nodes=(4, 16), depth=trace.depth, seed=0):
            for point in curve.points:
                yield (point.requests, point.held_out.value, point.held_out.low, point.held_out.high)


def record_marks(question: str, title: str, record: Any) -> Iterator[Mark]:
    frame = record.frame()
    if question == "validation":
        ends = ("measured_speedup_low", "measured_speedup_high", "predicted_speedup_low", "predicted_speedup_high")
        yield from frame[["predicted_speedup", "measured_speedup", *ends]].itertuples(index=False)
    elif question == "comparison":
        values = [(row["over"], row["over_low"], row["over_high"]) for _, row in frame.dropna(subset="over").iterrows()]
        yield from ((value, place, low, high) for value, low, high in values for place in range(len(values)))
    elif title == "Latencies":
        names = [f"{kind}_p{p}" for kind in ("ttft_s", "tpot_s", "itl_s", "e2e_s") for p in (50, 95, 99)]
        for _, row in frame.iterrows():
            for place, name in enumerate(names):
                value, low, high = (1e3 * row[name + end] for end in ENDS)
                yield (value, place, low, high)
    elif question == "serving":
        for configuration in record["ways"]:
            day = configuration["first_day"]
            for key in ("running", "waiting"):
                yield from zip(day["times_s"], day[key], strict=True)
    elif question == "capacity":
        for place, (_, row) in enumerate(frame.iterrows()):
            yield (row["requests_s"], place, row["requests_s_low"], row["requests_s_high"])
    elif title == "Throughput and latency":
        yield from zip(1e3 * frame["batch"] / frame["tokens_s"], frame["tokens_s"], strict=True)
    elif title == "Roofline":
        (cost,) = record["meta"]["costs"]
        shape = Shape(**{**cost["target"], "experts": None})
        for _, row in frame.iterrows():
            flops = row["batch"] * shape.flops(1 + row["tree_nodes"])
            weights = cost["settings"]["weight_bytes"] * shape.step_parameters
            yield (flops / weights, flops / row["step_s"] / 1e12)
    else:
        yield from frame[["batch", "speedup", "speedup_low", "speedup_high"]].itertuples(index=False)


def share(trace: Trace, depth: int, top: int) -> float:
    rank = trace.rank[:, depth]
    known = rank[rank != PAST_END]
    return float(((known >= 0) & (known < top)).mean())


def tau(tree: Tree, trace: Trace) -> tuple[float, float, float]:
    counts = replay_tree(tree, trace)
    found = ratio(counts.committed, counts.steps)
    return found.value, found.low, found.high


# --- sliders, the page of explore, and the terminal


def slider_numbers(data: Mapping[str, Any], trace: Trace, profile: Profile) -> Iterator[Number]:
    """Yield what the sliders begin with: tau and its interval, and seconds per step, of every tree."""
    frontier = count_prefixes(trace, nodes=63, depth=trace.depth)
    for held in data["trees"]:
        chain = held["shape"] == "chain"
        tree = Tree.chain(held["nodes"]) if chain else frontier.tree(held["nodes"], trace.depth)
        for name, own in zip(("value", "low", "high"), tau(tree, trace), strict=True):
            yield Number(f"sliders, {held['name']}, tau {name}", held["tau"][name], own, 0.0)
        counts = replay_tree(tree, trace)
        for batch, seconds in held["step_s"].items():
            own = step_seconds(tree, profile, batch=int(batch), committed=counts.tau, drafted=counts.drafted_counts)
            yield Number(f"sliders, {held['name']}, batch {batch}", seconds, own, 0.0)
    for batch, seconds in data["plain_s"].items():
        yield Number(f"sliders, plain step at batch {batch}", seconds, profile.plain_s(batch=int(batch)), 0.0)


def explore_numbers(trace: Path, profile: Path) -> Iterator[Number]:
    """Yield the numbers of the tables that the page of explore shows."""
    asked = Question(trace.name, profile.name, batches=(1, 4))
    found = answers.answer(asked, Offer.of_files([trace], [profile]))
    plan = treeopt.search(trace, profile, batch=(1, 4))
    for (title, rows), batch in zip(plan_tables(plan), (1, 4), strict=True):
        (table,) = Tables(markup.configurations(found, batch)).found
        for texts, values in zip(table.rows, rows, strict=True):
            for text, value in zip(texts, values, strict=True):
                if value is not None:
                    yield from numbers_in(f"explore, {title}, {texts[0]}", text, value)


def terminal_numbers(trace: Path, profile: Path) -> Iterator[Number]:
    """Yield the numbers of the tables that `treeopt search` prints."""
    lines = done("search", "--trace", trace, "--profile", profile, "--batch", "1,4").stdout.splitlines()
    plan = treeopt.search(trace, profile, batch=(1, 4))
    for title, rows in plan_tables(plan):
        start = lines.index(title) + 3  # its heading and a rule stand between
        names = plan.frame().query(f"batch == {title.split()[1]}")["name"]
        for place, (name, line, values) in enumerate(zip(names, lines[start:], rows, strict=False)):
            assert line.startswith(name), (name, line)
            printed = values if place else values[:-1]  # the choice is not behind itself
            own = [number for value in printed if value for number in _printed(value)]
            yield from numbers_in(f"terminal, {title}, {name}", line.removeprefix(name), own)


def _printed(value: Sequence[float]) -> Sequence[float]:
    """Return the numbers that a cell shows: plain decoding's tau and speedup have no interval."""
    return value[:1] if len(value) == 3 and value[0] == value[1] == value[2] else value
