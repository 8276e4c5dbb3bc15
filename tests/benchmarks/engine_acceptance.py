"""Acceptance in engines against replay: every layout converted, run in its engine, compared at every shared anchor.

Run as `python -m tests.benchmarks.engine_acceptance`: it checks every engine that is set up below `.engines`, and ends
with exit code 1 if a text or an accepted length differs that `KNOWN` does not list. Greedy, float32, prompts that are
in no shipped trace. An engine's first token comes from the prefill, so its steps start from the second token on.
"""

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

import treeopt
from executor.checkpoints import load_drafter, save_drafter
from executor.checkpoints.convert import rewrite
from executor.drafters.base.drafter import history_of
from executor.drafters.dflash.drafter import DFlash
from executor.drafters.mtp.drafter import Mtp
from executor.prompts.prompt_files import encode, read_prompts
from executor.recording.collect_trace import collect
from executor.recording.engine_steps import RequestRecord, engine_texts, record_requests
from executor.runners.engine_runner import EngineRunner
from executor.target.load_hf_model import load_target, prepare
from executor.target.target_model import Target
from executor.target.tokenizer import load_tokenizer
from tests.benchmarks.engine_times import OWN_TEXT, PARALLEL, WITH_SUFFIX
from tests.helpers.engine_setups import ENGINES as PLACES
from tests.helpers.engine_setups import ENVIRONMENT, SETUPS
from tests.helpers.policy_replay import accepted_lengths as dynamic_lengths
from treeopt.engines import ENGINES
from treeopt.engines.driver import DriverSettings, EngineRequest
from treeopt.policies import DynamicTree, settings
from treeopt.replay.static_tree import accepted_lengths
from treeopt.storage.provenance import this_run
from treeopt.storage.user_files import shipped, write_text
from treeopt.storage.work_file import WorkFile
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

TARGET = "stdlib-llama"
PROMPTS, SKIP = "prompts/stdlib.jsonl", 1000
LAYERS = 10  # of the target, in the draft model
Drafts = Tree | DynamicTree


@dataclass(frozen=True)
class Check:
    """A method of an engine.

    Attributes:
        engine: key of `SETUPS`.
        method: name of the check.
        drafter: a shipped drafter, `LAYERS` for the target's first layers, `PARD`, or the name of a lookup.
        drafts: what a step verifies.
        layout: layout of the drafter for the engine; None: the drafter has no file there; `WITH_TARGET`: its file holds
            the target too.
        word: `--method`; None: the engine needs none.
        concurrencies: requests in flight.
        arguments: of the launch, beside those of the engine.
        python: interpreter below `.engines`; "": the engine's.
    """

    engine: str
    method: str
    drafter: str
    drafts: Drafts
    layout: str | None = None
    word: str | None = None
    concurrencies: tuple[int, ...] = (1, 4)
    arguments: str = ""
    python: str = ""


FIRST_LAYERS = "first-layers"  # the target's first layers as a draft model
PARD = "pard"  # three of them, trained for two minutes
DSPARK = "dspark"  # the shipped DFlash with a random Markov head
IN_PARALLEL = '{"method": "draft_model", "parallel_drafting": true}'
EARLIER = OWN_TEXT.replace(" 0", " 100")
LOOKUPS = ("prompt-lookup", "suffix")
BACKEND = "--spec-draft-backend-sampling"  # llama-server's default, which the driver switches off
SAMPLED = f"eagle3 {BACKEND}"
TREE = DynamicTree(nodes=12, depth=4, beam=3)
THREE, FIVE, SEVEN = (Tree.chain(length) for length in (3, 5, 7))
WITH_TARGET = "vllm-mimo"
CHECKS = (
    Check("vllm", "eagle", "stdlib-eagle", THREE, "vllm", "eagle"),
    Check("vllm", "eagle3", "stdlib-eagle3", THREE, "eagle3-vllm", "eagle3"),
    Check("vllm", "medusa", "stdlib-medusa", THREE, "vllm-medusa", "medusa"),
    Check("vllm", "draft-model", FIRST_LAYERS, THREE, "", "draft_model"),
    Check("vllm", "ngram", "prompt-lookup:vllm:1-3", THREE, None, "ngram"),
    Check("vllm", "mtp", "stdlib-mtp", THREE, WITH_TARGET, "mtp", arguments="--skip-tokenizer-init"),
    Check("vllm", "p-eagle", "stdlib-p-eagle", FIVE, "", PARALLEL),
    Check("vllm", "dflash", "stdlib-dflash", SEVEN, "", "dflash"),
    Check("vllm", "pard", PARD, FIVE, "", IN_PARALLEL),
    Check("vllm", "suffix", "suffix:8", Tree.chain(8), None, OWN_TEXT, python=WITH_SUFFIX),
    Check("vllm", "suffix-earlier", "suffix:8:100", Tree.chain(8), None, EARLIER, (1,), python=WITH_SUFFIX),
    Check("llama.cpp", "eagle3", "stdlib-eagle3", FIVE, "gguf", "draft-eagle3", (1, 2, 4)),
    Check("llama.cpp", SAMPLED, "stdlib-eagle3", FIVE, "gguf", "draft-eagle3", (1, 2, 4), BACKEND),
    Check("llama.cpp", "dflash", "stdlib-dflash", SEVEN, "gguf", "draft-dflash", (1, 2, 4)),
    Check("llama.cpp", "dspark", DSPARK, SEVEN, "gguf", "draft-dspark", (1, 2, 4)),
    Check("llama.cpp", "draft-model", FIRST_LAYERS, FIVE, "gguf", "draft-simple", (1, 2, 4)),
    Check("llama.cpp", "ngram-simple", "prompt-lookup:llama.cpp:2-5", FIVE, None, "ngram-simple", (1, 2, 4)),
    Check("sglang", "eagle", "stdlib-eagle", FIVE, "eagle-sglang", "EAGLE"),
    Check("sglang", "mtp", "stdlib-mtp", THREE, WITH_TARGET, "NEXTN", arguments="--skip-tokenizer-init"),
    Check("sglang", "eagle3", "stdlib-eagle3", FIVE, "eagle3-specforge", "EAGLE3"),
    Check("sglang", "eagle3-tree", "stdlib-eagle3", TREE, "eagle3-specforge", "EAGLE3"),
    Check("sglang", "draft-model", FIRST_LAYERS, FIVE, "", "STANDALONE", arguments="--disable-radix-cache"),
    Check("openvino", "eagle3", "stdlib-eagle3", FIVE, "openvino"),
    Check("openvino", "eagle3-tree", "stdlib-eagle3", TREE, "openvino", None, (1,)),
    Check("openvino", "dflash", "stdlib-dflash", SEVEN, "openvino", None, (1,)),
    Check("openvino", "draft-model", FIRST_LAYERS, FIVE, "openvino"),
    Check("openvino", "prompt-lookup", "prompt-lookup:vllm:1-3", FIVE, None, "prompt-lookup"),
)

METHODS = list(dict.fromkeys(check.method for check in CHECKS))

BRANCHES = "A branch that goes on from another's node reads the keys of the branch in its own place (sglang#8409)."
FIRST_TOKEN = "SGLang's draft model never reads the prompt's first token."
# Checks that are known to differ, and why: engine, method, requests in flight.
KNOWN: dict[tuple[str, str, int], str] = {
    ("llama.cpp", SAMPLED, slots): "llama-server accepts far fewer drafts that its backend sampled for several slots."
    for slots in (2, 4)
}
KNOWN |= {("sglang", "eagle3-tree", slots): BRANCHES for slots in (1, 4)}
KNOWN |= {("sglang", "draft-model", slots): FIRST_TOKEN for slots in (1, 4)}
KNOWN |= {("vllm", "suffix-earlier", 1): "vLLM also remembers what a request's last step wrote past its limit."}


@dataclass
class Bench:
    """The models and prompts of all checks; `folder` holds what is converted, each once."""

    engines: Path
    folder: Path
    target: Target
    prompts: list[list[int]]
    domains: Sequence[Any]
    new_tokens: int
    traces: dict[tuple[bool, str, str], tuple[Trace, list[list[int]]]] = field(default_factory=dict)

    @classmethod
    def make(cls, engines: Path, folder: Path, *, count: int, new_tokens: int) -> "Bench":
        """Load the target and `count` prompts."""
        prepare("cpu", threads=1)
        source = shipped(f"models/{TARGET}")
        target = load_target(source)
        domains = read_prompts(shipped(PROMPTS))[SKIP : SKIP + count]
        tokens = encode(load_tokenizer(source, vocabulary=target.vocabulary), domains)
        return cls(engines, folder, target, tokens, domains, new_tokens)

    def source(self, name: str) -> Path | str:
        """Return the drafter that is recorded: a folder, or the name of a lookup."""
        if name == FIRST_LAYERS:
            return first_layers(self.folder / FIRST_LAYERS)
        if name == PARD:
            return trained_pard(self.folder / PARD)
        if name == DSPARK:
            return with_markov_head(self.folder / DSPARK, self.target)
        return name if name.startswith(LOOKUPS) else shipped(f"models/{name}")

    def recorded(self, check: Check) -> tuple[Trace, list[list[int]]]:
        """Return the trace of a check's drafter on the prompts, with candidates for a dynamic tree, and the texts."""
        drafts = check.drafts
        key = (check.engine == "sglang", check.drafter, str(drafts))
        if key not in self.traces:
            written: dict[int, list[list[int]]] = {}
            shape: dict[str, Any] = {"width": 1, "depth": drafts.depth}
            if isinstance(drafts, DynamicTree):
                shape = {"width": drafts.beam, "depth": drafts.depth, "candidates": drafts}
            drafter = load_drafter(self.source(check.drafter), self.target)
            if check.engine == "sglang" and isinstance(drafter, Mtp):  # reads the features after the final norm
                drafter.taps, drafter._spelling = (), replace(drafter._spelling, before_norm=False)
            trace = collect(
                self.target,
                drafter,
                self.domains,
                self.prompts,
                written=written,
                new_tokens=self.new_tokens,
                batch=1 if history_of(drafter) is not None else 8,
                **shape,
            )
            self.traces[key] = trace, [text for first in sorted(written) for text in written[first]]
        return self.traces[key]

    def converted(self, name: str, layout: str, *, exporter: str | None) -> Path:
        """Return a model in a layout, in float32; a GGUF file where the layout is one."""
        source = self.source(name)
        if not layout:
            return Path(source)
        output = self.folder / f"{name}-{layout}"
        if not output.exists():
            python = str(self.engines / exporter) if exporter and layout == "openvino" else None
            target = shipped(f"models/{TARGET}")
            rewrite(Path(source), target, output, layout=layout, dtype="float32", engine_python=python)
        return output / "model.gguf" if layout == "gguf" else output

    def settings(self, check: Check, concurrency: int) -> DriverSettings:
        """Return the settings of the driver."""
        setup = SETUPS[check.engine]
        target, drafter = self.converted(TARGET, setup.layout, exporter=setup.exporter), None
        if check.layout is not None:
            drafter = self.converted(check.drafter, check.layout, exporter=setup.exporter)
        if check.layout == WITH_TARGET and drafter is not None:
            target, drafter = drafter, None
        return DriverSettings(
            check.engine,
            str(target),
            drafter=None if drafter is None else str(drafter),
            method=check.word,
            lookup=check.drafter if check.layout is None else None,
            python=self.engines / (check.python or setup.python),
            arguments=f"{setup.arguments} {check.arguments}".strip(),
            concurrency=concurrency,
        )


@cache
def first_layers(folder: Path) -> Path:
    """Write a language model of the target's first layers; return its folder."""
    source = shipped(f"models/{TARGET}")
    model = load_target(source).model
    model.model.layers = model.model.layers[:LAYERS]
    model.config.num_hidden_layers = LAYERS
    model.save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (folder / file).write_bytes((source / file).read_bytes())
    return folder


@cache
def trained_pard(folder: Path) -> Path:
    """Train a PARD drafter; return its folder."""
    quick = {"changes": ("layers=3",), "learning_rate": 1e-3, "length": 64, "steps": 120, "held_out": 0.001}
    treeopt.train(shipped(f"models/{TARGET}"), recipe=PARD, data=shipped(PROMPTS), output=folder, threads=1, **quick)
    return folder


@cache
def with_markov_head(folder: Path, target: Target) -> Path:
    """Write the shipped DFlash with a Markov head of random weights; return its folder."""
    block = load_drafter(shipped("models/stdlib-dflash"), target)
    assert isinstance(block, DFlash)
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"taps": block.taps, "vocabulary": block.vocabulary, "mask": block.mask}
    drafter = DFlash(block.configs, **sizes, slots=block.slots, markov=16)
    drafter.load_state_dict(block.state_dict(), strict=False)
    save_drafter(folder, drafter, dtype="float32", meta={}, target=target)
    return folder


def compared(
    trace: Trace, texts: Sequence[Sequence[int]], requests: Sequence[RequestRecord], drafts: Drafts
) -> dict[str, Any]:
    """Compare an engine's steps with replay; return the counts and the first differences.

    Args:
        trace: recorded on the texts.
        texts: what the target wrote.
        requests: the engine's steps.
        drafts: what the engine verifies.

    A text that differs is compared up to the first token that differs. Counts by position are over the shared anchors.
    """
    replay = dynamic_lengths if isinstance(drafts, DynamicTree) else accepted_lengths
    accepted, starts = replay(drafts, trace), trace.starts
    equal = shared = same = 0
    replayed, engine = np.zeros((2, drafts.depth), dtype=int)
    differing = list[dict[str, int]]()
    for number, (text, tokens, request) in enumerate(zip(texts, engine_texts(requests), requests, strict=True)):
        common = next((i for i, (a, b) in enumerate(zip(text, tokens, strict=False)) if a != b), len(text))
        same += list(text) == tokens
        at = request.committed[0]
        for committed in request.committed[1:]:
            if at >= common:
                break
            expected = min(int(accepted[starts[number] + at]) + 1, len(text) - at)
            if at + max(committed, expected) <= common:
                shared, equal = shared + 1, equal + (committed == expected)
                replayed[: expected - 1] += 1
                engine[: committed - 1] += 1
                if committed != expected and len(differing) < 5:
                    differing.append({"request": number, "at": at, "engine": committed, "replay": expected})
            at += committed
    return {
        "requests": len(texts),
        "texts_equal": same,
        "anchors_shared": shared,
        "anchors_equal": equal,
        "accepted_by_position": engine.tolist(),
        "replayed_by_position": replayed.tolist(),
        "differing": differing,
    }


def run_check(bench: Bench, check: Check, concurrencies: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Run a check in one launch of its engine, record, replay and compare; yield a record per number in flight.

    Raises:
        EngineError: the engine failed.
    """
    requests = [EngineRequest(tuple(prompt), bench.new_tokens, ignore_stop=True) for prompt in bench.prompts]
    drafts = check.drafts
    draft = drafts if isinstance(drafts, DynamicTree) else drafts.depth
    trace, texts = bench.recorded(check)
    shape = f"dynamic tree {settings(drafts)}" if isinstance(drafts, DynamicTree) else f"chain of {drafts.depth}"
    arguments = f"{SETUPS[check.engine].arguments} {check.arguments}".strip()
    engine = ENGINES[check.engine].start(bench.settings(check, max(concurrencies)))
    with EngineRunner(lambda most: engine) as runner, WorkFile(None, {}) as work:
        for concurrency in concurrencies:
            runner.concurrency = concurrency
            records = record_requests(runner, requests, draft=draft, work=work)
            yield {
                "engine": check.engine,
                "method": check.method,
                "concurrency": concurrency,
                "version": version_of(engine.meta),
                "drafter": f"first {LAYERS} layers of {TARGET}" if check.drafter == FIRST_LAYERS else check.drafter,
                "draft": shape,
                **compared(trace, texts, records, drafts),
                "settings": {"new_tokens": bench.new_tokens, "skip": SKIP, "arguments": arguments},
                "provenance": this_run(),
            }


def version_of(meta: Mapping[str, Any]) -> str | None:
    """Return an engine's version as its driver reports it."""
    return meta.get("version") or meta.get("openvino_genai")


def key_of(record: Mapping[str, Any]) -> tuple[str, str, int]:
    """Return what identifies a record: engine, method, requests in flight."""
    return record["engine"], record["method"], record["concurrency"]


def problem(record: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a record, None if nothing: it differs and is not known to, or no longer does."""
    name = f"{record['engine']} {record['method']}, {record['concurrency']} in flight"
    texts, anchors = (record["texts_equal"], record["requests"]), (record["anchors_equal"], record["anchors_shared"])
    differs = f"texts equal {texts[0]} of {texts[1]}, accepted lengths {anchors[0]} of {anchors[1]}"
    if texts[0] != texts[1]:
        return f"{name}: {differs}"
    if key_of(record) in KNOWN:
        return f"{name}: equal now: remove it from KNOWN" if anchors[0] == anchors[1] else None
    return None if anchors[0] == anchors[1] and anchors[1] else f"{name}: {differs}"


def chosen(
    engines: Path, names: Sequence[str], methods: Sequence[str], concurrency: Sequence[int]
) -> Iterator[tuple[Check, Any]]:
    """Yield the launches: a check and its requests in flight, of the named engines or of those that are set up."""
    for check in CHECKS:
        setup = SETUPS[check.engine]
        needed = [engines / path for path in (check.python or setup.python, setup.exporter) if path]
        if check.engine not in names if names else not all(path.exists() for path in needed):
            continue
        if not methods or check.method in methods:
            numbers = [number for number in check.concurrencies if not concurrency or number in concurrency]
            slots = check.engine == "llama.cpp"  # launched with as many slots as requests in flight
            yield from ((check, some) for some in ([[number] for number in numbers] if slots else [numbers]) if some)


@click.command()
@click.option("--engine", "names", multiple=True, type=click.Choice(list(SETUPS)), help="Default: those set up.")
@click.option("--method", "methods", multiple=True, type=click.Choice(METHODS))
@click.option("--concurrency", multiple=True, type=int, help="Requests in flight.")
@click.option("--engines", type=click.Path(path_type=Path), default=PLACES, help="Folder of the environments.")
@click.option("--requests", "count", default=24, show_default=True)
@click.option("--new-tokens", default=32, show_default=True)
@click.option("--output", type=click.Path(path_type=Path), help="Records of the same checks are replaced.")
def main(
    names: Sequence[str],
    methods: Sequence[str],
    concurrency: Sequence[int],
    engines: Path,
    count: int,
    new_tokens: int,
    output: Path | None,
) -> None:
    """Check what engines accept of converted drafters."""
    os.environ |= ENVIRONMENT
    runs = list(chosen(engines, names, methods, concurrency))
    problems = []
    with tempfile.TemporaryDirectory(prefix="treeopt-acceptance-") as folder:
        bench = Bench.make(engines.absolute(), Path(folder), count=count, new_tokens=new_tokens)
        for check, numbers in runs:
            for record in run_check(bench, check, numbers):
                click.echo(json.dumps({name: value for name, value in record.items() if name != "provenance"}))
                problems += filter(None, [problem(record)])
                if output is not None:
                    save(record, output)
    click.echo(f"{sum(len(numbers) for _, numbers in runs)} checks, {len(problems)} problems", err=True)
    if problems:
        sys.exit("\n".join(problems))


def save(record: dict[str, Any], output: Path) -> None:
    """Write a record into a file, in the place of an earlier one of the same check."""
    records = json.loads(output.read_text("utf-8")) if output.exists() else []
    records = [other for other in records if key_of(other) != key_of(record)] + [record]
    write_text(output, json.dumps(sorted(records, key=key_of), indent=2) + "\n")


if __name__ == "__main__":
    main()
