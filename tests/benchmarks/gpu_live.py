"""The shipped target with its drafters, live: profiles, predictions with their hash, then what is measured.

Trees are chosen on shipped traces of these models, recorded on a CPU, and decode prompts that no trace holds: in
bfloat16, as GPUs are used, for speedups, and in fp32 for steps that must equal those of the replay.
Predictions lie in `live-NAME-BATCH.predictions.json` before anything of theirs is measured.
"""

import time
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import torch

from executor.decoding.decoder import Decoder
from executor.drafters.base.drafter import Drafter
from executor.profiling.profile_settings import Measuring
from executor.profiling.timed_blocks import WARM_UP, run_block
from executor.prompts.prompt_files import Prompt
from executor.recording.collect_trace import collect
from executor.runners.loop_runner import LoopRunner
from executor.runners.runner import Requests
from executor.target.target_model import Target
from executor.validation import LiveComparison
from executor.verification.acceptance_rules import Greedy
from executor.verification.sampling_rules import SampleAndMatch
from executor.verification.temperature_top_k_top_p import Warp
from simulate.drafter_kinds import drafter_shape
from simulate.model_sizes.model_shape import Shape
from simulate.profiles.profile import load_profile, save_profile
from simulate.roofline.data_sheets import find_hardware
from simulate.roofline.roofline_model import Roofline
from simulate.validation.predicted_vs_measured import Comparison, comparison_record
from simulate.validation.predictions import Predictions, save_predictions, whole_runs
from tests.benchmarks.gpu_pieces import Pieces
from tests.helpers.measured_profiles import measure_profile
from treeopt.cost_model import StepShape
from treeopt.errors import CostError, UsageError
from treeopt.planning.held_out_split import hold_out
from treeopt.planning.search_pipeline import search
from treeopt.policies import DynamicTree
from treeopt.replay.static_tree import visit
from treeopt.storage.provenance import this_run
from treeopt.storage.user_files import shipped
from treeopt.traces.trace_files import load_trace
from treeopt.tree import Tree
from treeopt.tree_files.choice_lists import MEDUSA, published_trees

# Drafter, its shipped trace, batch sizes, and the seconds that its profile may take.
CASES = (
    ("medusa", "t0", (1, 4, 16, 64), 15.0),
    ("eagle3", "t0", (1, 4, 16, 64), 20.0),
    ("dflash", "t0", (1, 16), 10.0),
    ("mtp", "t0", (1, 16), 10.0),
    ("p-eagle", "t0", (1, 16), 10.0),
    ("medusa", "t1", (1, 16), 8.0),
    ("eagle3", "t1", (1, 16), 10.0),
    ("eagle", "candidates-t0", (1, 4), 20.0),
)
REPLAYED = 4  # cases of which live and replayed tau are compared
REQUESTS = {1: 96, 4: 256, 16: 256, 64: 256}  # by batch size; a third of them at temperature 1 and with policies
TINY = {1: 4, 2: 8}
# EAGLE-2's trees of several sizes, as deep and wide as the recorded candidates.
DYNAMIC = tuple(DynamicTree(nodes, depth=6, beam=8, width=5) for nodes in (8, 24, 59))

Load = Callable[..., tuple[Target, Drafter, list[list[int]]]]  # of a drafter, requests and `dtype`


def live(load: Load, pieces: Pieces, *, graphs: bool, tiny: bool, longer: float) -> None:
    """Compare predicted with measured speedups, live and replayed tau, and plain steps of a few batch sizes."""
    cells: list[dict[str, Any]] = []
    cases = [_Case(load, drafter, trace, pieces, graphs, tiny) for drafter, trace, *_ in CASES]
    for case in cases[:REPLAYED]:  # first: a process whose caches are cold is slow
        pieces.piece(f"{case.name}, tau", case.tau)
    for batch in (1,) if tiny else (8, 16, 24, 32):
        pieces.piece(f"plain steps, batch {batch}", partial(cases[0].plain_steps, batch))
    for case, (*_, batches, budget_s) in zip(cases, CASES, strict=True):
        sizes = tuple(TINY)[: max(1, len(batches) // 2)] if tiny else batches
        make = partial(case.profile, sizes, longer * budget_s)
        pieces.piece(f"{case.name}, profile", make, file=f"live-{case.name}.profile.json")
        for batch in sizes:
            found = pieces.piece(f"{case.name}, batch {batch}", partial(case.compared, batch))
            cells += found["cells"] if found else []
    pieces.piece("all", lambda: _summary(cells))


def _summary(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Return mean and largest errors; `step` is what is left of an error without that of tau."""
    errors = {name: [c[f"{name}_error"] for c in cells] for name in ("tau", "sheet")}
    errors["speedup"] = [c["error"] for c in cells]
    errors["step"] = [(1 + c["error"]) / (1 + c["tau_error"]) - 1 for c in cells]
    found = {"cells": len(cells), "intervals_hold": np.mean([c["covered"] for c in cells])}
    for name, some in errors.items():
        known = np.abs([error for error in some if error is not None])
        found |= {f"{name}_mean": known.mean(), f"{name}_max": known.max()} if len(known) else {}
    return found


class _Case:
    """A drafter and a rule."""

    def __init__(self, load: Load, drafter: str, trace: str, pieces: Pieces, graphs: bool, tiny: bool) -> None:
        self.name, self._drafter = f"{drafter}-{trace}", drafter
        self._exact = cache(partial(load, drafter, 16 if tiny else 256))
        # Triton's interpreter multiplies bfloat16 wrongly.
        self._load = self._exact if tiny else cache(partial(self._exact, dtype="bfloat16"))
        self._output, self._tiny = pieces.output, tiny
        self._trace = load_trace(shipped(f"traces/{drafter}-{trace}.npz"))
        self._policies = self._trace.candidates is not None
        self._graphs = graphs
        self._sampled = trace == "t1"
        self._new = 8 if tiny else int(self._trace.lengths.max())

    def _runner(self) -> LoopRunner:
        target, drafter, _ = self._load()
        generator = torch.Generator(target.device).manual_seed(0)
        rule = SampleAndMatch(Warp(), generator) if self._sampled else Greedy()
        return LoopRunner(target, drafter, rule=rule, graphs=self._graphs)

    def profile(self, batches: tuple[int, ...], budget_s: float) -> dict[str, Any]:
        small: dict[str, Any] = {"rounds": 2, "steps": 2, "max_nodes": 8, "max_depth": 2} if self._tiny else {}
        settings = Measuring(batch=batches, new_tokens=self._new, policies=self._policies, **small)
        measured = partial(measure_profile, self._runner(), self._load()[2])
        try:
            found = measured(settings if self._tiny else settings.changed(budget_s=budget_s))
        except UsageError:  # the smallest profile takes longer
            found = measured(settings.changed(budget_s=2 * budget_s))
        save_profile(found, self._output / f"live-{self.name}.profile.json")
        plain = {f"plain_{batch}_ms": 1e3 * found.plain_s(batch=batch) for batch in batches}
        return plain | {"rounds": found.meta["rounds"], "left_out": len(found.meta["left_out"])}

    def compared(self, batch: int) -> dict[str, Any]:
        costs, runner = load_profile(self._output / f"live-{self.name}.profile.json"), self._runner()
        dynamic = (DYNAMIC[:1] if self._tiny else DYNAMIC) if self._policies else ()
        plan = search(
            self._trace,
            costs,
            batch=(batch,),
            solver_work=0.0,
            dynamic=dynamic,
            compare={} if self._tiny else {"Medusa's tree": published_trees()[MEDUSA]},
        )
        slow = self._sampled or self._policies
        requests = TINY[batch] if self._tiny else REQUESTS[batch] // (3 if slow else 1)
        asked = Requests(self._load()[2][:requests], self._new, [0])
        live = LiveComparison(runner, plan, asked, blocks=2)
        whole = whole_runs(plan, hold_out(self._trace)[1], costs, live.sizes)
        predictions = Predictions(plan, meta={"provenance": this_run()}, whole=whole)
        save_predictions(predictions, self._output / f"live-{self.name}-{batch}.predictions.json")
        print(f"live: {self.name}, batch {batch}: predicted, sha256 {predictions.sha256}", flush=True)
        begun = time.monotonic()
        comparisons = live.run(whole=whole)
        record = comparison_record(comparisons)
        cells = [
            cell
            | {"case": self.name, "covered": one.covered, "sheet_error": self._sheet_error(one, asked.context)}
            | {"tau_error": one.predicted.tau.value / one.measured.tau.value - 1}
            for cell, one in zip(record["cells"], comparisons, strict=True)
        ]
        return {
            "mean_error": record["mean_error"],
            "max_error": record["max_error"],
            "measured_in_s": time.monotonic() - begun,
            "skipped": len(plan.entries[0].skipped),
            "predictions": {"sha256": predictions.sha256},
            "plain": record["plain"],
            "end_to_end": record["end_to_end"],
            "cells": cells,
        }

    def _sheet_error(self, one: Comparison, context: int) -> float | None:
        """Return the error of the speedup that the data sheet gives at the measured tau; None for a dynamic tree."""
        if one.tree is None:
            return None
        target, _, _ = self._load()
        shape = Shape.from_config(target.model.config.to_dict())
        config = shipped(f"models/stdlib-{self._drafter}/config.json")
        name = torch.cuda.get_device_name(target.device) if target.device.type == "cuda" else ""
        try:
            sheet = Roofline(
                shape,
                drafter_shape(config, kind=self._drafter, target=shape),
                find_hardware("H200" if "H200" in name else "H100"),
                **dict.fromkeys(("weight_bytes", "draft_bytes", "kv_bytes"), target.model.dtype.itemsize),
            )
            tau = one.measured.tau.value
            step = StepShape.of(one.tree, batch=one.batch, context=context, committed=tau)
            quotient = sheet.plain_s(batch=one.batch, context=context) / float(sheet.step_s([step])[0])
        except CostError:
            return None
        return tau * quotient / one.measured.speedup.value - 1

    def tau(self) -> dict[str, Any]:
        """Compare the live steps of trees with those of a replay of these requests' own trace."""
        target, drafter, tokens = self._exact()
        tokens = tokens[:4] if self._tiny else tokens[:64]
        prompts = [Prompt("")] * len(tokens)
        trace = collect(target, drafter, prompts, tokens, new_tokens=self._new, width=16, depth=4, stop=[0], batch=16)
        found: dict[str, Any] = {}
        for name, tree in (("chain", Tree.chain(4)), ("tree", Tree.full(4, 2) if self._tiny else _shallow())):
            decoder = Decoder(target, drafter, tree=tree, batch=4 if self._tiny else 16, graphs=self._graphs)
            texts = decoder.generate(tokens, new_tokens=self._new, stop=[0])
            steps = visit(tree, trace)
            replayed = [steps.accepted[steps.request == request].tolist() for request in range(len(tokens))]
            written = sum(len(text.tokens) for text in texts)
            found |= {
                f"{name}_live": written / sum(len(text.accepted) for text in texts),
                f"{name}_replayed": int(trace.lengths.sum()) / sum(map(len, replayed)),
                f"{name}_equal": sum(list(t.accepted) == r for t, r in zip(texts, replayed, strict=True)),
            }
        return found | {"requests": len(tokens)}

    def plain_steps(self, batch: int) -> dict[str, Any]:
        """Measure plain steps in rounds, with graphs and without, by the fused and by the model's own forward."""
        target, _, tokens = self._exact()
        found: dict[str, Any] = {}
        ways = {"fused": target, "own": Target(target.model, name=target.name)}
        for name, verifier in ways.items():
            for graphs in (False, True) if self._graphs else (False,):
                decoder = Decoder(verifier, batch=batch, graphs=graphs)
                rounds = []
                for turn in range(3):
                    prompts = [*tokens[turn * batch :], *tokens][: 2 * batch]
                    begun = time.perf_counter()
                    block = run_block(decoder, prompts, steps=20, new_tokens=20 + 2 * WARM_UP)
                    wall_s, ms = time.perf_counter() - begun, [1e3 * step.rest_s for step in block]
                    rounds.append({"median_ms": float(np.median(ms)), "wall_s": wall_s, "ms": ms})
                label = f"{name}{'_graphs' if graphs else ''}"
                found[f"{label}_ms"] = "/".join(f"{one['median_ms']:.2f}" for one in rounds)
                found[f"{label}_rounds"] = rounds
        return found


def _shallow() -> Tree:
    """Return Medusa's tree as deep as the traces that are compared."""
    return Tree.from_paths([path for path in published_trees()[MEDUSA].paths if len(path) <= 4])
