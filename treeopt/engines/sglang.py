"""The export to SGLang 0.5.23: a chain as launch flags, chains by batch size as an adaptive config, or a dynamic tree.

There is no option for a static tree. `--speculative-num-draft-tokens` counts the root, `Tree.nodes` does not.
With topk 1 it is overwritten by steps + 1. With a larger topk, a dynamic tree is built at every step from
K + (D - 1) K² candidates, and more draft tokens than that crash at run time (`organize_draft_results`).

The adaptive config is keyed by batch size since 0.5.13 (srt/speculative/adaptive_spec_params.py): a batch is
padded to the next CUDA-graph size, then uses the largest key that it reaches, or below all keys the smallest.
A batch between two planned sizes thus uses the smaller one's steps, as long as it is not padded to the larger.
Keys that are no integers are not read as tiers, so provenance is stored there under "treeopt". A tier with one
candidate never changes; 0 steps decode plainly.
"""

import json
import shlex
from collections.abc import Mapping, Sequence

from treeopt.constraints import ChainOnly, FitsPool, branching, broken
from treeopt.engines.export import (
    Export,
    Fit,
    Nearest,
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
from treeopt.plans.plan import Plan, PlanEntry
from treeopt.policies import DynamicTree
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

ENGINE = "SGLang 0.5.23"
ROUTER = "srt/speculative/adaptive_spec_params.py"
SIMULATED = "_sample_simulated_acc_len in srt/speculative/spec_utils.py"
ONE_LENGTH = f"{ENGINE} draws one accepted length per step for the whole batch, the mean rounded down or up"
CHAINS = (ChainOnly(source="no tree option in srt/arg_groups/fields/spec.py"),)
TRIPLES = (FitsPool(source="organize_draft_results in srt/speculative/eagle_utils.py, sglang#24054"),)

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
    notes = _notes(plan, algorithm, largest=entries[-1].batch)
    if replay is not None and nearest != "chain" and any(entry.choice.grown or _branches(entry) for entry in entries):
        raise EngineError(f"{ENGINE} imposes acceptance only on chains ({SIMULATED}); nearest: `chain`")
    if nearest != "chain" and any(entry.choice.grown for entry in entries):
        return _grown(entries, words, notes)
    if nearest == "triple" and any(_branches(entry) for entry in entries):
        return _dynamic(entries, words, notes)
    fits = [
        fit(entry, engine=ENGINE, rules=CHAINS, nearest=nearest, others=_describe_triple(entry)) for entry in entries
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
        text = " ".join([*words, flags(steps=longest, topk=1, nodes=longest)])
        return Export(text, ".txt", "", tuple(notes), environment)
    if algorithm and algorithm not in ADAPTIVE:
        raise EngineError(
            f"{ENGINE} cannot change the steps of {algorithm} by batch size "
            f"({ROUTER}); nearest: one batch size of {listed(fits)}"
        )
    words += [
        f"--speculative-num-steps {longest} --speculative-eagle-topk 1 --speculative-adaptive",
        f"--speculative-adaptive-config {shlex.quote(file)}",
    ]
    return Export(adaptive_config(fits), ".json", " ".join(words), (*notes, *_adaptive_notes(steps, longest)))


def flags(*, steps: int, topk: int, nodes: int) -> str:
    """Return the three launch flags; the last counts the root.

    >>> flags(steps=5, topk=4, nodes=15)
    '--speculative-num-steps 5 --speculative-eagle-topk 4 --speculative-num-draft-tokens 16'
    """
    return f"--speculative-num-steps {steps} --speculative-eagle-topk {topk} --speculative-num-draft-tokens {nodes + 1}"


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


def _grown(entries: Sequence[PlanEntry], words: Sequence[str], notes: Sequence[str]) -> Export:
    """Return the flags of the planned policy itself, if it is the one that SGLang has."""
    entry = _only(entries)
    assert entry.choice.grown is not None
    policy = entry.choice.grown.policy
    if not isinstance(policy, DynamicTree) or _more_than_a_triple(policy):
        raise EngineError(
            f"{ENGINE} cannot run policy {entry.choice.grown.kind} (batch {entry.batch}): it offers only steps, topk "
            "and draft tokens; nearest: policy eagle2, or `chain`"
        )
    text = " ".join([*words, flags(steps=policy.depth, topk=policy.beam, nodes=policy.nodes)])
    return Export(text, ".txt", "", (*notes, *_topk_note(policy.beam), f"planned for batch {entry.batch} only"))


def _more_than_a_triple(policy: DynamicTree) -> bool:
    settings = policy.min_probability or policy.budget or policy.calibration
    return bool(settings) or policy.children != policy.beam


def _only(entries: Sequence[PlanEntry]) -> PlanEntry:
    if len(entries) > 1:
        raise EngineError(
            f"{ENGINE} cannot change a dynamic tree by batch size, because adaptive steps need topk 1 "
            f"({ROUTER}); nearest: one batch size of {listed(entries)}, or `chain`"
        )
    return entries[0]


def _topk_note(topk: int) -> tuple[str, ...]:
    return ("topk above 1 with a page size above 1 needs attention by flashinfer, fa3 or triton",) if topk > 1 else ()


def _dynamic(entries: Sequence[PlanEntry], words: Sequence[str], notes: Sequence[str]) -> Export:
    whole = fit(_only(entries), engine=ENGINE, rules=TRIPLES, nearest=None)
    tree = whole.tree
    assert tree is not None
    replaced = (
        f"batch {whole.batch}: tree {tree.id} was replaced by a dynamic tree of the same size, so "
        "the plan's prediction no longer holds"
    )
    notes = [replaced, *notes, coverage_note([whole]), origin_note([whole]), *_topk_note(branching(tree))]
    text = " ".join([*words, flags(steps=tree.depth, topk=branching(tree), nodes=tree.nodes)])
    return Export(text, ".txt", "", tuple(notes))


def _branches(entry: PlanEntry) -> bool:
    tree = entry.choice.tree
    return tree is not None and broken(tree, CHAINS) is not None


def _describe_triple(entry: PlanEntry) -> list[str]:
    """Return the triple for an error message; empty if it does not fit."""
    tree = entry.choice.tree
    if tree is None or broken(tree, TRIPLES):
        return []
    numbers = flags(steps=tree.depth, topk=branching(tree), nodes=tree.nodes)
    return [f"a dynamic tree (`triple`), not predicted: {numbers}"]


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
