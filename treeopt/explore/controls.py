"""The controls of the page: groups of marimo's elements, whose values `questions` reads by name."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from treeopt.defaults import NODES, WHATIF_CONTEXT
from treeopt.engines import ENGINES
from treeopt.explore.offered_files import COUNTS, SIZES, Offer, devices
from treeopt.explore.questions import ALL_POLICIES, ANY_TREE, MEASURED, NO_POLICIES, PREDICTED, SOURCES
from treeopt.plans.plan import Plan
from treeopt.policies.policy_kinds import sweeps
from treeopt.replay.objective import OBJECTIVES, THROUGHPUT
from treeopt.storage.provenance import look

if TYPE_CHECKING:
    from marimo import AppMeta, ui

BATCHES = "1, 4"  # every shipped profile measured these
BY_DRAFTER = "by the drafter"  # label of no method
ALL = "all"  # label of all batch sizes


def files_of(meta: "AppMeta") -> Mapping[str, Any]:
    """Return the files that the server hands to the page, arguments of `Offer.of_files`; none without a server."""
    return meta.request.meta if meta.request else {}


def source(offer: Offer) -> "ui.dictionary":
    """Return `trace` and `source`: the recorded acceptance, and where step times come from."""
    sources = SOURCES if offer.profiles else (PREDICTED,)
    return _group(trace=_choice("Trace", list(offer.traces)), source=_choice("Step times", sources))


def step_times(offer: Offer, trace: str, kind: str) -> "ui.dictionary":
    """Return `profile`, or `device`, `count`, `target` and `context`; the best profile for the trace comes first."""
    from marimo import ui

    if kind == MEASURED:
        return _group(profile=_choice("Profile", offer.profiles_for(trace)))
    own = [name for name in offer.targets if name not in SIZES]
    return _group(
        device=_choice("Device", devices(), value="H100 SXM"),
        count=_choice("Number of devices", {str(count): count for count in COUNTS}),
        target=_choice("Target model", list(offer.targets), value=own[0] if own else "8b"),
        context=ui.number(
            1, 2**20, value=WHATIF_CONTEXT, step=1, label="Tokens in the cache", debounce=True, full_width=True
        ),
    )


def limits(deepest: int) -> "ui.dictionary":
    """Return `batches`, `engine`, `objective`, `nodes`, `depth` and `tpot`; `deepest` is the depth of the trace."""
    return _group(
        batches=_text("Batch sizes", BATCHES),
        engine=_choice("Engine", [ANY_TREE, *ENGINES.limiting()]),
        objective=_choice("Objective", list(OBJECTIVES), value=THROUGHPUT.name),
        nodes=_slider("Nodes, at most", NODES),
        depth=_slider("Depth, at most", deepest),
        tpot=_text("Milliseconds per token, at most", "", placeholder="no limit"),
    )


def dynamic(offer: Offer, trace: str, steps: Mapping[str, Any]) -> "ui.dictionary":
    """Return `dynamic`, kinds of dynamic trees; nothing where the trace or the step times say nothing about them.

    Args:
        offer: the files.
        trace: name of the trace.
        steps: values of `step_times`.
    """
    if "profile" not in steps or not offer.takes_policies(trace, steps["profile"]):
        return _group()
    return _group(dynamic=_choice("Dynamic trees", [NO_POLICIES, *sweeps(), ALL_POLICIES]))


def price() -> "ui.dictionary":
    """Return `price`, that of one device per hour."""
    return _group(price=_text("Price of a device per hour", "", placeholder="no prices"))


def shown_batch(plan: Plan) -> "ui.radio":
    """Return the choice of the batch size that is shown in detail."""
    from marimo import ui

    batches = {str(entry.batch): entry.batch for entry in plan.entries}
    return ui.radio(batches, value=next(iter(batches)), label="Batch size shown", inline=True)


def handover(engine: str, plan: Plan) -> "ui.dictionary":
    """Return `method`, `model` and `batch` of an export; the method is the engine's first for the plan's drafter."""
    batches = {ALL: None, **{str(entry.batch): entry.batch for entry in plan.entries}}
    offered, fitting = ENGINES[engine].choices, ENGINES[engine].fitting(look(plan.meta, "trace", "drafter", "kind"))
    methods = {BY_DRAFTER: None, **{name: name for name in offered}}
    return _group(
        method=_choice("Drafting method", methods, value=next((name for name in fitting if name in offered), None)),
        model=_text("Checkpoint of the drafter", "", placeholder="not named"),
        batch=_choice("Batch sizes", batches),
    )


def _group(**elements: Any) -> "ui.dictionary":
    from marimo import ui

    return ui.dictionary(elements)


def _choice(label: str, options: Any, *, value: str | None = None) -> "ui.dropdown":
    from marimo import ui

    return ui.dropdown(options, value=value or next(iter(options)), label=label, full_width=True)


def _text(label: str, value: str, *, placeholder: str = "") -> "ui.text":
    from marimo import ui

    return ui.text(value, placeholder=placeholder, label=label, debounce=True, full_width=True)


def _slider(label: str, last: int) -> "ui.slider":
    from marimo import ui

    return ui.slider(1, last, value=last, label=label, show_value=True, debounce=True, full_width=True)
