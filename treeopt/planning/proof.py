"""The proof of a choice, as labelled lines: what was searched, what is proved, what is not."""

from dataclasses import replace

from treeopt.cost_model import Measured
from treeopt.planning.evaluator import Judge
from treeopt.planning.tree_candidates import Proposals
from treeopt.plans.plan import Proof
from treeopt.replay.objective import THROUGHPUT
from treeopt.searchers.constrained_trees.dinkelbach import Refined

SEARCHED, PROVED, NOT_PROVED = "Searched: ", "Proved: ", "Not proved: "
CHOICE, STATIC_CHOICE = "the choice is", "the best static tree is"


def proof_of(judge: Judge, proposals: Proposals, batch: int) -> Proof:
    """Return what is known about the tree chosen for a batch size; the statement is one labelled line per fact."""
    maximised = "replayed tokens per second"
    if judge.objective is not THROUGHPUT:
        maximised += f", {judge.objective.name}"
    lines = [SEARCHED + _search_words(judge, proposals)]
    if not proposals.grown:
        lines.append(_enumeration(judge, proposals))
        if refined := proposals.refined(batch):
            lines.append(PROVED + _certificate(refined))
    lines.append(NOT_PROVED + f"{CHOICE} {_choice_words(proposals)}")
    return Proof(maximised, optimal=False, statement="\n".join(f"{line}." for line in lines))


def with_policy(proof: Proof, *, kind: str, tried: int) -> Proof:
    """Return the proof for a batch size where a dynamic policy takes the place of the best static tree.

    >>> proof = Proof("replayed tokens per second", False, "Not proved: the choice is the best one found.")
    >>> print(with_policy(proof, kind="eagle2", tried=7).statement)
    Not proved: policy eagle2 is the fastest of 7 settings on the fitted requests.
    Not proved: the best static tree is the best one found.
    """
    line = f"{NOT_PROVED}policy {kind} is the fastest of {tried} settings on the fitted requests."
    return replace(proof, statement=f"{line}\n{proof.statement.replace(CHOICE, STATIC_CHOICE)}")


def _search_words(judge: Judge, proposals: Proposals) -> str:
    rules = " that keep the rules" if proposals.rules else ""
    parts = "" if judge.fit.tree is None else ", parts of the tree that the trace was recorded with"
    return f"trees of up to {proposals.settings.nodes} nodes and depth {proposals.settings.depth}{rules}{parts}"


def _enumeration(judge: Judge, proposals: Proposals) -> str:
    """Return the line about the enumerated candidates."""
    averaged = f"position-averaged tokens{' (counts shrunk)' if proposals.shrink else ''}"
    if not proposals.options.closed:
        counted = len(proposals.pool.value) if proposals.pool else 0
        return f"{NOT_PROVED}candidates are the best of the {counted} most likely nodes; rarer nodes were left out"
    if not proposals.options.exact:
        return f"{NOT_PROVED}candidates were grown for {averaged}, which proves nothing under these rules"
    line = f"{PROVED}each enumerated candidate has the most {averaged} of its size and depth"
    if not judge.cost.separable:
        return f"{line}, but its step time also depends on level widths"
    if isinstance(judge.cost, Measured) and not judge.cost.widths_known:
        return f"{line}, and is the fastest of them if wider levels cost the drafter nothing"
    return line


def _certificate(refined: Refined) -> str:
    """Return what the integer programme proves about one candidate."""
    objective = "position-averaged tokens per second"
    if refined.optimal:
        return f"by integer programme, one candidate is the best tree for {objective}"
    return f"by integer programme, one candidate is within {100 * refined.gap:.2g} % of the best tree for {objective}"


def _choice_words(proposals: Proposals) -> str:
    """Return how the choice compares with the other candidates."""
    settings = proposals.settings
    best = "the best one grown node by node" if proposals.grown else "the best one found"
    best += " by replay on the fitted requests"
    return f"the smallest tree within {settings.near:.0%} of {best}" if settings.near else best
