"""Record a trace: what the target or an engine writes, and what a drafter, or the engine itself, gets right of it."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treeopt.api.messages import Progress, silent
from treeopt.api.run_models import Models, load_models
from treeopt.api.run_prompts import Prompts, Requests, load_prompts
from treeopt.api.runners import EngineChoice, open_runner
from treeopt.api.token_sampling import Sampling
from treeopt.defaults import DRAWS, ENGINE_LENGTH, RECORD_BATCH, WIDTH
from treeopt.errors import UsageError
from treeopt.policies import DynamicTree
from treeopt.storage.work_file import WorkFile
from treeopt.traces.resumable_shards import parts_in
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

if TYPE_CHECKING:
    pass


def collect_with(
    models: Models,
    prompts: Prompts,
    *,
    new_tokens: int,
    sampling: Sampling | None = None,
    engine: EngineChoice | None = None,
    depth: int | None = None,
    width: int = WIDTH,
    batch: int = RECORD_BATCH,
    probabilities: bool = False,
    draws: int | None = None,
    candidates: DynamicTree | None = None,
    stride: int | None = None,
    tree: Tree | None = None,
    every_anchor: bool = False,
    parts: Path | None = None,
    work: Path | None = None,
    progress: Progress = silent,
) -> Trace:
    """Let the target, or an engine, continue prompts, and record what is accepted of drafts along its texts.

    Args:
        models: the target, and the drafter that is recorded; without one, an engine's own steps are.
        prompts: what is continued.
        new_tokens: tokens written after each prompt.
        sampling: rule and temperature.
        engine: what writes; None: treeopt's own loop.
        depth: levels to record; in an engine its draft length, 5 if it is not given.
        width: candidates to record per level.
        batch: requests decoded together.
        probabilities: also record probabilities and entropies.
        draws: simulated draws where acceptance has no closed form.
        candidates: also record whole candidate trees, as this policy drafts them.
        stride: positions from one recorded candidate tree to the next.
        tree: for rule typical: texts are written with this tree.
        every_anchor: measure a step of the engine at every position of its texts.
        parts: folder that keeps finished requests; None: `work`, until the trace is written.
        work: file or folder that finished requests are kept in, so that the same command resumes; None: nowhere.
        progress: shows how many requests are done.

    Raises:
        UsageError: settings that do not go together.
        ExecutorError, EngineError: what cannot be recorded.
    """
    sampling, engine = sampling or Sampling(), engine or EngineChoice()
    sampling.check()
    own_steps = models.drafter is None
    if every_anchor and (engine.engine is None or not own_steps):
        raise UsageError("--every-anchor is for --engine without --drafter")
    if own_steps and engine.engine is None:
        raise UsageError("give --drafter, what is recorded; or --engine, whose own steps are recorded without one")
    engine.refuse({"--temperature": sampling.temperature})
    length = depth or (engine.urls[0][0] if len(engine.urls) == 1 else ENGINE_LENGTH)
    if own_steps:
        requests, texts = load_prompts(models, None, prompts), _EngineTexts(models, engine, new_tokens, length, batch)
        return texts.own_steps(requests, work, progress, every_anchor=every_anchor, seed=sampling.seed)
    settings = {
        **asdict(sampling),
        **_recording(sampling, candidates, stride, draws, tree),
        "new_tokens": new_tokens,
        "depth": depth,
        "width": width,
        "batch": batch,
        "probabilities": probabilities,
    }
    target, drafter = load_models(models)
    requests = load_prompts(models, target, prompts, shortest=2)
    from executor.recording.collect_trace import collect
    from executor.target.tensor_parallel import processes

    settings["stop"] = requests.stop
    if engine.engine is not None:
        settings["texts"] = _EngineTexts(models, engine, new_tokens, length, batch).written(requests, work, progress)
        work = None  # it keeps the texts
    folder = parts or (work if processes() == 1 else None)
    with parts_in(folder), progress("collecting", 2 * len(requests.tokens)) as advance:
        return collect(target, drafter, requests.prompts, requests.tokens, folder=folder, progress=advance, **settings)


def _recording(
    sampling: Sampling, candidates: DynamicTree | None, stride: int | None, draws: int | None, tree: Tree | None
) -> dict[str, Any]:
    """Return the settings that some rules or other settings need.

    Raises:
        UsageError: one of them is missing, or has no effect.
    """
    if stride is not None and candidates is None:
        raise UsageError("--stride applies only to candidates; add --candidates")
    if (tree is None) == (sampling.name == "typical"):
        raise UsageError(
            "rule typical needs --tree (a search can only choose parts of it); other rules do not take one"
        )
    if draws is not None and sampling.name != "sequoia":
        raise UsageError(f"--draws is for rule sequoia, not {sampling.name}")
    return {"candidates": candidates, "stride": stride or 1, "draws": draws or DRAWS, "tree": tree}


class _EngineTexts:
    """What an engine writes after prompts, with drafts of one length."""

    def __init__(self, models: Models, engine: EngineChoice, new_tokens: int, length: int, concurrency: int) -> None:
        from executor.runners.engine_runner import EngineRunner

        runner = open_runner(models, engine)
        assert isinstance(runner, EngineRunner)
        runner.concurrency = concurrency
        self._runner: EngineRunner = runner
        self._new_tokens, self._length = new_tokens, length

    def written(self, requests: Requests, work: Path | None, progress: Progress) -> list[list[int]]:
        """Return the texts as token ids."""
        from executor.recording.engine_steps import engine_texts

        with self._kept(requests, work) as kept, self._runner:
            return engine_texts(self._records(requests, kept, progress))

    def own_steps(
        self, requests: Requests, work: Path | None, progress: Progress, *, every_anchor: bool, seed: int
    ) -> Trace:
        """Return the trace of the engine's own steps: those of a run, or one at every position of its texts."""
        from executor.recording.engine_steps import engine_texts, every_anchor_trace, visited_trace

        with self._kept(requests, work) as kept, self._runner as runner:
            records = self._records(requests, kept, progress)
            meta = {**runner.record, "new_tokens": self._new_tokens, "provenance": runner.provenance}
            meta["engine"]["drafted"] = self._length
            if not every_anchor:
                steps = [record.steps for record in records]
                return visited_trace(steps, depth=self._length, meta=meta, seed=seed)
            texts = engine_texts(records)
            with progress("measuring anchors", sum(len(text) - 1 for text in texts)) as advance:
                return every_anchor_trace(
                    runner, requests.tokens, texts, depth=self._length, meta=meta, work=kept, progress=advance
                )

    def _kept(self, requests: Requests, work: Path | None) -> WorkFile:
        """Return the work file of these requests."""
        from executor.models.fingerprint import tokens_hash
        from executor.runners.runner import resumable

        settings = {"prompts": tokens_hash(requests.tokens), "new_tokens": self._new_tokens, "drafted": self._length}
        return WorkFile(work, settings | resumable(self._runner.record))

    def _records(self, requests: Requests, kept: WorkFile, progress: Progress) -> list[Any]:
        from executor.recording.engine_steps import record_requests
        from treeopt.engines.driver import EngineRequest

        asked = [EngineRequest(tuple(prompt), self._new_tokens) for prompt in requests.tokens]
        with progress("decoding", len(asked)) as advance:
            return record_requests(self._runner, asked, draft=self._length, work=kept, progress=advance)
