"""Sentences of a plan's proof: what was searched, what is proved about the choice, and what is not."""

from dataclasses import replace

from treeopt.cost_model import Measured
from treeopt.planning.evaluator import Judge
from treeopt.planning.tree_candidates import Proposals
from treeopt.plans import Proof
from treeopt.replay.objective import THROUGHPUT

SEARCHED, PROVED, NOT_PROVED = "Searched: ", "Proved: ", "Not proved: "
CHOICE, STATIC_CHOICE = "the choice is", "the best static tree is"


def proof_of(judge: Judge, proposals: Proposals, batch: int) -> Proof:
    """Return what is known about the tree chosen for a batch size; the statement is one labelled line per fact."""
    maximised = "replayed tokens per second"
    if judge.objective is not THROUGHPUT:
        maximised += f", {judge.objective.name}"
    rules = " that keep the rules" if proposals.rules else ""
    parts = "" if judge.fit.tree is None else ", parts of the tree that the trace was recorded with"
    settings = proposals.settings
    lines = [f"{SEARCHED}trees of up to {settings.nodes} nodes and depth {settings.depth}{rules}{parts}"]
    if not proposals.grown:
        lines.append(_enumeration(judge, proposals, batch))
        if refined := proposals.refined(batch):
            near = "" if refined.optimal else f"within {100 * refined.gap:.2g} % of "
            best = f"one candidate is {near}the best tree for position-averaged tokens per second"
            lines.append(f"{PROVED}by integer programme, {best}")
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


def _enumeration(judge: Judge, proposals: Proposals, batch: int) -> str:
    """Return the line about the enumerated candidates."""
    averaged = f"position-averaged tokens{' (counts shrunk)' if proposals.shrink else ''}"
    if not proposals.options.closed:
        counted = len(proposals.pool.value) if proposals.pool else 0
        return f"{NOT_PROVED}candidates are the best of the {counted} most likely nodes; rarer nodes were left out"
    if not proposals.options.exact:
        return f"{NOT_PROVED}candidates were grown for {averaged}, which proves nothing under these rules"
    line = f"{PROVED}none of these trees has more {averaged} than the best candidate that is no larger and no deeper"
    if not proposals.separable(batch):
        return f"{line}, but step times also depend on level widths"
    if isinstance(judge.cost, Measured) and not judge.cost.widths_known:
        return f"{line}, and wider levels are taken to cost the drafter nothing"
    return line


def _choice_words(proposals: Proposals) -> str:
    """Return how the choice compares with the other candidates."""
    settings = proposals.settings
    best = "the best one grown node by node" if proposals.grown else "the best one found"
    best += " by replay on the fitted requests"
    if not settings.near:
        return best
    within = f"the tree with the highest lower bound of those within the error or {settings.near:.0%} of {best}"
    return f"{within}, or a smaller one within {settings.near:.0%} of it"
