"""The export to llama.cpp b11434: options of `llama-server` for a chain, one length until the server is started again.

Draft models take their length from `--spec-draft-n-max`, which counts drafted tokens without the root, like
`Tree.depth`; a probability below `--spec-draft-p-min` ends a draft early, so it is set to 0. N-gram types ignore that
option: each has its own (`common_speculative_n_max` in common/speculative.cpp), and ngram-cache always drafts up to 8.
ngram-mod drops drafts shorter than its n-min, 48 by default. Branches exist only in the demonstration
`examples/speculative`.

Imposed acceptance takes exactly as many rates P(the first i are accepted) as the longest draft, never rising
(`common_speculative_synth_rates_resolve`); a type that clamps the length then refuses them.

* `driver`: llama-server processes, launched by draft length.
"""

import shlex
from collections.abc import Mapping

from treeopt.constraints import ChainOnly, DepthAtMost
from treeopt.engines.export import (
    DRAFTER,
    TARGET,
    Export,
    Nearest,
    checked_note,
    chosen_method,
    coverage_note,
    drafter_notes,
    entries_of,
    one_chain,
    origin_note,
    refuse_triple,
)
from treeopt.engines.imposed_acceptance import DIGITS, imposed_notes, kept_rates
from treeopt.errors import UsageError
from treeopt.plans.plan import Plan
from treeopt.storage.provenance import look
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

ENGINE = "llama.cpp b11434"
CHECKED = f"the code of {ENGINE}, common/arg.cpp and common/speculative.cpp"
CONSTRAINTS = (ChainOnly(source="llama-server takes only lengths, common/arg.cpp"),)

METHODS: Mapping[str, frozenset[str]] = {
    "draft-simple": frozenset({"language-model"}),
    "draft-eagle3": frozenset({"eagle3"}),
    "draft-mtp": frozenset({"mtp"}),
    "draft-dflash": frozenset({"dflash"}),
    "draft-dspark": frozenset({"dspark"}),
    "ngram-simple": frozenset({"prompt-lookup:llama.cpp", "prompt-lookup"}),
    "ngram-map-k": frozenset({"prompt-lookup"}),
    "ngram-map-k4v": frozenset({"prompt-lookup"}),
    "ngram-mod": frozenset({"prompt-lookup"}),
}
"""Values of `--spec-type` whose length can be set, and the kinds of treeopt's drafters that each runs."""

LENGTHS: Mapping[str, str] = {
    "ngram-simple": "--spec-ngram-simple-size-m {}",
    "ngram-map-k": "--spec-ngram-map-k-size-m {}",
    "ngram-map-k4v": "--spec-ngram-map-k4v-size-m {}",
    "ngram-mod": "--spec-ngram-mod-n-max {} --spec-ngram-mod-n-min 0",
}
"""How n-gram types take their length."""

HOST_SAMPLING: Mapping[str, str] = {"draft-eagle3": "--no-spec-draft-backend-sampling"}
"""Options that keep drafts as good with several slots as with one. By default llama-server 0.6.0-dev samples the drafts
of these types in the drafter's compute graph; with several slots far fewer are then accepted (docs/results/engines.md).
"""

LONGEST_NGRAM = DepthAtMost(1024, source="--spec-ngram-*-size-m in common/arg.cpp")
CLAMPED = frozenset({"draft-mtp", "draft-dflash", "draft-dspark"})
WITHOUT_MODEL = frozenset({*LENGTHS, "draft-mtp"})


def export(
    plan: Plan,
    *,
    method: str | None = None,
    model: str | None = None,
    target: str = TARGET,
    batch: int | None = None,
    nearest: Nearest | None = None,
    replay: Trace | None = None,
) -> Export:
    """Return options of `llama-server` that draft the planned chain.

    Args:
        plan: what to export.
        method: a value of `--spec-type`; default by the plan's drafter.
        model: GGUF file of the drafter; default none, to be added by the caller.
        target: GGUF file of the target, for the launch line.
        batch: one of the plan's batch sizes; needed when their chains differ.
        nearest: "chain" uses the plan's best chain where the tree branches.
        replay: a trace whose acceptance, on the chain's walk, is imposed.

    Raises:
        UsageError: no method, no such batch size, or a drafter's file for a type that reads none.
        EngineError: a type without a length, a branching tree, chains of several lengths, or a plan without
            speculation.
        TraceError: a chain that the replayed trace does not cover.
    """
    refuse_triple(ENGINE, nearest)
    method = chosen_method(method, plan, engine=ENGINE, methods=METHODS)
    if method in LENGTHS and model is not None:
        raise UsageError(f"{ENGINE}: {method} reads no drafter, so it takes no model: omit --model")
    rules = (*CONSTRAINTS, LONGEST_NGRAM) if method in LENGTHS else CONSTRAINTS
    entries = entries_of(plan, batch=batch)
    fits = one_chain(entries, engine=ENGINE, rules=rules, nearest=nearest)
    length = fits[0].depth
    text = f"--spec-type {method} {draft_options(method, length, slots=fits[-1].batch)}"
    notes = [at.note for at in fits if at.note]
    notes += drafter_notes(plan, engine=f"{ENGINE} {method}", kinds=METHODS[method])
    notes += _method_notes(method, length, look(plan.meta, "trace", "drafter", "kind"))
    if replay is not None:
        rates = kept_rates(Tree.chain(length), replay)
        text += f" --spec-synth-rates {','.join(f'{rate:.{DIGITS}f}' for rate in rates)}"
        notes += imposed_notes(entries, fits, replay, rates)
    if model is not None:
        text = f"-md {shlex.quote(model)} {text}"
    notes += [checked_note(CHECKED), coverage_note(fits), origin_note(fits)]
    drafter = "" if model is not None or method in WITHOUT_MODEL else f"-md {DRAFTER} "
    launch = f"llama-server -m {shlex.quote(target)} -np {fits[-1].batch} {drafter}{text}"
    return Export(text, ".txt", "", tuple(notes), launch=launch)


def draft_options(method: str, length: int, *, slots: int) -> str:
    """Return the options that make a method draft `length` tokens, equally well for any number of slots.

    >>> draft_options("ngram-simple", 5, slots=4)
    '--spec-ngram-simple-size-m 5'
    """
    text = LENGTHS.get(method, "--spec-draft-n-max {} --spec-draft-p-min 0").format(length)
    return f"{text} {HOST_SAMPLING[method]}" if slots > 1 and method in HOST_SAMPLING else text


def _method_notes(method: str, length: int, kind: object) -> list[str]:
    if method in CLAMPED:
        return [f"{ENGINE} drafts no more than {method} was trained for; check its log for a length below {length}"]
    if method in LENGTHS and kind == "prompt-lookup:llama.cpp":
        return [
            f"set --spec-ngram-simple-size-n to N of the drafter's name (default 12), at most {length}: "
            "shorter drafts are dropped"
        ]
    if method in LENGTHS:
        return [
            f"{ENGINE} {method} matches a fixed number of tokens (see its size-n or n-match option), takes one piece "
            "of the text, and drafts nothing where nothing matches; treeopt's prompt lookup always drafts something"
        ]
    return []
