"""`treeopt.watch`: whether running servers still accept and take the time that their plan says."""

import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treeopt.api.file_loading import load_plan, load_profile
from treeopt.api.messages import warn
from treeopt.api.search_trace import search
from treeopt.errors import EngineError, TraceError, UsageError
from treeopt.plans import Plan, to_json
from treeopt.settings import Settings, setting, takes
from treeopt.storage.provenance import look, target_name
from treeopt.storage.work_file import check_same_settings

if TYPE_CHECKING:
    from simulate.profiles.profile import Profile
    from treeopt.engines.connections.completions_client import CompletionsClient
    from treeopt.monitoring.prometheus_watch import PlanWatch

SCRAPE_S = 10.0  # longest wait for an answer


@dataclass(frozen=True, kw_only=True)
class WatchSettings(Settings):
    """The settings of `watch`."""

    urls: tuple[str, ...] = setting(
        option="--url", help="Address of a server's counters, such as http://host:8000/metrics; once for each replica."
    )
    model: str | None = setting(None, help="The model_name to read, if a server has several.")
    every_s: float = setting(10.0, option="--every", above=0, help="Seconds between scrapes.")
    hours: float = setting(
        10_000.0,
        option="--false-alarms",
        above=0,
        help="Mean hours between false alarms, all tests together, at least.",
    )
    tolerance: float = setting(
        0.02,
        least=0.005,
        below=1,
        help="Relative difference that counts as no change; for acceptance the plan's own interval where that is "
        "wider.",
    )
    reference: str = setting(
        "plan",
        choices=("plan", "start"),
        help="Compare with the plan's figures, or with those of the first 30 blocks (start), where the plan's are off "
        "for a known reason.",
    )
    profile: "Profile | Path | str | None" = setting(
        None, help="Step times: with them a change is followed by the plan for the acceptance of now."
    )
    state: Path | None = setting(None, help="Keep what was seen in this file, so that the next run goes on from it.")
    once: bool = setting(False, help="Scrape once and end, for cron; needs --state.")

    def check(self) -> None:
        """Raise UsageError where settings do not go together."""
        if self.once and self.state is None:
            raise UsageError("--once needs --state, the file that the next run goes on from")
        if not self.urls:
            raise UsageError("watch needs a server's address: --url http://host:8000/metrics")


@takes(WatchSettings)
def watch(plan: Plan | Path | str, *, settings: WatchSettings) -> Iterator[dict[str, Any]]:
    """Scrape servers until the caller stops, and yield after each scrape what is known, as JSON values.

    `changed` is true from an alarm on until the recent figures are back in their band; `tests` has a row for each
    position (shares of the steps that accepted all before it), tau, and the step time at each batch size; `now` has the
    choices for the acceptance of now, after a change and with a profile.

    Args:
        plan: what the servers were set up by, or its file.

    Raises:
        UsageError: settings that contradict each other, or a state file of other ones.
        PlanError: the plan cannot be read, or drafts nothing.
        EngineError: an address is none, or with `once` no server answers.
    """
    from treeopt.engines.connections.completions_client import CompletionsClient
    from treeopt.monitoring.prometheus_watch import PlanWatch, WatchState

    plan = plan if isinstance(plan, Plan) else load_plan(plan)
    profile = load_profile(settings.profile) if isinstance(settings.profile, Path | str) else settings.profile
    asked = {name: getattr(settings, name) for name in ("model", "hours", "tolerance", "reference")}
    state = WatchState(hashlib.sha256(to_json(plan).encode()).hexdigest(), asked)
    if settings.state is not None and settings.state.exists():
        before = WatchState.read(settings.state)
        same = [{"plan": each.plan, **each.settings} for each in (before, state)]
        check_same_settings(settings.state, *same)
        state = before
    compared = PlanWatch(plan, state)
    if compared.tolerance[0] > settings.tolerance:
        warn([f"the plan knows its tau within {compared.tolerance[0]:.1%}: smaller changes go unnoticed"])
    clients = {url: CompletionsClient(url, timeout_s=SCRAPE_S) for url in settings.urls}
    state.servers = {url: server for url, server in state.servers.items() if url in clients}
    verdicts, now = None, None
    try:
        while True:
            failures = [_scrape(compared, url, client, settings.model, plan) for url, client in clients.items()]
            if settings.once and all(failures):
                raise EngineError(str(failures[0]))
            compared.close_block()
            if settings.state is not None:
                state.write(settings.state)
            record = compared.record(datetime.now(UTC).isoformat(timespec="seconds"))
            if profile is not None and verdicts != (verdicts := [test["verdict"] for test in record["tests"]]):
                now = _plan_now(compared, plan, profile) if record["changed"] else None
            yield record if now is None else record | {"now": now}
            if settings.once:
                return
            time.sleep(settings.every_s)
    finally:
        for client in clients.values():
            client.close()


def _alike(one: str, other: str) -> bool:
    """Return whether two names of models may mean one, such as a folder and a name on the hub."""
    one, other = (name.rstrip("/").rpartition("/")[2].lower() for name in (one, other))
    return one in other or other in one


def _scrape(watched: "PlanWatch", url: str, client: "CompletionsClient", model: str | None, plan: Plan) -> str | None:
    """Add a scrape of a server; return why it failed, or None."""
    from treeopt.monitoring.prometheus_watch import models_of, totals_of

    try:
        text = client.text(url)
        if text is None:
            raise EngineError(f"{url}: nothing is there, or an error: counters of vLLM are at /metrics")
        totals, first = totals_of(text, model), url not in watched.state.servers
        watched.add(url, totals, time.time())
        named, names = target_name(plan.meta.get("trace")), [model] if model else models_of(text)
        if first and named and len(names) == 1 and not _alike(named, names[0]):
            warn([f"the plan's acceptance was recorded with {named}, {url} serves {names[0]}: do they belong together"])
    except (EngineError, TraceError) as error:
        reason = str(error) if isinstance(error, EngineError) else f"{url}: {error}"
        watched.fail(url, reason)
        return reason
    return None


def _plan_now(watched: "PlanWatch", plan: Plan, profile: "Profile") -> list[dict[str, Any]]:
    """Return the choices of a search with the recent acceptance, a row for each batch size of the plan."""
    if (trace := watched.recent()) is None:
        return []
    batches = tuple(entry.batch for entry in plan.entries)
    engine = look(plan.meta, "search", "engine")
    choices = {entry.batch: entry.choice for entry in search(trace, profile, batch=batches, engine=engine).entries}
    return [
        {"batch": batch, "nodes": choice.nodes, "tau": choice.tau.value, "speedup": choice.speedup.value}
        for batch, choice in choices.items()
    ]
