"""The export to llama.cpp b11434: options of `llama-server` for a chain, one length until the server is started again.

Draft models take their length from `--spec-draft-n-max`, which counts drafted tokens without the root, like
`Tree.depth`; a probability below `--spec-draft-p-min` ends a draft early, so it is set to 0. N-gram types ignore that
option: each has its own (`common_speculative_n_max` in common/speculative.cpp), and ngram-cache always drafts up to 8.
ngram-mod drops drafts shorter than its n-min, 48 by default. Branches exist only in the demonstration
`examples/speculative`.

Imposed acceptance takes exactly as many rates P(the first i are accepted) as the longest draft, never rising
(`common_speculative_synth_rates_resolve`); a type that clamps the length then refuses them.

* `driver`: llama-server processes, launched by draft length.
"""

import shlex
from collections.abc import Mapping

from treeopt.constraints import Constraint, chains_only, depth_at_least, depth_at_most
from treeopt.engines.engine import SHARED, Engine, ExportJob, Method
from treeopt.engines.export import DIGITS, DRAFTER, Export
from treeopt.storage.provenance import look
from treeopt.traces.importers.sources.prometheus_counters import CounterNames
from treeopt.traces.trace import Trace

TITLE = "llama.cpp b11434"

LENGTHS: Mapping[str, str] = {
    "ngram-simple": "--spec-ngram-simple-size-m {}",
    "ngram-map-k": "--spec-ngram-map-k-size-m {}",
    "ngram-map-k4v": "--spec-ngram-map-k4v-size-m {}",
    "ngram-mod": "--spec-ngram-mod-n-max {} --spec-ngram-mod-n-min 0",
}
"""How n-gram types take their length."""

HOST_SAMPLING: Mapping[str, str] = {"draft-eagle3": "--no-spec-draft-backend-sampling"}
"""Options that keep drafts as good with several slots as with one. By default llama-server 0.6.0-dev samples the drafts
of these types in the drafter's compute graph; with several slots far fewer are then accepted (docs/results/engines.md).
"""

LONGEST_NGRAM = depth_at_most(1024, source="--spec-ngram-*-size-m in common/arg.cpp")
CLAMPED = frozenset({"draft-mtp", "draft-dflash", "draft-dspark"})


def write(job: ExportJob) -> Export:
    """Return options of `llama-server` that draft the planned chain."""
    length, method = job.length(), str(job.method)
    slots = job.fits[-1].batch
    text = f"--spec-type {method} {draft_options(method, length, slots=slots)}"
    job.notes += _method_notes(method, length, job.kind)
    if job.replay is not None:
        text += f" --spec-synth-rates {','.join(f'{rate:.{DIGITS}f}' for rate in job.imposed_rates(length))}"
    if job.model is not None:
        text = f"-md {shlex.quote(job.model)} {text}"
    named = job.model is not None or method in LENGTHS or method == "draft-mtp"
    drafter = "" if named else f"-md {DRAFTER} "
    return Export(text, ".txt", launch=f"llama-server -m {shlex.quote(job.target)} -np {slots} {drafter}{text}")


def draft_options(method: str, length: int, *, slots: int) -> str:
    """Return the options that make a method draft `length` tokens, equally well for any number of slots.

    >>> draft_options("ngram-simple", 5, slots=4)
    '--spec-ngram-simple-size-m 5'
    """
    text = LENGTHS.get(method, "--spec-draft-n-max {} --spec-draft-p-min 0").format(length)
    return f"{text} {HOST_SAMPLING[method]}" if slots > 1 and method in HOST_SAMPLING else text


def _method_notes(method: str, length: int, kind: object) -> list[str]:
    if method in CLAMPED:
        return [f"{TITLE} drafts no more than {method} was trained for; check its log for a length below {length}"]
    if method in LENGTHS and kind == "prompt-lookup:llama.cpp":
        return [
            f"set --spec-ngram-simple-size-n to N of the drafter's name (default 12), at most {length}: "
            "shorter drafts are dropped"
        ]
    if method in LENGTHS:
        return [
            f"{TITLE} {method} matches a fixed number of tokens (see its size-n or n-match option), takes one piece "
            "of the text, and drafts nothing where nothing matches; treeopt's prompt lookup always drafts something"
        ]
    return []


def _shortest_draft(trace: Trace) -> tuple[Constraint, ...]:
    """Return the rule of `ngram-simple`, which drops drafts that are shorter than the tokens that must match."""
    least = look(trace.meta, "drafter", "least")
    return (depth_at_least(least, source="common/ngram-map.cpp drops shorter drafts"),) if type(least) is int else ()


def _ngram(*kinds: str) -> Method:
    return Method.of(*kinds, model="none", rules=(LONGEST_NGRAM,))


CUTS = "llama.cpp cuts drafts at max_tokens, and where the drafter is not sure: most shorter drafts are of this kind"
ENTRY = Engine(
    name="llama.cpp",
    title=TITLE,
    metrics=CounterNames("llamacpp:spec_decode_", cuts=CUTS),
    rules=(chains_only(source="llama-server takes only lengths, common/arg.cpp"),),
    rules_of_trace=_shortest_draft,
    methods={  # values of `--spec-type` whose length can be set
        "draft-simple": Method.of("language-model"),
        "draft-eagle3": Method.of("eagle3"),
        "draft-mtp": Method.of("mtp"),
        "draft-dflash": Method.of("dflash"),
        "draft-dspark": Method.of("dspark"),
        "ngram-simple": _ngram("prompt-lookup:llama.cpp", "prompt-lookup"),
        "ngram-map-k": _ngram("prompt-lookup"),
        "ngram-map-k4v": _ngram("prompt-lookup"),
        "ngram-mod": _ngram("prompt-lookup"),
    },
    write=write,
    checked=f"the code of {TITLE}, common/arg.cpp and common/speculative.cpp",
    takes=(*SHARED, "replay"),
    driver="treeopt.engines.llama_cpp.driver:LlamaCpp",
)
