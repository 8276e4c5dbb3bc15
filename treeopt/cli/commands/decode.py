"""`treeopt decode`: continue prompts with a target, a drafter and a tree."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from treeopt.cli.options import general, models_and_prompts
from treeopt.cli.options.decoded_output import SCHEMA, SILENT, Results, results
from treeopt.cli.options.matching_files import warn_of_another_rule, warn_of_others
from treeopt.cli.options.verification_rule import Sampling, sampling
from treeopt.cli.options.what_to_draft import Trees, trees
from treeopt.errors import ExecutorError, UsageError
from treeopt.policies.policy_json import identity as policy_identity
from treeopt.storage.provenance import this_run
from treeopt.tree import Tree

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from executor.decoding.decoder import Decoder
    from executor.decoding.step_results import Gathered, Generation
    from executor.target.target_model import Target


@click.command()
@models_and_prompts.models_without_drafter
@models_and_prompts.prompts_or_texts
@models_and_prompts.new_tokens
@trees
@sampling
@click.option("--ignore-end", is_flag=True, help="Go on to --new-tokens past tokens that end a text.")
@click.option("--compiled", is_flag=True, help="Compile the target's forward (torch.compile); slow to start.")
@general.graphs
@click.option("--audit", is_flag=True, help="Check each greedy text against a plain forward; exit code 1 if it fails.")
@results
def decode(
    models: models_and_prompts.Models,
    prompts: models_and_prompts.Prompts,
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
        raise UsageError("--audit compares with the greedy choice: it has no meaning at a temperature above 0")
    if shape.nodes and models.drafter is None:
        raise UsageError("a tree needs --drafter; without one leave out --plan, --tree and --dynamic")
    begun = results.begun()
    target, drafter = models_and_prompts.load_target_and_drafter(models)
    if compiled:
        target.compile()
    requests = models_and_prompts.load_prompts(models, target, prompts)
    from executor.decoding.decoder import Decoder
    from executor.decoding.step_results import Gathered
    from executor.target.tokenizer import TextStream
    from executor.verification.acceptance_rules import told

    stop = [] if ignore_end else requests.stop
    rule = sampling.made(target)
    decoder = Decoder(target, drafter, tree=shape, batch=batch, rule=rule, graphs=graphs)
    conditions = {"rule": sampling.name, "skip": prompts.skip, "new_tokens": new_tokens, "stop": stop, "audit": audit}
    meta = {**_meta(decoder, requests.tokens), **asdict(sampling), **conditions}
    if plan is not None:
        warn_of_others(plan, meta, graphs=graphs)
        warn_of_another_rule(plan, told(rule))
    earlier = results.continued(begun, meta)
    done = {record["request"] for record in earlier}
    waiting = [number for number in range(len(requests.tokens)) if prompts.skip + number not in done]
    asked = [requests.tokens[number] for number in waiting]
    main = models_and_prompts.is_main_rank()
    if main:
        click.echo(decoder.memory(asked, new_tokens=new_tokens), err=True)
    else:
        results = SILENT
    steps = decoder.steps(asked, new_tokens=new_tokens, stop=stop)
    gathered, text, records = Gathered(), TextStream(requests.tokenizer), []
    with results.writer(meta) as write, _live(len(waiting), hidden=results.stream or not main) as show:
        for step in steps:
            if results.stream:
                print(text.put(step.committed[0], last=step.ended[0]), end="", flush=True)
            for place, generation in gathered.add(step):
                record = _record(requests, waiting[place], generation, stop) | {
                    "request": prompts.skip + waiting[place]
                }
                if audit:
                    record["audit"] = _audit(target, requests.tokens[waiting[place]], generation)
                write(record)
                records.append(record)
                text = TextStream(requests.tokenizer)
            show(gathered)
    if not main:
        return
    click.echo(
        f"{gathered.ended} requests, {gathered.committed} tokens in {gathered.steps} steps at batch {batch}"
        + (f": {_figures(gathered)} (means; prefill counted in tokens/s)" if gathered.steps else "")
        + (f"; graphs hold {decoder.graph_bytes / 2**20:.1f} MiB" if graphs else ""),
        err=True,
    )
    if results.as_json:
        general.print_json({"schema": SCHEMA, "meta": meta, "counts": _counts(gathered), "requests": records})
    if audit:
        _report([*earlier, *records], target)


def _meta(decoder: "Decoder", tokens: "Sequence[Sequence[int]]") -> dict[str, Any]:
    """Who decodes what, and where it comes from."""
    from executor.models.fingerprint import device_name, identity, tokens_hash

    shape = decoder.tree
    return {
        **identity(decoder.target, decoder.drafter),
        "tree": [list(path) for path in shape.paths] if isinstance(shape, Tree) else policy_identity(shape),
        "batch": decoder.batch,
        "prompts_sha256": tokens_hash(tokens),
        "device": device_name(decoder.target.device),
        "provenance": this_run(),
    }


def _record(
    requests: models_and_prompts.Requests, number: int, generation: "Generation", stop: "Sequence[int]"
) -> dict[str, Any]:
    """A finished request; `request` counts the prompts of the file from 0."""
    tokens = list(generation.tokens)
    return {
        "request": number,
        "domain": requests.prompts[number].domain,
        "prompt_tokens": len(requests.tokens[number]),
        "text": requests.tokenizer.decode(tokens, skip_special_tokens=True),
        "tokens": tokens,
        "accepted": list(generation.accepted),
        "end": "stop" if tokens[-1] in stop else "length",
    }


def _audit(target: "Target", prompt: "Sequence[int]", generation: "Generation") -> dict[str, Any]:
    from executor.decoding.greedy_audit import audit_text

    return asdict(audit_text(target, prompt, generation.tokens))


@contextmanager
def _live(requests: int, *, hidden: bool) -> "Iterator[Callable[[Gathered], None]]":
    """Figures on stderr while requests are decoded, unless it is no terminal."""
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


def _figures(gathered: "Gathered") -> str:
    """tau, tokens a second and milliseconds of a step, so far."""
    step_s = (gathered.draft_s + gathered.rest_s) / gathered.steps
    total_s = gathered.draft_s + gathered.rest_s + gathered.admit_s
    return f"tau {gathered.tau:.2f}, {gathered.committed / total_s:.1f} tokens/s, {step_s * 1e3:.1f} ms a step"


def _counts(gathered: "Gathered") -> dict[str, Any]:
    """Counts and sums, from which every mean can be made."""
    return {
        "requests": gathered.ended,
        "steps": gathered.steps,
        "committed": gathered.committed,
        "accepted": {str(kept): count for kept, count in sorted(gathered.histogram.items())},
        "draft_s": gathered.draft_s,
        "rest_s": gathered.rest_s,
        "admit_s": gathered.admit_s,
    }


def _report(records: list[dict[str, Any]], target: "Target") -> None:
    """Say what the audit found; a text that fails it ends the command with exit code 1."""
    from executor.decoding.greedy_audit import MARGIN, Audit

    total = Audit.total(Audit(**record["audit"]) for record in records)
    found = (
        f"audit: {total.differing} of {total.tokens} tokens are not the argmax of a plain forward, the worst "
        f"{total.worst:.1f} units in the last place below it; {total.unexcused} are beyond the margin of "
        f"{MARGIN[target.dtype]}"
    )
    if total.unexcused:
        wrong = next(record["request"] for record in records if record["audit"]["unexcused"])
        raise ExecutorError(f"{found}; first in request {wrong}")
    click.echo(found, err=True)
