"""`treeopt.whatif`: the best tree on devices, batch sizes and contexts that were not measured."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treeopt.api.file_loading import as_trace, load_profile
from treeopt.api.messages import Progress, silent, warn
from treeopt.api.result_record import Record
from treeopt.comparison.mismatch_warnings import model_warnings
from treeopt.defaults import BYTES, NODES, WHATIF_BATCHES, WHATIF_CONTEXT
from treeopt.engines.rules_for_trace import engine_constraints
from treeopt.errors import UsageError
from treeopt.plans.plan import Plan
from treeopt.replay.sampled_rules import ranks_and_rules
from treeopt.storage.provenance import this_run
from treeopt.traces.trace import Trace

if TYPE_CHECKING:
    from simulate.profiles.profile import Profile
    from simulate.whatif.scenarios import Scenario, Setting
    from simulate.whatif.whatif_settings import Config


def whatif(
    trace: Trace | Path | str,
    *,
    hardware: str | Sequence[str],
    target: "Config",
    drafter: "Config | None" = None,
    kind: str | None = None,
    batch: int | Sequence[int] = WHATIF_BATCHES,
    context: int | Sequence[int] = WHATIF_CONTEXT,
    profile: "Profile | Path | str | None" = None,
    measured_on: str | None = None,
    bandwidth: float | None = None,
    flops: float | None = None,
    memory: float | None = None,
    link: Sequence[float] | None = None,
    like: str | None = None,
    weight_bytes: float | None = None,
    draft_bytes: float | None = None,
    kv_bytes: float = BYTES,
    prices: Mapping[str, float] | None = None,
    max_tpot_s: float | Sequence[float] | None = None,
    engine: str | None = None,
    max_nodes: int | None = None,
    max_depth: int | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> "WhatIfRecord":
    """Choose a tree for each device, context and batch size, and say where speculation stops paying.

    Step times come from the models' sizes and the devices' data sheets; with `profile`, from times measured on another
    device. Acceptance is the trace's everywhere.

    Args:
        trace: what the drafter got right.
        hardware: devices, such as "h100" or ("h100", "4xh100"): names of data/hardware.json; 4x: four devices of a
            node that share every layer.
        target: the target's folder or config.json, or its content, or a shape such as "8b": its sizes.
        drafter: the drafter's; default sizes as the target's.
        kind: of the drafter; default as the drafter's configuration states, else as recorded in the trace.
        batch: batch sizes.
        context: tokens in the cache.
        profile: step times measured on another device.
        measured_on: the device of `profile`.
        bandwidth: GB/s of a custom device.
        flops: its dense bf16 TFLOP/s.
        memory: its GB; not checked by default.
        link: GB/s that each of several devices sends, and the least microseconds of an exchange.
        like: a known device whose constants are used where a device has none.
        weight_bytes: bytes per target weight, as stored; default 2. The LM head counts at least 2.
        draft_bytes: bytes per drafter weight; default 2, or the target's if that is more.
        kv_bytes: bytes per number in the K/V cache.
        prices: price of one device per hour, by name; tokens are then priced, too.
        max_tpot_s: with `prices`, limits in seconds per output token; `cheapest` holds an entry per limit and context.
        engine: only trees that this engine can run.
        max_nodes: largest tree tried.
        max_depth: deepest tree tried.
        seed: of the split of requests.
        progress: shows how many settings are searched.

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
        [(1, 'chosen tree', 1.47), (64, 'chosen tree', 1.33)]
        >>> record.plans()["l40s-512.json"].entry(64).choice.nodes
        2
    """
    question = WhatIf.prepare(
        trace,
        hardware=hardware,
        target=target,
        drafter=drafter,
        kind=kind,
        batch=batch,
        context=context,
        profile=profile,
        measured_on=measured_on,
        bandwidth=bandwidth,
        flops=flops,
        memory=memory,
        link=link,
        like=like,
        weight_bytes=weight_bytes,
        draft_bytes=draft_bytes,
        kv_bytes=kv_bytes,
        prices=prices,
        max_tpot_s=max_tpot_s,
        engine=engine,
        max_nodes=max_nodes,
        max_depth=max_depth,
        seed=seed,
    )
    return WhatIfRecord(question.answer(progress))


class WhatIfRecord(Record):
    """The result of `whatif`, with its plans and step times for other functions."""

    def __init__(self, answer: "Answer") -> None:
        """Take the record of an answer."""
        super().__init__(answer.record)
        self._answer = answer

    def plans(self) -> dict[str, Plan]:
        """Return the plan of each device and context, by the file name that `--plans` gives it."""
        return self._answer.plans()

    def profiles(self) -> "dict[str, Profile]":
        """Return the predicted step times of each device, by the file name that `--profiles` gives them."""
        return self._answer.profiles()


@dataclass(frozen=True, eq=False)
class WhatIf:
    """A what-if question with its cost models, before any search.

    Attributes:
        trace: the trace.
        settings: a cost model for each device and context.
        batches: batch sizes.
        contexts: tokens in the cache.
        target: the target's sizes.
        kind: of the drafter.
        profile: step times that are carried over, if any.
        engine: whose trees are searched.
        prices: per hour, by device or group of devices.
        limits_s: limits of the seconds per output token; (None,) without.
        search: further arguments of the search.
        recorded: settings as the record holds them.
        warnings: sentences without a full stop.
    """

    trace: Trace
    settings: "list[Setting]"
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    target: "Config"
    kind: str
    profile: "Profile | None"
    engine: str | None
    prices: dict[str, float] | None
    limits_s: tuple[float | None, ...]
    search: dict[str, Any] = field(default_factory=dict)
    recorded: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @classmethod
    def prepare(
        cls,
        trace: Trace | Path | str,
        *,
        hardware: str | Sequence[str],
        target: "Config",
        drafter: "Config | None" = None,
        kind: str | None = None,
        batch: int | Sequence[int] = WHATIF_BATCHES,
        context: int | Sequence[int] = WHATIF_CONTEXT,
        profile: "Profile | Path | str | None" = None,
        prices: Mapping[str, float] | None = None,
        max_tpot_s: float | Sequence[float] | None = None,
        engine: str | None = None,
        max_nodes: int | None = None,
        max_depth: int | None = None,
        seed: int = 0,
        **device: Any,
    ) -> "WhatIf":
        """Check the arguments of `whatif` and make its cost models.

        Raises:
            UsageError: settings that contradict each other.
            CostError: a device, model or size that has no price.
        """
        from simulate.model_sizes.drafter_kinds import without_sizes
        from simulate.whatif.whatif_settings import (
            context_warnings,
            drafter_kind,
            prices_of_devices,
            settings_of_devices,
        )

        if max_tpot_s is not None and prices is None:
            raise UsageError("--max-tpot-ms limits the cheapest configuration: give --price")
        trace, _ = as_trace(trace)
        if (profile is None) != (device.get("measured_on") is None):
            raise UsageError("--profile and --measured-on need each other")
        kind, warnings = drafter_kind(trace, kind, drafter)
        drafter = None if str(drafter) in without_sizes() else drafter
        _check_drafter(kind, drafter, device.get("draft_bytes"))
        profile_file = Path(profile) if isinstance(profile, Path | str) else None
        profile = load_profile(profile) if isinstance(profile, Path | str) else profile
        warn([*warnings, *_profile_warnings(trace, profile, profile_file, device.get("measured_on"))])
        sizes = _bytes(target, drafter, device.get("weight_bytes"), device.get("draft_bytes"))
        device = {**device, **sizes}
        devices = [hardware] if isinstance(hardware, str) else list(hardware)
        contexts = (context,) if isinstance(context, int) else tuple(context)
        batches = (batch,) if isinstance(batch, int) else tuple(batch)
        settings, warnings = settings_of_devices(
            devices,
            contexts=contexts,
            target=target,
            drafter=drafter,
            kind=kind,
            heads=trace.depth,
            profile=profile,
            **device,
        )
        warn(warnings)
        priced = None if prices is None else prices_of_devices(prices, settings)
        search: dict[str, Any] = {"seed": seed, "max_nodes": max_nodes, "max_depth": max_depth, "compare": {}}
        link = device.get("link")
        recorded = {"kind": kind, "batch": batches, "context": contexts, "prices": priced, "engine": engine}
        recorded |= device | {"link": link and f"{link[0]:g},{link[1]:g}"} | search
        limits_s = tuple(max_tpot_s) if isinstance(max_tpot_s, Sequence) else (max_tpot_s,)
        beyond = tuple(context_warnings(target, contexts))
        return cls(
            trace,
            settings,
            batches,
            contexts,
            target,
            kind,
            profile,
            engine,
            priced,
            limits_s,
            search,
            recorded,
            beyond,
        )

    def plan_files(self) -> list[str]:
        """Return a file name for the plan of each device and context, in their order."""
        names = self._device_names()
        return [f"{names[setting.device]}-{setting.context}.json" for setting in self.settings]

    def profile_files(self) -> list[str]:
        """Return a file name for the step times of each device, in their order."""
        return [f"{name}.json" for name in self._device_names().values()]

    def _device_names(self) -> dict[str, str]:
        slugs = {s.device: re.sub(r"[^a-z0-9]+", "-", s.device.casefold()).strip("-") for s in self.settings}
        return {device: slug or "device" for device, slug in slugs.items()}

    def answer(self, progress: Progress = silent) -> "Answer":
        """Search every setting.

        Raises:
            TreeoptError: what `search` raises.
        """
        from simulate.whatif.scenarios import explore
        from simulate.whatif.whatif_record import record_of_scenarios

        trace, own_rules = ranks_and_rules(self.trace, self.search["seed"])
        rules = (*own_rules, *engine_constraints(self.engine, trace))
        with progress("searching", len(self.settings)) as done:
            scenarios = explore(
                trace, self.settings, batch=self.batches, done=done, rules=rules, engine=self.engine, **self.search
            )
        found = (warning for scenario in scenarios for warning in scenario.warnings)
        record = record_of_scenarios(
            self.trace,
            scenarios,
            profile=self.profile,
            kind=self.kind,
            engine=self.engine,
            prices=self.prices,
            max_tpot_s=self.limits_s,
            warnings=list(dict.fromkeys([*self.warnings, *found])),
            meta={
                "settings": self.recorded,
                "trace": dict(self.trace.meta),
                "costs": [dict(setting.cost.meta) for setting in self.settings],
                "provenance": this_run(),
            },
        )
        return Answer(self, scenarios, Record(record))


@dataclass(frozen=True, eq=False)
class Answer:
    """The answer of `whatif`: the record, and plans and step times for other commands.

    Attributes:
        question: what was asked.
        scenarios: the choice of each device, context and batch size.
        record: as JSON values.
    """

    question: WhatIf
    scenarios: "tuple[Scenario, ...]"
    record: Record

    def plans(self) -> dict[str, Plan]:
        """Return the plan of each device and context, by file name."""
        plans = {(s.device, s.context): s.plan for s in self.scenarios if s.plan is not None}
        return dict(zip(self.question.plan_files(), plans.values(), strict=True))

    def profiles(self) -> "dict[str, Profile]":
        """Return the step times of each device at all contexts, by file name."""
        from simulate.roofline.roofline_model import Roofline
        from simulate.whatif.predicted_profile import joined, tabulated

        question = self.question
        nodes, depth = question.search["max_nodes"] or NODES, question.search["max_depth"] or question.trace.depth
        meta = {
            "target": {"name": _name(question.target)},
            "drafter": {"kind": question.kind},
            "provenance": this_run(),
        }
        parts: dict[str, list[Profile]] = {}
        for setting in question.settings:
            times: Any = setting.cost
            if isinstance(times, Roofline):
                times = tabulated(
                    times, batches=question.batches, context=setting.context, nodes=nodes, depth=depth, meta=meta
                )
            parts.setdefault(setting.device, []).append(times)
        return dict(zip(question.profile_files(), map(joined, parts.values()), strict=True))


def _check_drafter(kind: str, drafter: "Config | None", draft_bytes: float | None) -> None:
    """Raise UsageError if the drafter's sizes are missing, or given for a drafter that has none."""
    from simulate.model_sizes.drafter_kinds import DRAFTERS

    sizes = DRAFTERS[kind].sizes
    if sizes is not None and sizes.own_config and drafter is None:
        raise UsageError(
            f"a drafter that is {DRAFTERS[kind].title} has sizes of its own: name its folder with --drafter"
        )
    for option, given in (("--drafter", drafter), ("--draft-bytes", draft_bytes)):
        if sizes is None and given is not None:
            raise UsageError(f"{option} describes the sizes of a model, and {kind} has none; omit it")


def _profile_warnings(
    trace: Trace, profile: "Profile | None", profile_file: Path | None, measured_on: str | None
) -> list[str]:
    from simulate.whatif.whatif_settings import check_measured

    if profile is None or measured_on is None:
        return []
    warnings = model_warnings("trace and profile", trace.meta, profile.meta)
    return [*warnings, *check_measured(profile, profile_file, measured_on)]


def _bytes(
    target: "Config", drafter: "Config | None", weight_bytes: float | None, draft_bytes: float | None
) -> dict[str, float]:
    """Return bytes per weight of target and drafter; the drafter's are at least the target's by default."""
    from simulate.whatif.whatif_settings import bytes_per_weight

    target_bytes = bytes_per_weight(target, weight_bytes, "--weight-bytes")
    default = max(BYTES, target_bytes)
    drafter_bytes = bytes_per_weight(drafter, draft_bytes, "--draft-bytes", default=default)
    return {"weight_bytes": target_bytes, "draft_bytes": drafter_bytes}


def _name(target: "Config") -> str | None:
    """Return the name of the target's folder; None where its config has no file."""
    from simulate.model_sizes.named_shapes import shape_name

    if isinstance(target, Mapping):
        return None
    if (shape := shape_name(target)) is not None:
        return shape
    path = Path(target)
    return (path if path.is_dir() else path.parent).resolve().name
