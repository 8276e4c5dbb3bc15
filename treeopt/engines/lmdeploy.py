"""The export to LMDeploy 0.18.0: options of `lmdeploy serve api_server` for a chain, one length for all batch sizes.

`--speculative-num-draft-tokens` counts drafted tokens without the root, like `Tree.depth`. LMDeploy itself accepts any
length, even a negative one. DFlash drafts one token fewer than its block size, which must be at least 2.
"""

import shlex

from treeopt.constraints import chains_only
from treeopt.engines.engine import Engine, ExportJob, Method
from treeopt.engines.export import DRAFTER, Export
from treeopt.traces.importers.sources.prometheus_counters import CounterNames

TITLE = "LMDeploy 0.18.0"


def write(job: ExportJob) -> Export:
    """Return options of `lmdeploy serve api_server` that draft the planned chain."""
    length, method = job.length(), str(job.method)
    words = ["--speculative-algorithm", method]
    if job.model is not None:
        words += ["--speculative-draft-model", job.model]
    words += ["--speculative-num-draft-tokens", str(length)]
    if method == "dflash":
        words += ["--speculative-dflash-block-size", str(length + 1)]
    drafter = [] if job.model is not None or method.endswith("_mtp") else ["--speculative-draft-model", DRAFTER]
    launch = shlex.join(["lmdeploy", "serve", "api_server", job.target, *words, *drafter])
    return Export(shlex.join(words), ".txt", launch=launch)


ENTRY = Engine(
    name="lmdeploy",
    title=TITLE,
    never_ran=True,
    metrics=CounterNames("lmdeploy:spec_decode_"),
    rules=(chains_only(source="num_speculative_tokens of SpeculativeConfig"),),
    methods={  # values of `--speculative-algorithm`
        "eagle": Method.of("eagle"),
        "eagle3": Method.of("eagle3"),
        "deepseek_mtp": Method.of("mtp"),
        "hy3_mtp": Method.of("mtp"),
        "qwen3_5_mtp": Method.of("mtp"),
        "dflash": Method.of("dflash"),
    },
    write=write,
    devices="--tp",
    checked=f"the code of {TITLE}, SpeculativeConfig; no engine was run",
)
