"""The controls of the page: groups of marimo's elements, whose values `question_of` reads by name.

Labels name the options of the command line that errors of the library speak of.
"""

from collections.abc import Mapping
from typing import Any

from marimo import AppMeta, ui

from simulate.roofline.data_sheets import load_hardware
from treeopt.defaults import NODES, WHATIF_CONTEXT
from treeopt.engines import ENGINES
from treeopt.explore.answers import ALL_POLICIES, ANY_TREE, COUNTS, NO_POLICIES, PREDICTED, SIZES, SOURCES, Offer
from treeopt.plans import Plan
from treeopt.policies.policy_kinds import sweeps
from treeopt.replay.objective import OBJECTIVES, THROUGHPUT
from treeopt.storage.provenance import look

BATCHES = "1, 4"  # every shipped profile measured these


def files_of(meta: AppMeta) -> Mapping[str, Any]:
    """Return the files that the server hands to the page, arguments of `Offer.of_files`; none without a server."""
    return meta.request.meta if meta.request else {}


def trace(offer: Offer) -> ui.dropdown:
    """Return the choice of the recorded acceptance."""
    return _choice("Trace", list(offer.traces))


def source(offer: Offer) -> ui.dropdown:
    """Return the choice where step times come from; apart from the trace, whose change makes other controls anew."""
    return _choice("Step times", SOURCES if offer.profiles else (PREDICTED,))


def measured(offer: Offer, name: str) -> ui.dictionary:
    """Return `profile`, the best one for the trace of this name first; nothing if none is offered."""
    return ui.dictionary({"profile": _choice("Profile", offer.profiles_for(name))} if offer.profiles else {})


def predicted(offer: Offer) -> ui.dictionary:
    """Return `device`, `count`, `target` and `context`."""
    own = [name for name in offer.targets if name not in SIZES]
    return ui.dictionary(
        {
            "device": _choice("Device", list(load_hardware()), value="H100 SXM"),
            "count": _choice("Number of devices", {str(count): count for count in COUNTS}),
            "target": _choice("Target model", list(offer.targets), value=own[0] if own else "8b"),
            "context": _number("Tokens in the cache", WHATIF_CONTEXT, least=1),
        }
    )


def limits() -> ui.dictionary:
    """Return `batches`, `engine`, `objective`, `nodes`, `tpot` and `dynamic`."""
    return ui.dictionary(
        {
            "batches": ui.text(BATCHES, label="Batch sizes (--batch)", debounce=True, full_width=True),
            "engine": _choice("Engine (--for)", [ANY_TREE, *ENGINES.limiting()]),
            "objective": _choice("Objective (--objective)", list(OBJECTIVES), value=THROUGHPUT.name),
            "nodes": _slider("Nodes, at most (--max-nodes)", NODES),
            "tpot": _number("Milliseconds per token, at most; 0: no limit", 0),
            "dynamic": _choice("Dynamic trees (--policy)", [NO_POLICIES, *sweeps(), ALL_POLICIES]),
        }
    )


def price() -> ui.number:
    """Return the price of one device per hour, which needs no other search."""
    return _number("Price of a device per hour; 0: none", 0)


def depth(deepest: int) -> ui.slider:
    """Return the limit of the depth, up to that of the trace."""
    return _slider("Depth, at most (--max-depth)", deepest)


def shown_batch(plan: Plan) -> ui.radio:
    """Return the choice of the batch size that is shown in detail."""
    batches = {str(entry.batch): entry.batch for entry in plan.entries}
    return ui.radio(batches, value=next(iter(batches)), label="Batch size shown", inline=True)


def handover(engine: str, plan: Plan) -> ui.dictionary:
    """Return `method`, `model` and `batch` of an export; the method is the engine's first for the plan's drafter."""
    batches = {"all": None, **{str(entry.batch): entry.batch for entry in plan.entries}}
    offered, fitting = ENGINES[engine].choices, ENGINES[engine].fitting(look(plan.meta, "trace", "drafter", "kind"))
    methods = {"by the drafter": None, **{name: name for name in offered}}
    chosen = next((name for name in fitting if name in offered), None)
    model = "Checkpoint of the drafter (--model)"
    return ui.dictionary(
        {
            "method": _choice("Drafting method (--method)", methods, value=chosen),
            "model": ui.text(placeholder="not named", label=model, debounce=True, full_width=True),
            "batch": _choice("Batch sizes (--batch)", batches),
        }
    )


def _choice(label: str, options: Any, *, value: str | None = None) -> ui.dropdown:
    return ui.dropdown(options, value=value or next(iter(options)), label=label, full_width=True)


def _number(label: str, value: float, *, least: int = 0) -> ui.number:
    return ui.number(least, 1e9, value=value, label=label, debounce=True, full_width=True)


def _slider(label: str, last: int) -> ui.slider:
    return ui.slider(1, last, value=last, label=label, show_value=True, debounce=True, full_width=True)
