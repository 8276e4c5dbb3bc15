"""Acceptance in engines against replay: every layout converted, run in its engine, compared at every shared anchor.

Run as `python -m tests.benchmarks.engine_acceptance --engine vllm --method eagle --engine-python PYTHON`:
PYTHON is the interpreter of the engine's own environment. Greedy, float32, prompts that are in no shipped trace.
The engine's first token comes from the prefill, so its steps start from the second token on.
"""

import json
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from executor.checkpoints import load_drafter
from executor.checkpoints.convert import rewrite
from executor.prompts.prompt_files import encode, read_prompts
from executor.recording.collect_trace import collect
from executor.target.load_hf_model import load_target, prepare
from executor.target.target_model import Target
from executor.target.tokenizer import load_tokenizer
from tests.benchmarks.engine_workers.llama_server_steps import llama_server_steps
from treeopt.errors import EngineError
from treeopt.policies import DynamicTree, settings
from treeopt.replay.dynamic_tree import accepted_lengths as dynamic_lengths
from treeopt.replay.static_tree import accepted_lengths
from treeopt.storage.atomic_files import shipped, write_text
from treeopt.storage.provenance import this_run
from treeopt.traces.trace import Trace
from treeopt.tree import Tree

TARGET = "models/stdlib-llama"
PROMPTS, SKIP = "prompts/stdlib.jsonl", 1000
LENGTH = 512  # of the engines' context
LIMIT_S = 900  # of an engine's run
Drafts = Tree | DynamicTree


@dataclass(frozen=True)
class Bench:
    """What every check is made with; `folder` is scratch space."""

    target: Target
    prompts: list[list[int]]
    domains: Sequence[Any]
    new_tokens: int
    concurrency: int
    length: int
    python: str
    export_python: str | None
    folder: Path

    @classmethod
    def make(
        cls,
        python: str,
        export_python: str | None,
        folder: Path,
        *,
        count: int,
        new_tokens: int,
        concurrency: int,
        length: int,
    ) -> "Bench":
        """Load the target and `count` prompts."""
        prepare("cpu", threads=1)
        target = load_target(shipped(TARGET))
        domains = read_prompts(shipped(PROMPTS))[SKIP : SKIP + count]
        tokens = encode(load_tokenizer(shipped(TARGET), vocabulary=target.vocabulary), domains)
        return cls(target, tokens, domains, new_tokens, concurrency, length, python, export_python, folder)

    def recorded(self, drafter: Path | str, drafts: Drafts) -> tuple[Trace, list[list[int]]]:
        """Return the trace of a drafter on these prompts, with candidates for a dynamic tree, and the texts."""
        written: dict[int, list[list[int]]] = {}
        settings: dict[str, Any] = {"new_tokens": self.new_tokens, "width": 1, "depth": self.length}
        if isinstance(drafts, DynamicTree):
            settings |= {"width": drafts.beam, "depth": drafts.depth, "candidates": drafts}
        trace = collect(
            self.target, load_drafter(drafter, self.target), self.domains, self.prompts, written=written, **settings
        )
        return trace, [text for first in sorted(written) for text in written[first]]

    def converted(self, source: Path | str, layout: str, *, folder: str | None = None, **options: Any) -> Path:
        """Return a shipped drafter, or a folder, in another layout, in float32."""
        output = self.folder / (folder or layout)
        source = shipped(source) if isinstance(source, str) else source
        rewrite(source, shipped(TARGET), output, layout=layout, dtype="float32", **options)
        return output

    def draft_model(self, layers: int = 10) -> Path:
        """Return a language model of the target's first layers."""
        output = self.folder / "draft-model"
        model = load_target(shipped(TARGET)).model
        model.model.layers = model.model.layers[:layers]
        model.config.num_hidden_layers = layers
        model.save_pretrained(output)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            (output / file).write_bytes((shipped(TARGET) / file).read_bytes())
        return output

    def run(self, worker: str, job: dict[str, Any]) -> dict[str, Any]:
        """Run a worker with the engine's Python; return its result.

        Raises:
            EngineError: it failed; holds its last words.
        """
        job |= {"prompts": self.prompts, "new_tokens": self.new_tokens, "concurrency": self.concurrency}
        paths = [self.folder / name for name in ("job.json", "result.json")]
        paths[0].write_text(json.dumps(job), "utf-8")
        words = [self.python, str(Path(__file__).parent / "engine_workers" / worker), *map(str, paths)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        if done.returncode:
            raise EngineError(f"{worker}: exit code {done.returncode}: {done.stderr.strip()[-2000:]}")
        result: dict[str, Any] = json.loads(paths[1].read_text("utf-8"))
        return result


def compared(
    trace: Trace, texts: Sequence[Sequence[int]], requests: Sequence[dict[str, Any]], drafts: Drafts
) -> dict[str, Any]:
    """Compare an engine's steps with replay; return the counts and the first differences.

    Args:
        trace: recorded on the texts.
        texts: what the target wrote.
        requests: the engine's `steps`, tokens emitted by each, the prefill's first, and `tokens`.
        drafts: what the engine verifies.

    A text that differs is compared up to the first token that differs.
    """
    replay = dynamic_lengths if isinstance(drafts, DynamicTree) else accepted_lengths
    accepted, starts = replay(drafts, trace), trace.starts
    equal = shared = same = 0
    counts, differing = np.zeros(drafts.depth, dtype=int), list[dict[str, int]]()
    for number, (text, request) in enumerate(zip(texts, requests, strict=True)):
        common = next((i for i, (a, b) in enumerate(zip(text, request["tokens"], strict=False)) if a != b), len(text))
        same += list(text) == list(request["tokens"])
        at = request["steps"][0]
        for committed in request["steps"][1:]:
            if at >= common:
                break
            replayed = int(accepted[starts[number] + at])
            expected = min(replayed + 1, len(text) - at)
            if at + max(committed, expected) <= common:
                shared, equal = shared + 1, equal + (committed == expected)
                counts[:replayed] += 1
                if committed != expected and len(differing) < 5:
                    differing.append({"request": number, "at": at, "engine": committed, "replay": expected})
            at += committed
    return {
        "requests": len(texts),
        "texts_equal": same,
        "anchors_shared": shared,
        "anchors_equal": equal,
        "replayed_by_position": counts.tolist(),
        "differing": differing,
    }


def checked(bench: Bench, drafter: Path | str, result: dict[str, Any], drafts: Drafts) -> dict[str, Any]:
    """Return the comparison of an engine's run with the trace of `drafter`."""
    trace, texts = bench.recorded(drafter, drafts)
    found = compared(trace, texts, result["requests"], drafts)
    shape = f"dynamic tree {settings(drafts)}" if isinstance(drafts, DynamicTree) else f"chain of {drafts.nodes}"
    return found | {"version": result["version"], "metrics": result.get("metrics", {}), "draft": shape}


# --- vLLM


def _vllm(bench: Bench, drafter: Path | str, speculative: dict[str, Any]) -> dict[str, Any]:
    job = {
        "target": str(shipped(TARGET)),
        "speculative": speculative | {"num_speculative_tokens": bench.length},
        "length": LENGTH,
    }
    return checked(bench, drafter, bench.run("vllm_steps.py", job), Tree.chain(bench.length))


def vllm_eagle(bench: Bench) -> dict[str, Any]:
    """EAGLE, its bias folded."""
    model = bench.converted("models/stdlib-eagle", "vllm")
    return _vllm(bench, shipped("models/stdlib-eagle"), {"method": "eagle", "model": str(model)})


def vllm_eagle3(bench: Bench) -> dict[str, Any]:
    """EAGLE-3."""
    model = bench.converted("models/stdlib-eagle3", "eagle3-vllm")
    return _vllm(bench, shipped("models/stdlib-eagle3"), {"method": "eagle3", "model": str(model)})


def vllm_medusa(bench: Bench) -> dict[str, Any]:
    """Medusa heads."""
    model = bench.converted("models/stdlib-medusa", "vllm-medusa")
    return _vllm(bench, shipped("models/stdlib-medusa"), {"method": "medusa", "model": str(model)})


def vllm_draft_model(bench: Bench) -> dict[str, Any]:
    """The target's first layers as a draft model."""
    model = bench.draft_model()
    return _vllm(bench, model, {"method": "draft_model", "model": str(model)})


# --- llama.cpp


def _llama_cpp(bench: Bench, drafter: Path | str, draft: Path, kind: str) -> dict[str, Any]:
    target = bench.converted(TARGET, "gguf", folder="gguf-target")
    words = [bench.python, "-m", str(target / "model.gguf"), "-md", str(draft / "model.gguf"), "--spec-type", kind]
    words += ["--spec-draft-n-max", str(bench.length), "--spec-draft-p-min", "0", "-c", str(LENGTH)]
    words += ["-ctk", "f32", "-ctv", "f32", "-ctkd", "f32", "-ctvd", "f32", "-fa", "off"]  # the default is f16
    result = llama_server_steps(words, bench.prompts, new_tokens=bench.new_tokens)
    return checked(bench, drafter, result, Tree.chain(bench.length))


def llama_cpp_eagle3(bench: Bench) -> dict[str, Any]:
    """EAGLE-3."""
    draft = bench.converted("models/stdlib-eagle3", "gguf")
    return _llama_cpp(bench, shipped("models/stdlib-eagle3"), draft, "draft-eagle3")


def llama_cpp_draft_model(bench: Bench) -> dict[str, Any]:
    """The target's first layers as a draft model."""
    model = bench.draft_model()
    return _llama_cpp(bench, model, bench.converted(model, "gguf"), "draft-simple")


# --- OpenVINO


def _openvino(bench: Bench, drafter: Path | str, draft: Path, knobs: dict[str, Any], drafts: Drafts) -> dict[str, Any]:
    target = bench.converted(TARGET, "openvino", folder="openvino-target", engine_python=bench.export_python)
    job = {"target": str(target), "draft": str(draft), "settings": knobs}
    return checked(bench, drafter, bench.run("openvino_steps.py", job), drafts)


def openvino_eagle3(bench: Bench) -> dict[str, Any]:
    """EAGLE-3, a chain."""
    draft = bench.converted("models/stdlib-eagle3", "openvino", engine_python=bench.export_python)
    knobs = {"num_assistant_tokens": bench.length}
    return _openvino(bench, shipped("models/stdlib-eagle3"), draft, knobs, Tree.chain(bench.length))


def openvino_eagle3_tree(bench: Bench) -> dict[str, Any]:
    """EAGLE-3, a dynamic tree."""
    draft = bench.converted("models/stdlib-eagle3", "openvino", engine_python=bench.export_python)
    tree = DynamicTree(nodes=12, depth=4, beam=3)
    knobs = {"num_assistant_tokens": tree.nodes, "tree_depth": tree.depth, "branching_factor": tree.beam}
    return _openvino(bench, shipped("models/stdlib-eagle3"), draft, knobs, tree)


def openvino_draft_model(bench: Bench) -> dict[str, Any]:
    """The target's first layers as a draft model."""
    model = bench.draft_model()
    draft = bench.converted(model, "openvino", engine_python=bench.export_python)
    knobs = {"num_assistant_tokens": bench.length}
    return _openvino(bench, model, draft, knobs, Tree.chain(bench.length))


CHECKS: dict[tuple[str, str], Callable[[Bench], dict[str, Any]]] = {
    ("vllm", "eagle"): vllm_eagle,
    ("vllm", "eagle3"): vllm_eagle3,
    ("vllm", "medusa"): vllm_medusa,
    ("vllm", "draft-model"): vllm_draft_model,
    ("llama.cpp", "eagle3"): llama_cpp_eagle3,
    ("llama.cpp", "draft-model"): llama_cpp_draft_model,
    ("openvino", "eagle3"): openvino_eagle3,
    ("openvino", "eagle3-tree"): openvino_eagle3_tree,
    ("openvino", "draft-model"): openvino_draft_model,
}


def check(
    engine: str,
    method: str,
    python: str,
    *,
    export_python: str | None = None,
    count: int = 24,
    new_tokens: int = 32,
    concurrency: int = 8,
    length: int = 3,
) -> dict[str, Any]:
    """Convert, run, record, replay and compare; return the record.

    Raises:
        EngineError: no such check, or the engine failed.
    """
    found = CHECKS.get((engine, method))
    if found is None:
        raise EngineError(f"checks are {', '.join(' '.join(pair) for pair in CHECKS)}, got {engine} {method}")
    sizes = {"count": count, "new_tokens": new_tokens, "concurrency": concurrency, "length": length}
    with tempfile.TemporaryDirectory(prefix="treeopt-engine-") as name:
        record = found(Bench.make(python, export_python, Path(name), **sizes))
    settings = {"new_tokens": new_tokens, "concurrency": concurrency, "skip": SKIP, "dtype": "float32"}
    return {"engine": engine, "method": method, **record, "settings": settings, "provenance": this_run()}


@click.command()
@click.option("--engine", required=True, type=click.Choice(sorted({engine for engine, _ in CHECKS})))
@click.option("--method", required=True, multiple=True)
@click.option("--engine-python", "python", required=True, help="Interpreter of the engine's environment; llama-server.")
@click.option("--export-python", help="Interpreter of optimum-intel's environment, for openvino.")
@click.option("--requests", "count", default=24, show_default=True)
@click.option("--new-tokens", default=32, show_default=True)
@click.option("--concurrency", default=8, show_default=True)
@click.option("--length", default=3, show_default=True, help="Drafted tokens; levels of a tree.")
@click.option("--output", type=click.Path(path_type=Path), help="Records of the same checks are replaced.")
def main(engine: str, method: Sequence[str], python: str, output: Path | None, **settings: Any) -> None:
    """Check what an engine accepts of converted drafters."""
    records = [check(engine, name, python, **settings) for name in method]
    click.echo(json.dumps(records, indent=2))
    if output:
        kept = json.loads(output.read_text("utf-8")) if output.exists() else []
        made = {(record["engine"], record["method"]) for record in records}
        kept = [record for record in kept if (record["engine"], record["method"]) not in made]
        ordered = sorted(kept + records, key=lambda record: (record["engine"], record["method"]))
        write_text(output, json.dumps(ordered, indent=2) + "\n")


if __name__ == "__main__":
    main()
