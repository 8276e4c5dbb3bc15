"""Report tables: every figure that they must show, and the same figures counted slowly."""

import io
import json
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from rich.console import Console

from simulate.validation.predicted_vs_measured import Comparison, Figures, comparison_record
from simulate.validation.predictions import FormsRecord
from tests.helpers.strategies import trace_of, traces
from treeopt.plans import Choice, Grown, Plan, PlanEntry, Price, Proof, Switch
from treeopt.results.plan import ENTRY as PLAN_KIND
from treeopt.results.trace import ENTRY as TRACE
from treeopt.results.trace import describe
from treeopt.results.validation import ENTRY as VALIDATION
from treeopt.statistics import Estimate
from treeopt.storage.user_files import shipped
from treeopt.terminal import print_blocks
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

META = {
    "target": {"name": "tiny-llama", "dtype": "bfloat16"},
    "drafter": {"kind": "medusa", "heads": 3},
    "verification": "greedy",
    "temperature": 0.0,
    "new_tokens": 77,
    "seed": 5,
}


def shown(blocks, *subjects, width=160, **more):
    """What is printed, as lines without trailing blanks."""
    text = io.StringIO()
    console = Console(file=text, width=width, highlight=False, soft_wrap=True)
    print_blocks(blocks(*subjects, **more), console, verbose=True)
    return [line.rstrip() for line in text.getvalue().splitlines()]


def row(lines, name):
    """Cells, but empty ones, of the one table row that holds a cell `name`."""
    rows = [re.split(r"\s{2,}", line.strip()) for line in lines if "  " in line.strip()]
    (found,) = [cells for cells in rows if name in cells]
    return found


# --- traces


def slow_tops(trace: Trace) -> Sequence[Sequence[float | None]]:
    """Share of positions inside their request whose true token is among the best 1, 2, 4, 8, by depth."""
    table = []
    for depth in range(trace.depth):
        inside = []
        for anchor in range(trace.anchors):
            request = trace.request[anchor]
            length = sum(1 for other in trace.request if other == request)
            if trace.position[anchor] + depth < length:
                inside.append(int(trace.rank[anchor, depth]))
        table.append(
            [sum(0 <= rank < top for rank in inside) / len(inside) if inside else None for top in (1, 2, 4, 8)]
        )
    return table


@given(trace=traces(parts=True))
def test_describe_counts_what_is_there(trace):
    found = describe(trace)
    lengths = [int((trace.request == request).sum()) for request in sorted(set(trace.request.tolist()))]
    assert found["anchors"] == sum(lengths)
    assert found["requests"] == len(lengths)
    assert (found["depth"], found["width"]) == (trace.rank.shape[1], trace.width)
    tokens = found["tokens_a_request"]
    assert (tokens["min"], tokens["max"]) == (min(lengths), max(lengths))
    assert tokens["mean"] == pytest.approx(sum(lengths) / len(lengths), rel=1e-12)
    prompts = trace.prompt_tokens
    due = None if prompts is None else {"min": min(prompts), "mean": np.mean(prompts), "max": max(prompts)}
    assert found.get("tokens_a_prompt") == due
    assert found["distinct_rank_paths"] == len({tuple(ranks) for ranks in trace.rank.tolist()})
    assert found["domains"] == len(trace.domain_names)
    parts = (
        "accept",
        "kept",
        "draft_prob",
        "draft_entropy",
        "target_entropy",
        "candidates",
        "domain",
        "prompt_tokens",
        "drafted",
        "confidence",
    )
    present = [name for name in parts if getattr(trace, name) is not None]
    assert sorted(found["optional"]) == sorted(present)
    assert found.pop("meta") == dict(trace.meta)  # JSON, but it may hold Infinity
    for shares, due in zip(found["top_1_2_4_8_by_depth"], slow_tops(trace), strict=True):
        # Shares are rounded to four digits.
        assert shares == [None if share is None else pytest.approx(share, abs=5.1e-5) for share in due]
    assert json.loads(json.dumps(found, allow_nan=False)) == found


SMALL = trace_of([[[0, 3], [1, -1], [-1, -2]], [[0, -2]]], width=8, meta=META)


def test_trace_tells_of_domains_and_repeated_text():
    labelled = replace(
        SMALL,
        domain=np.int16([0, 1]),
        domain_names=("code", "prose"),
        meta=META | {"repeated_4grams": {"written": 0.375, "prompts": 0.0125}},
    )
    lines = shown(TRACE.blocks, labelled)
    assert lines[0].endswith(", 2 domains.")
    (warning,) = [line for line in lines if "repeated 4-grams" in line]
    assert "37.5%" in warning
    assert "1.2%" in warning


# --- plans

TREE = Tree.from_paths([(0, 0, 0), (1, 0), (2,)])
CHAIN = Tree.chain(2)
WIDE = Tree.full(4, 2)
CHOSEN = Choice("chosen tree", TREE, Estimate(2.346, 2.1, 2.6), 0.01234, Estimate(1.789, 1.6, 1.98))
PLAIN = Choice("no speculation", None, Estimate(1.0, 1.0, 1.0), 0.0100, Estimate(1.0, 1.0, 1.0))
BEST_CHAIN = Choice("best chain", CHAIN, Estimate(1.5, 1.25, 1.75), 0.0111, Estimate(1.35, 1.12, 1.58))
BEHIND = replace(BEST_CHAIN, behind=Estimate(0.288, 0.2, 0.376))
PROOF = Proof("replayed tokens a second", optimal=False, statement="best found, not proved")
PLAN = Plan(
    (
        PlanEntry(4, CHOSEN, Estimate(0.845, 0.7, 0.99), (PLAIN, BEHIND), {"Medusa's tree": "too deep"}, PROOF),
        PlanEntry(32, PLAIN, None, (BEST_CHAIN,), {}, PROOF),
    ),
    {
        "search": {"requests_judged_on": 11, "requests_chosen_on": 13, "seed": 17},
        "trace": META,
        "cost": {
            "target": META["target"],
            "drafter": META["drafter"],
            "device": "Some GPU",
            "provenance": {"processor": "Some CPU", "date": "2024-06-07"},
        },
    },
)


def test_plan_says_which_tree_and_why():
    lines = shown(PLAN_KIND.blocks, PLAN)
    wide = replace(PLAN.entries[0], choice=replace(CHOSEN, tree=WIDE))
    assert any(line.endswith("and 8 more") for line in shown(PLAN_KIND.blocks, replace(PLAN, entries=(wide,))))
    assert "?" in "\n".join(shown(PLAN_KIND.blocks, Plan(PLAN.entries))[-3:])  # without provenance
    start = lines.index("batch 32")
    first, second = "\n".join(lines[:start]), "\n".join(lines[start:])
    assert f"Tree {TREE.id}, levels 3/2/1: {[list(path) for path in TREE.paths]}" in first
    assert "tau over the best chain: +0.845 [+0.700, +0.990]" in first
    assert "Not compared (batch 4): Medusa's tree: too deep" in second
    assert "\n".join(lines).count("Proof: best found, not proved.") == 1  # as earlier versions wrote it
    assert "Batch 32: do not speculate: no tree or chain tried is predicted to be faster; 3,200 tokens/s." in first
    assert "tau over" not in second
    assert "more" not in first


def test_plan_says_what_holds_for_all_batch_sizes():
    text = "\n".join(shown(PLAN_KIND.blocks, PLAN))
    assert "Verify forwards to capture (batch x tokens per sequence): 4 x 7, 32 x 1" in text
    assert "Most tokens per second" not in text
    assert "Warning" not in text
    search = PLAN.meta["search"] | {"objective": "latency", "max_tpot_s": 0.02}
    whole = replace(
        PLAN,
        switches=(Switch(small=4, large=32, up=32, down=4),),
        best=4,
        warnings=("assumed: depths are independent",),
        meta=PLAN.meta | {"search": search},
    )
    text = "\n".join(shown(PLAN_KIND.blocks, whole))
    assert "Best for latency below 20 ms per token: batch 4, 716 tokens/s, 5.59 ms per token and sequence." in text
    close = replace(whole, meta=PLAN.meta | {"search": search | {"max_tpot_s": 0.0056}})
    assert "5.59 ms per token and sequence, within the error of the limit." in "\n".join(shown(PLAN_KIND.blocks, close))
    assert "(in between keep the running configuration): to batch 32's at 32, back to batch 4's at 4" in text
    assert "Warning: assumed: depths are independent." in text
    assert "tokens counted for latency" in text


def test_plan_shows_policies_and_prices():
    grown = Grown("eagle2", {"nodes": 8, "beam": 4, "width": None}, nodes=7.5, depth=3.25)
    policy = replace(CHOSEN, name="eagle2", tree=None, grown=grown)
    price = Price("contiguous ranks", "engine.py", Estimate(0.0081, -0.001, 0.0172))
    lines = shown(PLAN_KIND.blocks, replace(PLAN, entries=(replace(PLAN.entries[0], choice=policy, prices=(price,)),)))
    assert row(lines, "eagle2")[1:4] == ["7.5", "3.25", "2.35 [2.10, 2.60]"]
    text = "\n".join(lines)
    assert "Dynamic tree, built at each step: eagle2 with nodes=8, beam=4" in text
    assert "nodes and depth are means" in text
    assert "contiguous ranks (engine.py) alone costs 0.8 [-0.1, 1.7] % of tokens per second" in text
    assert "Do not speculate" not in text


def test_why_a_slower_line_was_preferred_stands_with_the_answers():
    """The rule of `near`, or requests that the choice was not made on; nothing is said twice of a batch size."""
    search = PLAN.meta["search"] | {"near": 0.01, "faster": {"4": {"nodes": 9, "depth": 2, "gain": 0.0042}}}
    lines = shown(PLAN_KIND.blocks, replace(PLAN, meta=PLAN.meta | {"search": search}))
    answers = lines[: lines.index("")]
    assert answers[2:] == [
        "Batch 4: a tree of 9 was 0.4% faster on the requests that trees were chosen on; within the error or 1% "
        "(--near), the highest lower bound is preferred, then the smaller tree.",
        "Batch 32: best chain is 35.1% faster on the requests held out; the choice was made on the others, which keeps "
        "its prediction fair.",
    ]
    assert "best chain is" not in "".join(line for line in answers if line.startswith("Batch 4"))
    search["faster"]["4"]["gain"] = 0.0004
    assert "0.0%" not in "".join(shown(PLAN_KIND.blocks, replace(PLAN, meta=PLAN.meta | {"search": search})))


@pytest.mark.parametrize(("low", "unsure"), [(0.98, True), (1.02, False)])
def test_a_speedup_that_may_be_none_is_called_within_the_noise(low, unsure):
    choice = replace(CHOSEN, speedup=Estimate(1.1, low, 1.2))
    lines = shown(PLAN_KIND.blocks, replace(PLAN, entries=(replace(PLAN.entries[0], choice=choice),), best=None))
    assert ("times plain decoding, within the error" in lines[0]) == unsure


def test_no_share_is_shown_beyond_the_width_of_a_trace():
    narrow = trace_of([[[0]], [[1]]], width=2)
    shares = [cell.text for cell in next(b for b in TRACE.blocks(narrow) if hasattr(b, "rows")).rows[0].cells[1:]]
    assert [bool(text) for text in shares] == [True, True, False, False]


# --- validations

PREDICTED = Figures(Estimate(2.0, 1.9, 2.1), 0.0200, Estimate(1.50, 1.4, 1.6))
MEASURED = Figures(Estimate(2.2, 2.0, 2.4), 0.0190, Estimate(1.60, 1.5, 1.7))
COMPARISONS = [
    Comparison(4, "chosen tree", TREE, PREDICTED, MEASURED, 1.44, FormsRecord(1.28, 2.4)),
    Comparison(8, "best chain", CHAIN, MEASURED, PREDICTED, 0.98),
]
RECORD = {
    "meta": {
        "target": META["target"],
        "drafter": META["drafter"],
        "device": "Some GPU",
        "prompts": 24,
        "new_tokens": 77,
        "blocks": 6,
        "seed": 3,
        "acceptance": "replay",
        "predictions": {"sha256": "0123456789abcdef0123"},
        "skipped": {"8": {"best tree of 63": "too large"}},
        "provenance": {"processor": "Some CPU", "date": "2024-06-07"},
    },
    **comparison_record(COMPARISONS),
}


def test_validation_shows_predicted_beside_measured():
    lines = shown(VALIDATION.blocks, RECORD, width=200)
    assert row(lines, "chosen tree") == [
        "4",
        "chosen tree",
        "6",
        "2.00 [1.90, 2.10]",
        "2.20 [2.00, 2.40]",
        "20.00",
        "19.00",
        "1.50 [1.40, 1.60]",
        "1.60 [1.50, 1.70]",
        "-6.2",
        "yes",
        "1.28",
        "2.40",
        "1.44",
    ]
    assert row(lines, "best chain")[-3:] == ["+6.7", "yes", "0.98"]
    text = "\n".join(lines)
    for words in (
        *("mean 6.5%", "largest 6.7%", "24 prompts", "77 new tokens", "6 blocks", "tiny-llama bfloat16"),
        *("3 medusa heads", "Some GPU", "Some CPU", "2024-06-07", "95 %"),
        "Leviathan Thm 3.8: mean 20.0%, largest 20.0%; CORAL Eq. 6: mean 50.0%, largest 50.0%",
        "Predicted 95% intervals contain the measured value in 2 of 2 cells, 100% [16%, 100%].",
        "Batch 4: chosen tree (tree of 6 nodes) was predicted to be the fastest, and was; 1.50 [1.40, 1.60]",
        "Batch 8: best tree of 63 not measured: too large.",
        "24 prompts with the acceptance of a trace's requests",
        "Predictions fixed beforehand: sha256 0123456789abcdef.",
    ):
        assert words in text, words
    assert "none" not in text.lower()
    assert "Plain steps" not in text


def test_whole_runs_stand_beside_their_predictions():
    """Of a tree that they were predicted for, and of one that they were not."""
    known, unknown = COMPARISONS
    cells = [replace(known, whole=Estimate(1.8, 1.7, 1.9)), unknown]
    lines = shown(VALIDATION.blocks, {**RECORD, **comparison_record(cells)}, width=240)
    assert row(lines, "chosen tree")[-2:] == ["1.80 [1.70, 1.90]", "1.44"]
    assert row(lines, "best chain")[-2:] == ["yes", "0.98"]
    said = "Error of whole runs, prefill and draining included: mean 25.0%, largest 25.0%; 0 of 1 intervals contain the"
    assert said in "\n".join(lines)


@pytest.mark.parametrize(("measured_s", "remarked"), [(0.0109, False), (0.0112, True), (0.0088, True)])
def test_plain_steps_tell_whether_the_machine_is_as_it_was(measured_s, remarked):
    record = {**RECORD, **comparison_record([replace(c, plain_s=(0.01, measured_s)) for c in COMPARISONS])}
    assert record["plain"] == [{"batch": batch, "predicted_s": 0.01, "measured_s": measured_s} for batch in (4, 8)]
    text = "\n".join(shown(VALIDATION.blocks, record, width=200))
    assert f"Plain steps, ms predicted | measured: 10.00 | {measured_s * 1e3:.2f} at batch 4, 10.00" in text
    assert ("speed has changed since it was profiled" in text) == remarked


# --- names with brackets


def test_names_are_shown_as_they_are(capsys):
    """Square brackets are rich's markup, but a name is data: `[bold]x` keeps its brackets, `[/x]` is no error."""
    name = "a[bold]b[/x]c"
    meta = {**META, "target": {"name": name, "dtype": "float32"}}
    print_blocks(TRACE.blocks(replace(SMALL, meta=meta)), verbose=True)
    assert name in capsys.readouterr().out
    entry = replace(PLAN.entries[0], choice=replace(CHOSEN, name=name), skipped={name: name})
    conditions = {**PLAN.meta, "trace": meta, "cost": {"device": name}}
    print_blocks(PLAN_KIND.blocks(Plan((entry,), conditions), checks={4: name}), verbose=True)
    # The choice, the skipped tree, its reason, the check, the target, the device.
    assert capsys.readouterr().out.count(name) == 6
    print_blocks(VALIDATION.blocks({**RECORD, "cells": [{**RECORD["cells"][0], "name": name}]}), verbose=True)
    assert name in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "words"),
    [("medusa-cpu-t1", "hand it on with treeopt export"), ("medusa-two-threads", "measure step times again")],
)
def test_a_validation_whose_intervals_miss_too_often_asks_for_another_profile(name, words):
    """24 of 31 intervals of the run with two threads hold: fewer than chance explains at 95 %."""
    record = json.loads((shipped("validations") / f"{name}.json").read_text("utf-8"))
    record["best"] = [best | {"within": True} for best in record["best"]]
    (line,) = [line for line in shown(VALIDATION.blocks, record) if line.startswith("Next: ")]
    assert words in line
