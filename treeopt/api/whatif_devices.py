"""`treeopt.whatif`: the best tree on devices, batch sizes and contexts that were not measured."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulate.whatif.whatif_settings import Config, WhatIfSettings
from treeopt.api.file_loading import as_trace, load_profile
from treeopt.api.messages import Progress, silent, warn
from treeopt.comparison.mismatch_warnings import model_warnings
from treeopt.defaults import BYTES, NODES
from treeopt.engines import ENGINES, engine_rules
from treeopt.errors import CostError, UsageError
from treeopt.planning.search_settings import SearchSettings
from treeopt.plans import Plan
from treeopt.replay.sampled_rules import ranks_and_rules
from treeopt.results.kinds import Record
from treeopt.settings import takes
from treeopt.storage.hub_models import folder_name
from treeopt.storage.provenance import look, this_run
from treeopt.traces.trace import Trace

if TYPE_CHECKING:
    from simulate.profiles.profile import Profile
    from simulate.whatif.scenarios import Place, Scenario


@takes(WhatIfSettings)
def whatif(trace: Trace | Path | str, *, settings: WhatIfSettings, progress: Progress = silent) -> "WhatIfRecord":
    """Choose a tree for each device, context and batch size, and say where speculation stops paying.

    Step times come from the models' sizes and the devices' data sheets; with `profile`, from times measured on another
    device. Acceptance is the trace's everywhere. A target or drafter may also be the content of its config.json.

    Args:
        trace: what the drafter got right.
        progress: shows how many devices and contexts are searched.

    Returns:
        The record that `treeopt whatif --json` prints. `plans()` and `profiles()` return what `--plans` and
        `--profiles` write.

    Raises:
        UsageError: settings that contradict each other.
        CostError: a device, model or size that has no price.

    Examples:
        >>> import treeopt
        >>> llama = {"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336}
        >>> llama |= {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256}
        >>> record = treeopt.whatif(
        ...     "data/traces/smollm2-eagle-t0.npz", hardware="l40s", target=llama, batch=(1, 64), max_nodes=4
        ... )
        >>> [(cell["batch"], cell["name"], round(cell["speedup"]["value"], 2)) for cell in record["cells"]]
        [(1, 'chosen tree', 1.47), (64, 'chosen tree', 1.28)]
        >>> record.plans()["l40s-512.json"].entry(64).choice.nodes
        2
    """
    return WhatIf.prepare(trace, settings).answer(progress)


@dataclass(frozen=True, eq=False)
class WhatIf:
    """A what-if question with its cost models, before any search.

    Attributes:
        trace: the trace.
        settings: the question, with kind of drafter, bytes per weight and step times settled.
        places: a cost model for each device and context.
        search: the settings of each search.
        prices: per hour, by device or group of devices.
        warnings: sentences without a full stop.
    """

    trace: Trace
    settings: WhatIfSettings
    places: "list[Place]"
    search: SearchSettings
    prices: dict[str, float] | None
    warnings: tuple[str, ...] = ()

    @classmethod
    def prepare(cls, trace: Trace | Path | str, settings: WhatIfSettings) -> "WhatIf":
        """Read what a question names, and make its cost models.

        Raises:
            UsageError: settings that contradict each other.
            CostError: a device, model or size that has no price.
        """
        from simulate.drafter_kinds import named_drafter, without_sizes
        from simulate.model_sizes.hf_config import context_limit, parsed
        from simulate.whatif.device_cost_models import context_warnings, drafter_kind, places_of, target_shape
        from simulate.whatif.token_prices import prices_of_devices

        if named := parsed(settings.target, named_drafter):
            raise CostError(f"{settings.target}: {named[0]} names {named[1]}, no language model: is it the --drafter?")
        target_shape(settings)  # a family without a price is refused before anything else is asked for
        trace, _ = as_trace(trace)
        trace = replace(trace, meta={**trace.meta, "asked_for": named_target(settings.target)})
        kind, warnings = drafter_kind(trace, settings.kind, settings.drafter)
        drafter = None if str(settings.drafter) in without_sizes() else settings.drafter
        _check_drafter(kind, drafter, settings.draft_bytes)
        if look(trace.meta, "drafter", "kind") is None:  # for exports of its plans
            named = look(trace.meta, "drafter")
            known = named if isinstance(named, Mapping) else {}
            trace = replace(trace, meta={**trace.meta, "drafter": {**known, "kind": kind}})
        settings = _with_profile(settings, trace, warnings)
        settings = settings.changed(kind=kind, drafter=drafter, **_bytes(settings, drafter))
        places, more = places_of(settings, heads=trace.depth)
        warn(more)
        prices = None if settings.prices is None else prices_of_devices(settings.prices, places)
        positions = look(trace.meta, "drafter", "positions") if drafter is None else context_limit(drafter)
        beyond, engine = context_warnings(settings.target, settings.context, positions), settings.limiting
        if engine is not None and ENGINES[engine].methods and not ENGINES[engine].fitting(kind):
            beyond = [f"{ENGINES[engine].title} runs no drafter of kind {kind}", *beyond]
        if engine is not None and ENGINES[engine].cannot_run is not None:
            beyond = [
                f"{engine} also grows dynamic trees, which no data sheet prices: `treeopt search --for {engine}` tries "
                "them, with a trace of --candidates and a profile of --policies",
                *beyond,
            ]
        return cls(trace, settings, places, settings.search, prices, tuple(beyond))

    def file_names(self) -> tuple[list[str], list[str]]:
        """Return a file name for the plan of each device and context, and for the step times of each device."""
        slugs = {s.device: re.sub(r"[^a-z0-9]+", "-", s.device.casefold()).strip("-") for s in self.places}
        names = {device: slug or "device" for device, slug in slugs.items()}
        plans = [f"{names[place.device]}-{place.context}.json" for place in self.places]
        return plans, [f"{name}.json" for name in names.values()]

    def answer(self, progress: Progress = silent) -> "WhatIfRecord":
        """Search every setting.

        Raises:
            TreeoptError: what `search` raises.
        """
        from simulate.whatif.scenarios import explore
        from simulate.whatif.whatif_record import record_of_scenarios

        settings = self.settings
        trace, own_rules = ranks_and_rules(self.trace, settings.seed)
        search = self.search.changed(rules=(*own_rules, *engine_rules(settings.limiting, trace)))
        with progress("searching", len(self.places)) as done:
            scenarios = explore(trace, self.places, search, fit=settings.fit, done=done)
        found = (warning for each in scenarios if each.plan is not None for warning in each.plan.warnings)
        record = record_of_scenarios(
            self.trace,
            scenarios,
            settings,
            prices=self.prices,
            warnings=list(dict.fromkeys([*self.warnings, *found])),
            meta={
                "settings": settings.recorded() | {"prices": self.prices},
                "trace": dict(self.trace.meta),
                "costs": [dict(place.cost.meta) for place in self.places],
                "provenance": this_run(),
            },
        )
        return WhatIfRecord(record, self, scenarios)


def named_target(config: Any) -> str:
    """Return the name of a target: of its shape, its folder, or what its config.json says; empty if it has none.

    >>> named_target("8b"), named_target("models/llama/config.json"), named_target({"_name_or_path": "org/llama"})
    ('8b', 'llama', 'org/llama')
    """
    if isinstance(config, Mapping):
        return str(config.get("_name_or_path", ""))
    path = Path(config)
    folder = path.parent if path.name == "config.json" else path
    return folder_name(folder) if folder.exists() else folder.name


class WhatIfRecord(Record):
    """The result of `whatif`, with its plans and step times for other functions; `scenarios` are all choices."""

    def __init__(self, record: Mapping[str, Any], question: WhatIf, scenarios: "tuple[Scenario, ...]") -> None:
        """Take the record of a question's scenarios."""
        super().__init__(record)
        self.question, self.scenarios = question, scenarios

    def plans(self) -> dict[str, Plan]:
        """Return the plan of each device and context, by the file name that `--plans` gives it."""
        plans = {(s.device, s.context): s.plan for s in self.scenarios if s.plan is not None}
        return dict(zip(self.question.file_names()[0], plans.values(), strict=True))

    def profiles(self) -> "dict[str, Profile]":
        """Return the step times of each device at all contexts, by the file name that `--profiles` gives them."""
        from simulate.roofline.roofline_model import Roofline
        from simulate.whatif.unmeasured_profiles import joined, tabulated

        question, settings = self.question, self.question.settings
        nodes, depth = settings.max_nodes or NODES, settings.max_depth or question.trace.depth
        meta = {
            "target": {"name": named_target(settings.target) or None},
            "drafter": {"kind": settings.kind},
            "provenance": this_run(),
        }
        parts: dict[str, list[Profile]] = {}
        held: dict[str, dict[str, Any]] = {}
        for place in question.places:
            held.setdefault(place.device, {})[str(place.context)] = asdict(place.memory)
        for place in question.places:
            times: Any = place.cost
            if isinstance(times, Roofline):
                known = min(depth, times.drafter.longest or depth)
                times = tabulated(
                    times, batches=settings.batch, context=place.context, nodes=nodes, depth=known, meta=meta
                )
            times = replace(times, meta={**times.meta, "memory": held[place.device]})
            parts.setdefault(place.device, []).append(times)
        return dict(zip(question.file_names()[1], map(joined, parts.values()), strict=True))


def _check_drafter(kind: str, drafter: Config | None, draft_bytes: float | None) -> None:
    """Raise UsageError if the drafter's sizes are missing, or given for a drafter that has none."""
    from simulate.drafter_kinds import DRAFTERS

    sizes, title = DRAFTERS[kind].sizes, DRAFTERS[kind].title
    if sizes is not None and sizes.own_config and drafter is None:
        raise UsageError(f"a drafter that is {title} has sizes of its own: name its folder with --drafter")
    for option, given in (("--drafter", drafter), ("--draft-bytes", draft_bytes)):
        if sizes is None and given is not None:
            raise UsageError(f"{option} describes the sizes of a model, and {kind} has none; omit it")


def _with_profile(settings: WhatIfSettings, trace: Trace, warnings: list[str]) -> WhatIfSettings:
    """Return the question with its step times loaded, if it has any, and log warnings, these first."""
    from simulate.whatif.device_cost_models import check_measured

    source = settings.profile
    file = Path(source) if isinstance(source, Path | str) else None
    profile = load_profile(source) if isinstance(source, Path | str) else source
    if profile is not None and settings.measured_on is not None:
        warnings = [*warnings, *model_warnings("trace and profile", trace.meta, profile.meta)]
        warnings += check_measured(profile, file, settings.measured_on)
    warn(warnings)
    return settings.changed(profile=profile)


def _bytes(settings: WhatIfSettings, drafter: Config | None) -> dict[str, float | None]:
    """Return bytes per weight of target and drafter, and of a cached number; None for a target whose file states them.

    The drafter's are at least the target's by default.
    """
    from simulate.whatif.device_cost_models import as_stored, bytes_per_weight

    stored, target_bytes = as_stored(settings.target), settings.weight_bytes
    if not (stored.groups or stored.sizes) or settings.by_hand:
        target_bytes = bytes_per_weight(settings.target, target_bytes, "--weight-bytes")
    default = max(BYTES, target_bytes or BYTES)
    drafter_bytes = bytes_per_weight(drafter, settings.draft_bytes, "--draft-bytes", default=default)
    kv_bytes = settings.kv_bytes or stored.kv_bytes or BYTES
    return {"weight_bytes": target_bytes, "draft_bytes": drafter_bytes, "kv_bytes": kv_bytes}
