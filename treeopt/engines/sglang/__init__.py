"""The export to SGLang 0.5.23: a chain as launch flags, chains by batch size as an adaptive config, or a dynamic tree.

There is no option for a static tree. `--speculative-num-draft-tokens` counts the root, `Tree.nodes` does not.
With topk 1 it is overwritten by steps + 1. DFlash and DSpark have one option each, the size of their block, which
counts the root for DFlash alone. With a larger topk, a dynamic tree is built at every step from
K + (D - 1) K² candidates, and more draft tokens than that crash at run time (`organize_draft_results`).

The adaptive config is keyed by batch size since 0.5.13 (srt/speculative/adaptive_spec_params.py): a batch is
padded to the next CUDA-graph size, then uses the largest key that it reaches, or below all keys the smallest.
A batch between two planned sizes thus uses the smaller one's steps, as long as it is not padded to the larger.
Keys that are no integers are not read as tiers, so provenance is stored there under "treeopt". A tier with one
candidate never changes; 0 steps decode plainly.

* `driver`: its servers, launched by draft length.
"""

import json
import shlex
from collections.abc import Sequence

from treeopt.constraints import chains_only
from treeopt.engines.dynamic_trees import DynamicTrees, Triple
from treeopt.engines.engine import SHARED, Engine, ExportJob, Method
from treeopt.engines.export import DRAFTER, Export, batch_sizes, origin, tiers
from treeopt.errors import EngineError
from treeopt.traces.importers.sources.prometheus_counters import CounterNames

TITLE = "SGLang 0.5.23"
ROUTER = "srt/speculative/adaptive_spec_params.py"
SIMULATED = "_sample_simulated_acc_len in srt/speculative/spec_utils.py"
ONE_LENGTH = f"{TITLE} draws one accepted length per step for the whole batch, the mean rounded down or up"
TREES = DynamicTrees(
    TITLE,
    names=("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens"),
    counts_root=True,
    bound="pool",
    fills_levels=False,
    one_size=f"adaptive steps need topk 1 ({ROUTER})",
    source="organize_draft_results in srt/speculative/eagle_utils.py, sglang#24054",
)
BLOCKS = {"DFLASH": 1, "DSPARK": 0}  # algorithms that draft a block, and what its size counts beside drafted tokens
ADAPTIVE = frozenset({"EAGLE", "EAGLE3", "NEXTN"})  # algorithms whose steps may change by batch size
MAX_RUNNING = 48  # default limit of running requests in SGLang when it speculates


def write(job: ExportJob) -> Export:
    """Return launch flags if one chain or triple is enough, else the adaptive config and the flags that go with it.

    Raises:
        EngineError: chains of several lengths with an algorithm that cannot change them, or with imposed acceptance.
    """
    words = [f"--speculative-algorithm {job.method}"] if job.method else []
    words += [f"--speculative-draft-model-path {shlex.quote(job.model)}"] if job.model else []
    start = _start(job.target, job.method, job.model)
    _note_launch(job)
    triple = job.dynamic()
    if triple is not None:
        if triple.width > 1:
            job.notes.append("topk above 1 with a page size above 1 needs attention by flashinfer, fa3 or triton")
        tree = flags(triple, job.method)
        return Export(" ".join([*words, tree]), ".txt", launch=f"{start} {tree}")
    fits = job.static()
    steps = tiers(fits)
    longest = max(length for *_, length in steps)
    environment = ""
    if job.replay is not None:
        if len(steps) > 1:
            reason = f"{TITLE} imposes one acceptance on all batch sizes ({SIMULATED}), but the chains differ"
            raise EngineError(f"{reason}; nearest: one batch size of {batch_sizes([at for at in fits if at.tree])}")
        tokens = 1 + sum(job.imposed_rates(longest))  # that steps commit on average, the bonus counted
        settings = {"LEN": f"{tokens:.3f}", "METHOD": "match-expected", "TOKEN_MODE": "real-draft-token"}
        environment = " ".join(f"SGLANG_SIMULATE_ACC_{name}={value}" for name, value in settings.items())
        job.notes.append(ONE_LENGTH)
    if job.method == "DFLASH":
        job.note_block(longest)
    if len(steps) == 1:
        chain = flags(Triple(longest, 1, longest), job.method)
        launch = f"{environment} {start} {chain}".strip()
        return Export(" ".join([*words, chain]), ".txt", environment=environment, launch=launch)
    if job.method and job.method not in ADAPTIVE:
        raise EngineError(
            f"{TITLE} cannot change the steps of {job.method} by batch size "
            f"({ROUTER}); nearest: one batch size of {batch_sizes([at for at in fits if at.tree])}"
        )
    adaptive = (
        f"--speculative-num-steps {longest} --speculative-eagle-topk 1 --speculative-adaptive "
        f"--speculative-adaptive-config {shlex.quote(job.file)}"
    )
    job.notes += _adaptive_notes(steps, longest)
    config: dict[str, object] = {str(first): {"candidate_steps": [length]} for first, _, length in steps}
    lines = (f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in (config | {"treeopt": origin(fits)}).items())
    text = "{\n" + ",\n".join(lines) + "\n}"
    return Export(text, ".json", " ".join([*words, adaptive]), launch=f"{start} {adaptive}", file=job.file)


def flags(triple: Triple, method: str | None) -> str:
    """Return the three launch flags, the last of which counts the root; or the flag of a block.

    >>> flags(Triple(depth=5, width=4, nodes=15), "EAGLE3")
    '--speculative-num-steps 5 --speculative-eagle-topk 4 --speculative-num-draft-tokens 16'
    >>> flags(Triple(depth=7, width=1, nodes=7), "DFLASH"), flags(Triple(depth=7, width=1, nodes=7), "DSPARK")
    ('--speculative-dflash-block-size 8', '--speculative-dspark-block-size 7')
    """
    if method in BLOCKS:
        return f"--speculative-{method.lower()}-block-size {triple.nodes + BLOCKS[method]}"
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in TREES.settings(triple).items())


def _start(target: str, algorithm: str | None, model: str | None) -> str:
    """Return the launch line up to the settings of the plan; names that were not given stand as words in capitals."""
    words = ["python", "-m", "sglang.launch_server", "--model-path", target]
    words += ["--speculative-algorithm", algorithm or "ALGORITHM"]
    if model or algorithm != "NEXTN":
        words += ["--speculative-draft-model-path", model or DRAFTER]
    return shlex.join(words)


def _note_launch(job: ExportJob) -> None:
    """Note which options are missing for the launch."""
    if job.method is None:
        job.notes.append("add --speculative-algorithm and --speculative-draft-model-path to the flags")
    largest = job.entries[-1].batch
    if largest > MAX_RUNNING:
        job.notes.append(
            f"{TITLE} runs at most {MAX_RUNNING} requests when it speculates; set --max-running-requests {largest}"
        )


def _adaptive_notes(steps: Sequence[tuple[int, int, int]], longest: int) -> list[str]:
    """Return notes on when tiers begin early (a batch is padded to the next key), and when SGLang drops them."""
    before = ", ".join(str(start - 1) for start, *_ in steps[1:])
    return [
        f"{TITLE} pads a batch to the next CUDA-graph size before it selects a tier, so tiers begin early unless "
        f"--cuda-graph-bs holds {before}",
        f"{TITLE} drops the tiers with a warning under attention DP, multi-layer EAGLE, two-batch overlap "
        f"or PDMux; steps are then {longest} at every batch",
    ]


ENTRY = Engine(
    name="sglang",
    title=TITLE,
    metrics=CounterNames(
        "sglang:spec_verify_",
        accepted="",
        steps="calls_total",
        generated="sglang:generation_tokens_total",
        ended="sglang:num_requests_total",
    ),
    rules=(chains_only(source="no tree option in srt/arg_groups/fields/spec.py"),),
    trees=TREES,
    methods={  # NEXTN is another name for EAGLE
        "EAGLE": Method.of("eagle", trees=True),
        "EAGLE3": Method.of("eagle", "eagle3", trees=True),
        "NEXTN": Method.of("mtp", trees=True),
        "STANDALONE": Method.of("language-model", trees=True),
        "DFLASH": Method.of("dflash"),
        "DSPARK": Method.of("dspark"),
    },
    default_method="optional",
    write=write,
    devices="--tp-size",
    checked=f"the code of {TITLE}",
    takes=(*SHARED, "replay"),
    file="treeopt_sglang.json",
    driver="treeopt.engines.sglang.driver:SGLang",
)
