"""The verdict: no speculation, a fixed length, a schedule or adaptive verification, at each number of running requests.

All four decode the same requests in the same simulated batch. Lengths are chosen on other requests than the figures
come from. The simplest configuration within `NEAR` of the fastest is the verdict.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from simulate.device_memory import DeviceMemory
from simulate.profiles.profile import Profile
from simulate.runs.batch_record import run_conditions
from simulate.runs.draft_length_rules import chain_tau, fixed_speeds, times_of
from simulate.runs.length_server import LengthDecoding, length_decoding, run_lengths
from simulate.runs.run_costs import PAD
from simulate.runs.simulate_settings import VerdictSettings
from simulate.runs.timeline import Ints, Timeline
from treeopt.cost_model import StepShape
from treeopt.planning.held_out_split import check_requests
from treeopt.planning.search_warnings import run_warnings
from treeopt.replay.sampled_rules import ranks_for_trees
from treeopt.replay.static_tree import replay_tree
from treeopt.statistics import Estimate, Groups, ratio
from treeopt.storage.provenance import from_figure, look
from treeopt.traces.confidence_reliability import confidences
from treeopt.traces.importers.synthetic_trace import drawn_by_text, trace_from_ranks
from treeopt.traces.trace import MISSED, PAST_END, Trace
from treeopt.tree import Tree

NEAR = 0.03  # of the fastest: as good
TURNS = 8  # requests per row
MOST, FEWEST = 5000, 4  # tokens per row that are simulated, about, and as many rows' at least
TEXTS, TOKENS = 200, 512  # of a figure of acceptance
CONCENTRATION = 2.0  # a + b of the law of a drafted token's probability; from vllm#52362 (docs/results/adaptive.md)
ASSUMED = (
    "the trace has no confidences: drafted tokens are taken to be right with a probability that the drafter knows, of "
    f"a beta law with a + b = {CONCENTRATION:g} and the mean of their position; the interval of adaptive verification "
    "reaches from no knowledge to knowing every token"
)


def with_assumed_confidences(trace: Trace, seed: int) -> Trace:
    """Return a trace with confidences; see `ASSUMED`.

    The probability p that a drafted token is right, the ones before it being right, follows a beta law whose mean is
    the rate of its position on the walk of the deepest chain; the confidence is p. It is drawn given whether the token
    was right, so that the trace keeps its steps, requests and domains. Texts of a figure are made up here.
    """
    depth, rng = trace.depth, np.random.default_rng(seed)
    reached = replay_tree(Tree.chain(depth), trace).accepted_counts[::-1].cumsum()[::-1]
    rates = (reached[1:] / np.maximum(reached[:-1], 1)).clip(1e-3, 1 - 1e-3)
    meta = {**trace.meta, "confidence": "head"}
    if from_figure(trace.meta):
        shares = -np.diff([1.0, *np.cumprod(rates), 0.0])
        accepted = drawn_by_text(np.tile(shares, (TEXTS, 1)), [TOKENS] * TEXTS, rng)
        ranks = np.where(np.arange(depth) < accepted[:, None], 0, MISSED)
        trace = trace_from_ranks(ranks, [TOKENS] * TEXTS, width=1, meta=meta)
    right, past = trace.rank == 0, trace.rank == PAST_END
    known = np.cumprod(np.pad(right[:, :-1], ((0, 0), (1, 0)), constant_values=True), axis=1, dtype=bool) & ~past
    p = rng.beta(CONCENTRATION * rates + (known & right), CONCENTRATION * (1 - rates) + (known & ~right))
    if trace.drafted is not None:
        p[np.arange(depth) >= trace.drafted[:, None]] = 0.0
    return replace(trace, meta=meta, confidence=p.astype(np.float16))


@dataclass(frozen=True, eq=False)
class _Arm:
    """A configuration under one load; `drafting`: the share of its steps' time beyond plain steps."""

    name: str
    text: str
    timeline: Timeline
    drafting: float


def compare_lengths(
    trace: Trace,
    profile: Profile,
    loads: Mapping[int, float | None],
    settings: VerdictSettings,
    fixed: int | None = None,
) -> dict[str, Any]:
    """Compare the four configurations at each load; return the verdict as JSON values.

    Args:
        trace: the requests, and what the drafter got right.
        profile: step times.
        loads: running requests -> share of time, or None where only a sweep is asked for.
        settings: prompts, padding, seeds, seconds of adaptive verification.
        fixed: the fixed length; None: the best one.

    Raises:
        CostError: steps that the profile does not cover.
        TraceError: fewer than four requests.
    """
    asked, pad, seed = settings.prompts, settings.pad, settings.seed
    check_requests(trace)
    assumed = confidences(trace) is None
    if assumed:
        trace = with_assumed_confidences(ranks_for_trees(trace, [Tree.chain(1)], seed), seed)
    fit, held = trace.split(share=0.5, rng=np.random.default_rng(seed))
    prompts = asked.on(held, profile)
    how: dict[str, Any] = {"pad": pad, "seed": seed, "fit": fit, "adaptive_s": settings.adaptive_s}
    probe, sentence = length_decoding(held, "adaptive", profile, rows=max(loads), **how)
    times = times_of(profile, probe.rule().depth, pad_to=PAD * max(loads) if pad else 0)
    tau = chain_tau(ranks_for_trees(fit, [Tree.chain(1)], seed), probe.rule().depth)
    speeds = {n: fixed_speeds(tau, times(n, None), n) for n in loads}
    weights = [share or 1.0 for share in loads.values()]
    if fixed is None:
        gains = (w * np.log(s[1:] / s[0]) for w, s in zip(weights, speeds.values(), strict=True))
        fixed = 1 + int(np.argmax(sum(gains)))
    longest = max(fixed, *(int(np.argmax(s)) for s in speeds.values()))
    records = []
    for n, share in loads.items():
        texts = {"none": "none", "fixed": f"fixed:{fixed}", "schedule": f"fixed:{int(np.argmax(speeds[n]))}"}
        texts["adaptive"] = f"adaptive@{longest}"
        if assumed:
            texts |= {"oracle": f"oracle@{longest}"}
        arms, number = dict[str, _Arm](), math.ceil(MOST * max(n, FEWEST) / held.lengths.mean())
        number = min(max(2, number), held.requests)
        some = held.select(np.linspace(0, held.requests - 1, number).round().astype(np.int64))  # evenly spaced
        for name, text in texts.items():
            decoding, _ = length_decoding(some, text, profile, rows=n, **how)
            number = some.requests * math.ceil(TURNS * n / some.requests)
            timeline = run_lengths(decoding, asked.on(some, profile), batch=n, requests=number + n)
            arms[name] = _Arm(name, text, _first(timeline, number), _drafting(timeline, decoding))
        records.append(_load(n, share, arms, profile, fixed, some))
    overall = _overall(records) if all(share is not None for share in loads.values()) else None
    conditions = [
        f"Lengths chosen on {fit.requests} requests, figures from {held.requests} others, {TURNS} requests per "
        f"row or more, all rows busy throughout; of configurations within {NEAR:.0%} of the fastest, the simplest is "
        "the verdict.",
        *run_conditions(trace, profile, prompts.description(), pad=pad),
    ]
    unheld = _unheld(profile, profile.priced_at(prompts.context), longest, max(loads))
    warnings = [text for text in (ASSUMED if assumed else "", sentence, unheld, *run_warnings(held, seed)) if text]
    return {
        "schema": "treeopt.verdict/1",
        "loads": records,
        "overall": overall,
        "warnings": warnings,
        "conditions": conditions,
    }


def _unheld(profile: Profile, context: int | None, length: int, requests: int) -> str:
    """Return that memory does not hold the largest load with the longest draft, where the profile knows it; else ""."""
    records = look(profile.meta, "memory")
    memory = None if records is None or context is None else DeviceMemory.at(records, context)
    if memory is None or (most := memory.batch(length)) is None or most >= requests:
        return ""
    return (
        f"{look(profile.meta, 'device')} holds {most} sequences of {context} tokens with drafts of {length}, and "
        f"{memory.batch()} without, not {requests}: larger loads are priced as if they fitted"
    )


def _first(timeline: Timeline, requests: int) -> Timeline:
    """Return tokens and times of the first requests, which ran beside as many as they were; the last ran alone."""
    first = {name: getattr(timeline, name)[:requests] for name in ("tokens", "steps", "share_s")}
    return replace(timeline, **first)


def _drafting(timeline: Timeline, decoding: LengthDecoding) -> float:
    """Return 1 − plain step / step, over the steps' time."""
    sizes, counts = np.unique(timeline.occupancy, return_counts=True)
    plain_s = sum(k * decoding.times(int(n), None).plain_s for n, k in zip(sizes, counts, strict=True))
    return max(0.0, 1 - float(plain_s / timeline.step_s.sum()))


def _load(
    n: int, share: float | None, arms: Mapping[str, _Arm], profile: Profile, fixed: int, held: Trace
) -> dict[str, Any]:
    """Return the record of a load.

    A profile's error is one of step / plain step, common to all arms: of two arms it counts by how much more of its
    time one of them drafts and verifies.
    """
    size = max(n, profile.batches[0].batch)
    error = profile.error(StepShape.of(Tree.chain(fixed), batch=size)) / max(arms["fixed"].drafting, 0.05)
    group = np.resize(np.arange(held.requests), len(arms["none"].timeline.tokens))

    def over(arm: _Arm, other: _Arm) -> Estimate:
        """Return the ratio of two arms' speeds."""
        if arm.text == other.text:
            return Estimate(1.0, 1.0, 1.0)
        off = abs(arm.drafting - other.drafting) * error
        return ratio(other.timeline.share_s, arm.timeline.share_s, _repeated(group, held)).times(
            1.0, relative_error=off
        )

    names = ("none", "fixed", "schedule", "adaptive")
    known = {name: over(arms[name], arms["none"]) for name in names}
    if "oracle" in arms:  # from no knowledge, the schedule, to all
        ends = (known["schedule"].low, over(arms["oracle"], arms["none"]).high)
        known["adaptive"] = Estimate(
            known["adaptive"].value, min(ends[0], known["adaptive"].low), max(ends[1], known["adaptive"].high)
        )
    choice, rivals = chosen({name: one.value for name, one in known.items()}), dict[str, Any]()
    for name in names:
        if name != choice:
            rivals[name] = asdict(over(arms[choice], arms[name]))
    rows = [
        {
            "name": name,
            "length": arms[name].text,
            "tokens_s": asdict(arms[name].timeline.rate(_repeated(group, held))),
            "tau": arms[name].timeline.tau,
            "over": asdict(known[name]),
        }
        for name in names
    ]
    return {"requests": n, "share": share, "verdict": choice, "ratios": rivals, "configurations": rows}


def _repeated(group: Ints, held: Trace) -> Groups:
    """Return the clusters of intervals: a request that is decoded several times is one."""
    return group if len(group) > held.requests else held.domain


def chosen(speeds: Mapping[str, float]) -> str:
    """Return the first of the configurations, the simplest first, that is within `NEAR` of the fastest.

    >>> chosen({"none": 1.0, "fixed": 1.5, "schedule": 1.51, "adaptive": 1.52})
    'fixed'
    """
    best = max(speeds.values())
    return next(name for name, speed in speeds.items() if speed * (1 + NEAR) >= best)


def _overall(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the ratios to no speculation over all loads, weighted by time and tokens, and their verdict."""
    weights = np.array([load["share"] * load["configurations"][0]["tokens_s"]["value"] for load in records])
    weights = weights / weights.sum()
    over = {}
    for place, arm in enumerate(records[0]["configurations"]):
        parts = [load["configurations"][place]["over"] for load in records]
        over[arm["name"]] = {
            key: math.fsum(w * part[key] for w, part in zip(weights, parts, strict=True))
            for key in ("value", "low", "high")
        }
    return {"verdict": chosen({name: one["value"] for name, one in over.items()}), "over": over}
