"""`treeopt decode`: continue prompts with a target, a drafter and a tree."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from treeopt.api.messages import warn
from treeopt.api.run_models import Models, load_target_and_drafter
from treeopt.api.run_prompts import Prompts, Requests, load_prompts
from treeopt.api.token_sampling import Sampling
from treeopt.cli.options import general, models_and_prompts, printing
from treeopt.cli.options.decoded_output import SCHEMA, SILENT, Results, results
from treeopt.cli.options.help_sections import Command, examples
from treeopt.cli.options.verification_rule import sampling
from treeopt.cli.options.what_to_draft import Trees, trees
from treeopt.comparison.mismatch_warnings import plan_model_warnings, plan_rule_warnings
from treeopt.errors import ExecutorError, UsageError, counted
from treeopt.policies.policy_kinds import identity as policy_identity
from treeopt.tree import Tree

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from executor.decoding.decoder import Decoder
    from executor.decoding.step_results import Gathered, Generation
    from executor.target.target_model import Target

SECTIONS = {
    "Models": "target drafter",
    "Prompts": "texts prompts_file new_tokens",
    "Drafting": "plan_file tree batch temperature",
    "Output": "output resume as_json",
}
EXAMPLES = examples(
    "treeopt decode --target data/models/stdlib-llama --drafter data/models/stdlib-medusa --tree 2 "
    "--prompt 'def read(path):' --new-tokens 16",
    "treeopt decode --target data/models/stdlib-llama --drafter prompt-lookup --tree 3 "
    "--prompts data/prompts/stdlib.jsonl --requests 2 --new-tokens 16 --audit --output texts.jsonl",
)


@click.command(cls=Command, sections=SECTIONS, epilog=EXAMPLES)
@models_and_prompts.models_without_drafter
@models_and_prompts.prompts_or_texts
@models_and_prompts.new_tokens
@trees
@sampling
@click.option("--ignore-end", is_flag=True, help="Continue to --new-tokens past tokens that end a text.")
@click.option("--compiled", is_flag=True, help="Compile the target's forward (torch.compile); slow to start.")
@general.graphs
@click.option("--audit", is_flag=True, help="Check each greedy text against a plain forward; exit code 1 if it fails.")
@results
def decode(
    models: Models,
    prompts: Prompts,
    new_tokens: int,
    trees: Trees,
    sampling: Sampling,
    ignore_end: bool,
    compiled: bool,
    graphs: bool,
    audit: bool,
    results: Results,
) -> None:
    """Continue prompts with a target and, given a plan or a tree, a drafter.

    Texts go to stdout in the order in which requests end; figures go to stderr.
    """
    shape, batch, plan = trees.chosen()
    results.check(batch, sampled=sampling.temperature > 0)
    sampling.check()
    if audit and sampling.temperature > 0:
        raise UsageError("--audit compares texts with the greedy choice, so it needs --temperature 0")
    if shape.nodes and models.drafter is None:
        raise UsageError("a tree needs --drafter; without a drafter omit --plan, --tree and --dynamic")
    begun = results.begun()
    target, drafter = load_target_and_drafter(models)
    if compiled:
        target.compile()
    requests = load_prompts(models, target, prompts)
    from executor.decoding.decoder import Decoder
    from executor.models.fingerprint import compute_as_recorded
    from executor.verification.acceptance_rules import rule_meta

    if begun is not None:
        compute_as_recorded(target, drafter, begun[0].get("provenance"))
    stop = [] if ignore_end else requests.stop
    rule = sampling.rule_for(target)
    decoder = Decoder(target, drafter, tree=shape, batch=batch, rule=rule, graphs=graphs)
    conditions = {"rule": sampling.name, "skip": prompts.skip, "new_tokens": new_tokens, "stop": stop, "audit": audit}
    meta = {**_meta(decoder, requests.tokens), **asdict(sampling), **conditions}
    if plan is not None:
        warn([*plan_model_warnings(plan, meta, graphs=graphs), *plan_rule_warnings(plan, rule_meta(rule))])
    earlier = results.continued(begun, meta)
    run = Run(decoder, requests, prompts.skip, new_tokens, stop, audit)
    gathered, records = run.decode({record["request"] for record in earlier}, meta, results)
    if not printing.is_main_process():
        return
    click.echo(_summary(gathered, decoder, graphs=graphs), err=True)
    if results.as_json:
        printing.print_json({"schema": SCHEMA, "meta": meta, "counts": _counts(gathered), "requests": records})
    if audit:
        _report([*earlier, *records], target)


@dataclass(frozen=True)
class Run:
    """A decoder with its requests; `skip` prompts of the file come before them."""

    decoder: "Decoder"
    requests: Requests
    skip: int
    new_tokens: int
    stop: list[int]
    audit: bool

    def decode(self, done: set[int], meta: dict[str, Any], results: Results) -> "tuple[Gathered, list[dict[str, Any]]]":
        """Decode the requests that are not done, write them to the results, and return counts and records."""
        from executor.decoding.step_results import Gathered
        from executor.target.tokenizer import TextStream

        tokens = self.requests.tokens
        waiting = [number for number in range(len(tokens)) if self.skip + number not in done]
        prompts = [tokens[number] for number in waiting]
        main = printing.is_main_process()
        if main:
            click.echo(self.decoder.memory(prompts, new_tokens=self.new_tokens), err=True)
        else:
            results = SILENT
        gathered, text, records = Gathered(), TextStream(self.requests.tokenizer), []
        steps = self.decoder.steps(prompts, new_tokens=self.new_tokens, stop=self.stop)
        hidden = results.stream or not main
        with results.writer(meta) as write, _live(len(waiting), hidden=hidden) as show:
            for step in steps:
                if results.stream:
                    print(text.put(step.committed[0], last=step.ended[0]), end="", flush=True)
                for place, generation in gathered.add(step):
                    record = self._record(waiting[place], generation)
                    write(record)
                    records.append(record)
                    text = TextStream(self.requests.tokenizer)
                show(gathered)
        return gathered, records

    def _record(self, number: int, generation: "Generation") -> dict[str, Any]:
        """Return a finished request; `request` counts the prompts of the file from 0."""
        tokens = list(generation.tokens)
        prompt = self.requests.tokens[number]
        record = {
            "request": self.skip + number,
            "domain": self.requests.prompts[number].domain,
            "prompt_tokens": len(prompt),
            "text": self.requests.tokenizer.decode(tokens, skip_special_tokens=True),
            "tokens": tokens,
            "accepted": list(generation.accepted),
            "end": "stop" if tokens[-1] in self.stop else "length",
        }
        if self.audit:
            from executor.decoding.self_test import audit_text

            record["audit"] = asdict(audit_text(self.decoder.target, prompt, generation.tokens))
        return record


def _meta(decoder: "Decoder", tokens: "Sequence[Sequence[int]]") -> dict[str, Any]:
    """Return identity of the models, tree, batch, prompts, device and provenance."""
    from executor.models.fingerprint import device_name, identity, run_provenance, tokens_hash

    shape = decoder.tree
    return {
        **identity(decoder.target, decoder.drafter),
        "tree": [list(path) for path in shape.paths] if isinstance(shape, Tree) else policy_identity(shape),
        "batch": decoder.batch,
        "prompts_sha256": tokens_hash(tokens),
        "device": device_name(decoder.target.device),
        "provenance": run_provenance(decoder.target, decoder.drafter),
    }


@contextmanager
def _live(requests: int, *, hidden: bool) -> "Iterator[Callable[[Gathered], None]]":
    """Show figures on stderr while requests are decoded, where that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    # rich would send what is printed to stderr, which is only right where both are one terminal.
    both = sys.stdout.isatty()
    if hidden or not console.is_terminal:
        yield lambda gathered: None
        return
    with Progress(*columns, console=console, transient=True, redirect_stdout=both) as bar:
        task = bar.add_task("", total=requests)

        def show(gathered: "Gathered") -> None:
            bar.update(task, completed=gathered.ended, description=_figures(gathered))

        yield show


def _summary(gathered: "Gathered", decoder: "Decoder", *, graphs: bool) -> str:
    means = f": {_figures(gathered)} (means; prefill counted in tokens/s)" if gathered.steps else ""
    held = f"; graphs hold {decoder.graph_bytes / 2**20:.1f} MiB" if graphs else ""
    tokens, steps = counted(gathered.committed, "token"), counted(gathered.steps, "step")
    counts = f"{counted(gathered.ended, 'request')}, {tokens} in {steps}"
    return f"{counts} at batch {decoder.batch}{means}{held}"


def _figures(gathered: "Gathered") -> str:
    """Return tau, tokens per second and milliseconds per step, so far."""
    step_s = (gathered.draft_s + gathered.rest_s) / gathered.steps
    total_s = gathered.draft_s + gathered.rest_s + gathered.admit_s
    return f"tau {gathered.tau:.2f}, {gathered.committed / total_s:.1f} tokens/s, {step_s * 1e3:.1f} ms per step"


def _counts(gathered: "Gathered") -> dict[str, Any]:
    """Return counts and sums, from which every mean can be made."""
    return {
        "requests": gathered.ended,
        "steps": gathered.steps,
        "committed": gathered.committed,
        "accepted": {str(accepted): count for accepted, count in sorted(gathered.histogram.items())},
        "draft_s": gathered.draft_s,
        "rest_s": gathered.rest_s,
        "admit_s": gathered.admit_s,
    }


def _report(records: list[dict[str, Any]], target: "Target") -> None:
    """Print the result of the audit; a text that fails it ends the command with exit code 1."""
    from executor.decoding.self_test import MARGIN, Audit

    total = Audit.total(Audit(**record["audit"]) for record in records)
    result = (
        f"audit: {total.differing} of {total.tokens} tokens are not the argmax of a plain forward, the worst "
        f"{total.worst:.1f} units in the last place below it; {total.unexcused} are beyond the margin of "
        f"{MARGIN[target.dtype]}"
    )
    if total.unexcused:
        wrong = next(record["request"] for record in records if record["audit"]["unexcused"])
        raise ExecutorError(f"{result}; first in request {wrong}")
    click.echo(result, err=True)
