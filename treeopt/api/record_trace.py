"""`treeopt.collect`: record what the target or an engine writes, and what a drafter gets right of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treeopt import defaults
from treeopt.api.messages import Progress, silent, warn
from treeopt.api.ray_workers import RaySetup, on_ray
from treeopt.api.run_models import Models, Prompts, Requests, Sampling, load_models, load_prompts
from treeopt.api.runners import EngineSetup, open_runner
from treeopt.defaults import DRAWS, ENGINE_LENGTH
from treeopt.errors import EngineError, UsageError
from treeopt.planning.search_warnings import position_warnings
from treeopt.policies import DynamicTree
from treeopt.settings import Settings, group, setting, takes
from treeopt.storage.provenance import look, this_run
from treeopt.storage.work_file import WorkFile
from treeopt.traces.resumable_shards import gather, parts_in
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

if TYPE_CHECKING:
    from executor.drafters.base.drafter import Drafter
    from executor.runners.engine_runner import EngineRunner
    from executor.target.target_model import Target

# Settings of a recording.
RECORDED = ("candidates", "tree", "new_tokens", "depth", "width", "batch", "probabilities", "confidences")


@dataclass(frozen=True, kw_only=True)
class CollectSettings(Settings):
    """The settings of `collect`."""

    models: Models = group(Models)
    source: Prompts = group(Prompts)
    new_tokens: int = defaults.new_tokens()
    depth: int | None = setting(
        None,
        least=1,
        help="Levels to record; default all that the drafter has, at most 8. With --engine: its draft length; default "
        f"that of the only --url, or {ENGINE_LENGTH}.",
    )
    width: int = setting(16, least=1, help="Candidates to record per level.")
    batch: int = setting(8, least=1, help="Requests decoded together.")
    probabilities: bool = setting(
        False, help="Also record probabilities and entropies; the file becomes several times larger."
    )
    confidences: bool = setting(
        False,
        help="Also record, for `simulate`, the drafter's probability of each token of the chain that it drafts, or its "
        "confidence head's output.",
    )
    draws: int | None = setting(
        None,
        least=1,
        help=f"Simulated draws where acceptance has no closed form (rule sequoia); default {DRAWS}.",
    )
    candidates: DynamicTree | None = setting(
        None,
        help="Also record whole candidate trees, for dynamic policies: depth=6,beam=20,width=10. Use a beam well above "
        "those of the policies to be searched, so that less stays unknown.",
    )
    stride: int | None = setting(
        None, least=1, help="With --candidates: record them at every Nth token; default at each."
    )
    tree: Tree | None = setting(
        None,
        help="For rule typical: texts are written with this tree, and a search can only choose parts of it. Rank "
        "paths, FILE[:NAME], or the name of a published tree such as medusa/mc_sim_7b_63.",
    )
    every_anchor: bool = setting(
        False,
        help="With --engine and without --drafter: measure a step of the engine at every position of its texts, not "
        "only at those that a run visits. Turn on the engine's prefix caching.",
    )
    parts: Path | None = setting(
        None, form="folder", help="Store finished requests in this folder, in place of OUTPUT.work, and keep it."
    )
    sampling: Sampling = group(Sampling)
    engine: EngineSetup = group(EngineSetup)
    cluster: RaySetup = group(RaySetup)

    def check(self) -> None:
        """Raise UsageError where settings lack what they are for."""
        drafter, engine, rule = self.models.drafter, self.engine.engine, self.sampling.name
        if self.every_anchor and (engine is None or drafter is not None):
            raise UsageError("--every-anchor is for --engine without --drafter")
        if drafter is None and engine is None:
            raise UsageError("give --drafter, what is recorded; or --engine, whose own steps are recorded without one")
        self.engine.refuse({"--temperature": self.sampling.temperature, "--ray": self.cluster.ray})
        if self.cluster.ray is not None and self.models.tensor_parallel:
            raise UsageError("--ray does not take --tensor-parallel: a worker holds the whole target")
        if self.stride is not None and self.candidates is None:
            raise UsageError("--stride applies only to candidates; add --candidates")
        if drafter is not None and (self.tree is None) == (rule == "typical"):
            raise UsageError(
                "rule typical needs --tree (a search can only choose parts of it); other rules do not take one"
            )
        if self.draws is not None and rule != "sequoia":
            raise UsageError(f"--draws is for rule sequoia, not {rule}")

    @property
    def length(self) -> int:
        """The draft length of an engine."""
        lengths = {length for length, _ in self.engine.urls}
        return self.depth or (lengths.pop() if len(lengths) == 1 else ENGINE_LENGTH)


@takes(CollectSettings, "target", "drafter", "prompts")
def collect(
    *, settings: CollectSettings, work: Path | None = None, merged: bool = True, progress: Progress = silent
) -> Trace:
    """Let the target, or an engine, continue prompts, and record what is accepted of drafts along its texts.

    With an engine and without a drafter, the engine's own steps are recorded.

    Args:
        work: file or folder that finished requests are kept in, so that the same command resumes; None: nowhere.
        merged: False leaves a trace in `parts`, which is read from there; it is never whole in memory.
        progress: shows how many requests are done.

    Raises:
        UsageError: settings that do not go together.
        ExecutorError, EngineError: what cannot be recorded.

    Examples:
        >>> import treeopt
        >>> models = ("data/models/stdlib-llama", "data/models/stdlib-medusa")
        >>> trace = treeopt.collect(*models, "data/prompts/stdlib.jsonl", requests=2, new_tokens=4)
        >>> trace.requests, trace.anchors, trace.depth
        (2, 8, 5)
    """
    engine, folder = settings.engine, settings.parts or work
    if settings.cluster.ray is not None:
        return _on_ray(settings, folder, progress, merged=merged)
    if settings.models.drafter is None:
        return _own_steps(settings, load_prompts(settings.models, None, settings.source), work, progress)
    target, drafter, requests, how = _loaded(settings)
    from executor.recording.collect_trace import collect as record
    from executor.recording.engine_steps import engine_texts
    from executor.target.tensor_parallel import processes

    if engine.engine is not None:
        with _engine_records(settings, requests, work, progress) as (_, _, records):
            how["texts"] = written = engine_texts(records)
        size = target.vocabulary
        outside = next((i for i, text in enumerate(written) if any(not 0 <= token < size for token in text)), None)
        if outside is not None:
            raise EngineError(
                f"request {outside}: the engine wrote a token outside the target's {size}: does it run another model?"
            )
    if engine.engine is not None or processes() > 1:
        folder = settings.parts  # the work file holds the texts
    how |= {"folder": folder, "merged": merged}
    with parts_in(folder), progress("collecting", 2 * len(requests.tokens)) as advance:
        return record(target, drafter, requests.prompts, requests.tokens, progress=advance, **how)


def _loaded(settings: CollectSettings) -> "tuple[Target, Drafter, Requests, dict[str, Any]]":
    """Return models, prompts, and the settings of the recording by their names there."""
    target, drafter = load_models(settings.models)
    requests = load_prompts(settings.models, target, settings.source, shortest=2)
    from executor.models import drafter_positions

    longest = [len(prompt) + settings.new_tokens for prompt in requests.tokens]
    warn(position_warnings(drafter_positions(target, drafter), longest, "may pass"))
    how: dict[str, Any] = {
        **asdict(settings.sampling),
        **{name: getattr(settings, name) for name in RECORDED},
        "stride": settings.stride or 1,
        "draws": settings.draws or DRAWS,
        "stop": requests.stop,
    }
    return target, drafter, requests, how


def _recorder(settings: CollectSettings) -> tuple[Any, Any, Any]:
    """Return what records in a worker; see `on_ray`."""
    target, drafter, requests, how = _loaded(settings)
    from executor.recording.collect_trace import recorder

    head, record = recorder(target, drafter, requests.prompts, requests.tokens, **how)
    return head, head.same, record


def _on_ray(settings: CollectSettings, folder: Path | None, progress: Progress, *, merged: bool) -> Trace:
    """Return the trace whose shards workers on Ray record."""
    with on_ray(settings.cluster, _recorder, settings) as (head, parts):
        look(head.meta, "provenance")["command"] = this_run()["command"]
        with parts_in(folder), progress("collecting", head.requests) as advance:

            def shards(starts: range, meta: Any) -> Iterator[Trace]:
                advance(starts.start)
                for trace in parts(starts, repeat(meta or head.meta)):
                    advance(trace.requests)
                    yield trace

            return gather(head, shards, folder=folder, merged=merged)


@contextmanager
def _engine_records(
    settings: CollectSettings, requests: Requests, work: Path | None, progress: Progress
) -> "Iterator[tuple[EngineRunner, WorkFile, list[Any]]]":
    """Yield an engine that has written texts after prompts, its work file, and the record of each request."""
    from executor.models import tokens_hash
    from executor.recording.engine_steps import record_requests
    from executor.runners.engine_runner import EngineRunner
    from executor.runners.runner import resumable
    from treeopt.engines.driver import EngineRequest

    runner, length = open_runner(settings.models, settings.engine), settings.length
    assert isinstance(runner, EngineRunner)
    runner.concurrency, runner.driver.longest = settings.batch, length
    head = {"prompts": tokens_hash(requests.tokens), "new_tokens": settings.new_tokens, "drafted": length}
    asked = [EngineRequest(tuple(prompt), settings.new_tokens) for prompt in requests.tokens]
    with WorkFile(work, head | resumable(runner.record)) as kept, runner:
        with progress("decoding", len(asked)) as advance:
            records = record_requests(runner, asked, draft=length, work=kept, progress=advance)
        yield runner, kept, records


def _own_steps(settings: CollectSettings, requests: Requests, work: Path | None, progress: Progress) -> Trace:
    """Return the trace of an engine's own steps: those of a run, or one at every position of its texts."""
    from executor.recording.engine_steps import engine_texts, every_anchor_trace, visited_trace

    with _engine_records(settings, requests, work, progress) as (runner, kept, records):
        meta = {**runner.record, "new_tokens": settings.new_tokens, "provenance": runner.provenance}
        meta["engine"]["drafted"] = depth = settings.length
        if not settings.every_anchor:
            steps = [record.steps for record in records]
            return visited_trace(steps, depth=depth, meta=meta, seed=settings.sampling.seed)
        texts = engine_texts(records)
        with progress("measuring anchors", sum(len(text) - 1 for text in texts)) as advance:
            return every_anchor_trace(
                runner, requests.tokens, texts, depth=depth, meta=meta, work=kept, progress=advance
            )
