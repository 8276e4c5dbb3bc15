"""The export to SGLang 0.5.23: a chain as launch flags, chains by batch size as an adaptive config, or a dynamic tree.

There is no option for a static tree. `--speculative-num-draft-tokens` counts the root, `Tree.nodes` does not.
With topk 1 it is overwritten by steps + 1. With a larger topk, a dynamic tree is built at every step from
K + (D - 1) K² candidates, and more draft tokens than that crash at run time (`organize_draft_results`).

The adaptive config is keyed by batch size since 0.5.13 (srt/speculative/adaptive_spec_params.py): a batch is
padded to the next CUDA-graph size, then uses the largest key that it reaches, or below all keys the smallest.
A batch between two planned sizes thus uses the smaller one's steps, as long as it is not padded to the larger.
Keys that are no integers are not read as tiers, so provenance is stored there under "treeopt". A tier with one
candidate never changes; 0 steps decode plainly.

* `driver`: its servers, launched by draft length.
"""

import json
import shlex
from collections.abc import Mapping, Sequence

from treeopt.constraints import ChainOnly
from treeopt.engines.dynamic_trees import DynamicTrees, Triple, asked_for, branches, describe, dynamic_tree
from treeopt.engines.export import (
    DRAFTER,
    TARGET,
    Export,
    Fit,
    Nearest,
    checked_note,
    coverage_note,
    drafter_notes,
    entries_of,
    fit,
    listed,
    origin,
    origin_note,
    refuse_plain,
    tiers,
)
from treeopt.engines.imposed_acceptance import imposed_notes, kept_rates
from treeopt.errors import EngineError
from treeopt.plans.plan import Plan
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

ENGINE = "SGLang 0.5.23"
ROUTER = "srt/speculative/adaptive_spec_params.py"
SIMULATED = "_sample_simulated_acc_len in srt/speculative/spec_utils.py"
ONE_LENGTH = f"{ENGINE} draws one accepted length per step for the whole batch, the mean rounded down or up"
CHAINS = (ChainOnly(source="no tree option in srt/arg_groups/fields/spec.py"),)
TREES = DynamicTrees(
    ENGINE,
    names=("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens"),
    counts_root=True,
    bound="pool",
    fills_levels=False,
    one_size=f"adaptive steps need topk 1 ({ROUTER})",
    source="organize_draft_results in srt/speculative/eagle_utils.py, sglang#24054",
)
CHECKED = f"the code of {ENGINE}"

ALGORITHMS: Mapping[str, frozenset[str]] = {
    "EAGLE": frozenset({"eagle"}),
    "EAGLE3": frozenset({"eagle", "eagle3"}),
    "NEXTN": frozenset({"mtp"}),
    "STANDALONE": frozenset({"language-model"}),
}
"""Algorithms that obey steps, topk and draft tokens, and the kinds of treeopt's drafters that each runs."""

ADAPTIVE = frozenset({"EAGLE", "EAGLE3", "NEXTN"})
"""Algorithms whose steps may change by batch size; NEXTN is another name for EAGLE."""

MAX_RUNNING = 48
"""Default limit of running requests in SGLang when it speculates."""


def export(
    plan: Plan,
    *,
    batch: int | None = None,
    nearest: Nearest | None = None,
    method: str | None = None,
    model: str | None = None,
    target: str = TARGET,
    file: str = "treeopt_sglang.json",
    replay: Trace | None = None,
) -> Export:
    """Return launch flags if one chain or triple is enough, else the adaptive config and the flags that go with it.

    Args:
        plan: what to export.
        batch: one of the plan's batch sizes; default all of them.
        nearest: replacement for a tree that branches: the plan's best "chain", or the "triple" (steps, topk, draft
            tokens) of a dynamic tree of the same depth, width and size, which needs a single batch size.
        method: SGLang's algorithm; default none, to be added by the caller.
        model: the drafter's checkpoint; default none.
        target: the target's checkpoint, for the launch line.
        file: path of the adaptive config, for the flags.
        replay: a trace whose mean number of tokens per step is imposed; only with one chain.

    Raises:
        UsageError: no such batch size.
        EngineError: a branching tree and no `nearest`, a triple that SGLang cannot fill, an algorithm that
            does not fit, acceptance imposed on more than one chain, or a plan without speculation.
        TraceError: a chain that the replayed trace does not cover.
    """
    algorithm = _algorithm(method)
    entries = entries_of(plan, batch=batch)
    words = [f"--speculative-algorithm {algorithm}"] if algorithm else []
    words += [f"--speculative-draft-model-path {shlex.quote(model)}"] if model else []
    start = _start(target, algorithm, model)
    notes = _notes(plan, algorithm, largest=entries[-1].batch)
    if replay is not None and nearest != "chain" and any(entry.choice.grown or branches(entry) for entry in entries):
        raise EngineError(f"{ENGINE} imposes acceptance only on chains ({SIMULATED}); nearest: `chain`")
    if asked_for(entries, nearest):
        triple, planned = dynamic_tree(entries, TREES, nearest=nearest)
        text = " ".join([*words, flags(triple)])
        return Export(
            text, ".txt", "", (*planned, *notes, *_topk_note(triple.width)), launch=f"{start} {flags(triple)}"
        )
    fits = [
        fit(entry, engine=ENGINE, rules=CHAINS, nearest=nearest, others=describe(entry, TREES)) for entry in entries
    ]
    steps = tiers(fits)
    longest = max(length for _, length in steps)
    if longest == 0:
        refuse_plain(ENGINE, [at.batch for at in fits])
    notes = [at.note for at in fits if at.note] + notes + [coverage_note(fits), origin_note(fits)]
    environment = ""
    if replay is not None:
        if len(steps) > 1:
            reason = f"{ENGINE} imposes one acceptance on all batch sizes ({SIMULATED}), but the chains differ"
            raise EngineError(f"{reason}; nearest: one batch size of {listed([at for at in fits if at.tree])}")
        rates = kept_rates(Tree.chain(longest), replay)
        notes += [*imposed_notes(entries, fits, replay, rates), ONE_LENGTH]
        environment = simulated(1 + sum(rates))
    if len(steps) == 1:
        chain = flags(Triple(longest, 1, longest))
        launch = f"{environment} {start} {chain}".strip()
        return Export(" ".join([*words, chain]), ".txt", "", tuple(notes), environment, launch)
    if algorithm and algorithm not in ADAPTIVE:
        raise EngineError(
            f"{ENGINE} cannot change the steps of {algorithm} by batch size "
            f"({ROUTER}); nearest: one batch size of {listed(fits)}"
        )
    adaptive = (
        f"--speculative-num-steps {longest} --speculative-eagle-topk 1 --speculative-adaptive "
        f"--speculative-adaptive-config {shlex.quote(file)}"
    )
    return Export(
        adaptive_config(fits),
        ".json",
        " ".join([*words, adaptive]),
        (*notes, *_adaptive_notes(steps, longest)),
        launch=f"{start} {adaptive}",
        file=file,
    )


def flags(triple: Triple) -> str:
    """Return the three launch flags; the last counts the root.

    >>> flags(Triple(depth=5, width=4, nodes=15))
    '--speculative-num-steps 5 --speculative-eagle-topk 4 --speculative-num-draft-tokens 16'
    """
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in TREES.settings(triple).items())


def simulated(tokens: float) -> str:
    """Return variables that make steps commit this many tokens on average, the bonus counted.

    >>> simulated(2.5).split()[:2]
    ['SGLANG_SIMULATE_ACC_LEN=2.500', 'SGLANG_SIMULATE_ACC_METHOD=match-expected']
    """
    settings = {"LEN": f"{tokens:.3f}", "METHOD": "match-expected", "TOKEN_MODE": "real-draft-token"}
    return " ".join(f"SGLANG_SIMULATE_ACC_{name}={value}" for name, value in settings.items())


def adaptive_config(fits: Sequence[Fit]) -> str:
    """Return the JSON of `--speculative-adaptive-config`: one candidate per tier, the first from batch 1.

    >>> list(json.loads(adaptive_config([Fit(4, None), Fit(16, None)])))
    ['1', 'treeopt']
    """
    config: dict[str, object] = {str(start): {"candidate_steps": [length]} for start, length in tiers(fits)}
    config["treeopt"] = origin(fits)
    lines = (f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in config.items())
    return "{\n" + ",\n".join(lines) + "\n}"


def _start(target: str, algorithm: str | None, model: str | None) -> str:
    """Return the launch line up to the settings of the plan; names that were not given stand as words in capitals."""
    words = ["python", "-m", "sglang.launch_server", "--model-path", target]
    words += ["--speculative-algorithm", algorithm or "ALGORITHM"]
    if model or algorithm != "NEXTN":
        words += ["--speculative-draft-model-path", model or DRAFTER]
    return shlex.join(words)


def _topk_note(topk: int) -> tuple[str, ...]:
    return ("topk above 1 with a page size above 1 needs attention by flashinfer, fa3 or triton",) if topk > 1 else ()


def _algorithm(method: str | None) -> str | None:
    if method is None:
        return None
    if method.upper() in ALGORITHMS:
        return method.upper()
    raise EngineError(f"{ENGINE} does not take steps and topk for method {method}; nearest: {', '.join(ALGORITHMS)}")


def _notes(plan: Plan, algorithm: str | None, *, largest: int) -> list[str]:
    if algorithm:
        notes = drafter_notes(plan, engine=f"{ENGINE} {algorithm}", kinds=ALGORITHMS[algorithm])
    else:
        notes = drafter_notes(plan, engine=ENGINE, kinds=frozenset().union(*ALGORITHMS.values()))
        notes.append("add --speculative-algorithm and --speculative-draft-model-path to the flags")
    notes.append(checked_note(CHECKED))
    if largest > MAX_RUNNING:
        notes.append(
            f"{ENGINE} runs at most {MAX_RUNNING} requests when it speculates; set --max-running-requests {largest}"
        )
    return notes


def _adaptive_notes(steps: Sequence[tuple[int, int]], longest: int) -> list[str]:
    """Return notes on when tiers begin early (a batch is padded to the next key), and when SGLang drops them."""
    before = ", ".join(str(start - 1) for start, _ in steps[1:])
    return [
        f"{ENGINE} pads a batch to the next CUDA-graph size before it selects a tier, so tiers begin early unless "
        f"--cuda-graph-bs holds {before}",
        f"{ENGINE} drops the tiers with a warning under attention DP, multi-layer EAGLE, two-batch overlap "
        f"or PDMux; steps are then {longest} at every batch",
    ]
