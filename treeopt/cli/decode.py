"""`treeopt decode`: run a plan, or a tree, on prompts."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from treeopt.cli import options
from treeopt.errors import ExecutorError, PlanError, TreeError, UsageError
from treeopt.plan import load_plan
from treeopt.policy import DynamicTree
from treeopt.provenance import this_run
from treeopt.records import RecordError, get, parse
from treeopt.tree import Tree

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from executor.acceptance import Rule
    from executor.decode import Decoder, Gathered, Generation
    from executor.prompts import Prompt
    from executor.target import Target

SCHEMA = "treeopt.decode/1"
PLAIN = Tree((), ())
# As executor.acceptance has them, which would load torch.
RULES = ("greedy", "sample-and-match", "point-mass", "leviathan", "block", "specinfer", "sequoia", "typical")


class Shape(click.ParamType[Tree]):
    """A static tree: the length of a chain, or rank paths as JSON."""

    name = "tree"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Tree:
        """`5`, or `[[0,0],[1]]`."""
        if isinstance(value, Tree):
            return value
        try:
            found = json.loads(value)
            return Tree.chain(found) if type(found) is int else Tree.from_paths(found)
        except (ValueError, TypeError, TreeError) as error:
            self.fail(f"{value!r} is neither the length of a chain nor rank paths such as [[0,0],[1]]: {error}")


class Dynamic(click.ParamType[DynamicTree]):
    """Settings of a dynamic tree."""

    name = "settings"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> DynamicTree:
        """`nodes=60,depth=6,beam=10`."""
        if isinstance(value, DynamicTree):
            return value
        try:
            words = dict(part.split("=") for part in value.split(","))
            numbers = {k: float(v) if k == "min_probability" else int(v) for k, v in words.items()}
            return DynamicTree(**numbers)  # type: ignore[arg-type]
        except (ValueError, TypeError, TreeError) as error:
            self.fail(f"{value!r} is not a list of settings such as nodes=60,depth=6,beam=10: {error}")


@click.command()
@options.models_without_drafter
@options.prompts_options
@click.option("--plan", "plan_file", type=options.FILE, help="Decode as this plan says for the batch size.")
@click.option("--tree", type=Shape(), help="A static tree: the length of a chain, or rank paths as JSON.")
@click.option(
    "--dynamic", type=Dynamic(), help="Dynamic trees: nodes=60,depth=6,beam=10 [,width=,min_probability=,...]."
)
@click.option(
    "--batch", type=click.IntRange(min=1), help="Requests decoded together; default 1, or the plan's only one."
)
@click.option("--rule", type=click.Choice(RULES), help="Verification; default greedy, or sample-and-match.")
@click.option("--temperature", type=click.FloatRange(min=0), default=0.0, show_default=True, help="0: greedy.")
@click.option("--top-k", type=click.IntRange(min=1), help="Sample from so many tokens.")
@click.option(
    "--top-p", type=click.FloatRange(0, 1, min_open=True), default=1.0, show_default=True, help="... so much mass."
)
@click.option("--ignore-end", is_flag=True, help="Go on to --new-tokens past tokens that end a text.")
@click.option("--compiled", is_flag=True, help="Compile the target's forward (torch.compile); slow to start.")
@click.option("--stream", is_flag=True, help="Print text as it is decoded; batch 1.")
@click.option("--audit", is_flag=True, help="Check each greedy text against a plain forward; exit code 1 if it fails.")
@click.option("--output", type=options.FILE, help="Write requests here as they end (JSON lines, whole ones always).")
@click.option("--resume", is_flag=True, help="Go on with an --output that was interrupted.")
@click.option("--json-lines", is_flag=True, help="Print requests as JSON lines on stdout instead of text.")
@options.seed
@options.as_json
def decode(
    models: options.Models,
    prompts_file: Path,
    requests: int | None,
    skip: int,
    new_tokens: int,
    plan_file: Path | None,
    tree: Tree | None,
    dynamic: DynamicTree | None,
    batch: int | None,
    rule: str | None,
    temperature: float,
    top_k: int | None,
    top_p: float,
    ignore_end: bool,
    compiled: bool,
    stream: bool,
    audit: bool,
    output: Path | None,
    resume: bool,
    json_lines: bool,
    seed: int,
    as_json: bool,
) -> None:
    """Continue prompts with a target and, given a plan or a tree, a drafter.

    Text goes to stdout in the order in which requests end; figures go to stderr.
    """
    options.check_output(output)
    _check(stream, as_json, json_lines, resume, output, audit, temperature, top_k, top_p)
    shape, batch = _shape(plan_file, tree, dynamic, batch)
    if stream and batch > 1:
        raise UsageError(f"--stream is for batch 1, got batch {batch}")
    if shape.nodes and models.drafter is None:
        raise UsageError("a tree needs --drafter; without one leave out --plan, --tree and --dynamic")
    target, drafter = options.load_target_and_drafter(models)
    if compiled:
        target.compile()
    prompts, tokens, stop = options.load_prompts(models, target, prompts_file, requests=requests, skip=skip)
    from executor.decode import Decoder, Gathered

    verification = _rule(rule, temperature, top_k, top_p, seed, target)
    decoder = Decoder(target, drafter, tree=shape, batch=batch, rule=verification)
    meta = _meta(decoder, seed, new_tokens, temperature=temperature, top_k=top_k, top_p=top_p)
    done = _done(output, resume, meta)
    waiting = [number for number in range(len(tokens)) if skip + number not in done]
    writer = _Writer(models, target, prompts, tokens, [] if ignore_end else stop, audit=audit, first=skip)
    gathered, records, main = Gathered(), [], options.is_main_rank()
    asked = [tokens[number] for number in waiting]
    if main:
        click.echo(decoder.memory(asked, new_tokens=new_tokens), err=True)
    with ExitStack() as stack:
        file = stack.enter_context(_lines(output, meta, keep=resume and output.exists())) if output and main else None
        show = stack.enter_context(_live(len(waiting), hidden=stream or not main))
        printed = writer.streamer() if stream and main else None
        for step in decoder.steps(asked, new_tokens=new_tokens, stop=writer.stop):
            if printed is not None:
                printed(step.committed[0], step.ended[0])
            for place, generation in gathered.add(step):
                records.append(writer.record(waiting[place], generation))
                _put(file, records[-1])
                if main and not (stream or as_json):
                    click.echo(json.dumps(records[-1], ensure_ascii=False) if json_lines else records[-1]["text"])
            show(gathered)
    if not main:
        return
    click.echo(_summary(gathered, batch), err=True)
    if as_json:
        options.print_json({"schema": SCHEMA, "meta": meta, "counts": _counts(gathered), "requests": records})
    if audit:
        _report(records, target)


def _check(
    stream: bool,
    as_json: bool,
    json_lines: bool,
    resume: bool,
    output: Path | None,
    audit: bool,
    temperature: float,
    top_k: int | None,
    top_p: float,
) -> None:
    if stream + as_json + json_lines > 1:
        raise UsageError("--stream, --json and --json-lines each want stdout: give one of them")
    if resume and output is None:
        raise UsageError("--resume needs the --output to go on with")
    if output is not None and output.exists() and not resume:
        raise UsageError(f"--output {output} is there already: give --resume to go on with it, or another name")
    if audit and temperature > 0:
        raise UsageError("--audit compares with the greedy choice: it has no meaning at a temperature above 0")
    if temperature == 0 and (top_k is not None or top_p < 1):
        raise UsageError("--top-k and --top-p are for sampling: give --temperature")


def _shape(
    plan_file: Path | None, tree: Tree | None, dynamic: DynamicTree | None, batch: int | None
) -> tuple[Tree | DynamicTree, int]:
    """What to draft, and for how many requests."""
    given = [shape for shape in (tree, dynamic) if shape is not None]
    if len(given) + (plan_file is not None) > 1:
        raise UsageError("give one of --plan, --tree and --dynamic")
    if plan_file is None:
        return (given[0] if given else PLAIN), batch or 1
    plan = load_plan(plan_file)
    sizes = [entry.batch for entry in plan.entries]
    if batch is None and len(sizes) > 1:
        raise UsageError(f"the plan is for batch {', '.join(map(str, sizes))}: say which with --batch")
    entry = next((entry for entry in plan.entries if batch in (None, entry.batch)), None)
    if entry is None:
        raise PlanError(f"{plan_file}: the plan is for batch {', '.join(map(str, sizes))}, not {batch}")
    return entry.choice.tree or PLAIN, entry.batch


def _rule(name: str | None, temperature: float, top_k: int | None, top_p: float, seed: int, target: "Target") -> "Rule":
    from executor.acceptance import make_rule
    from executor.sampling import Warp, seeded

    if temperature == 0:
        return make_rule(name or "greedy")
    warp = Warp(temperature, top_k, top_p)
    return make_rule(name or "sample-and-match", warp=warp, generator=seeded(target.device, seed))


class _Writer:
    """Turns what requests emitted into records and text."""

    def __init__(
        self,
        models: options.Models,
        target: "Target",
        prompts: "Sequence[Prompt]",
        tokens: "Sequence[Sequence[int]]",
        stop: "Sequence[int]",
        *,
        audit: bool,
        first: int,
    ) -> None:
        from executor.loading import load_tokenizer

        self.tokenizer = load_tokenizer(models.target, vocabulary=target.vocabulary)
        self.target, self.prompts, self.tokens, self.stop = target, prompts, tokens, stop
        self.audit, self.first = audit, first

    def record(self, place: int, generation: "Generation") -> dict[str, Any]:
        """A finished request; `request` counts prompts of the file from 0."""
        record: dict[str, Any] = {
            "request": self.first + place,
            "domain": self.prompts[place].domain,
            "prompt_tokens": len(self.tokens[place]),
            "text": self.tokenizer.decode(list(generation.tokens), skip_special_tokens=True),
            "tokens": list(generation.tokens),
            "accepted": list(generation.accepted),
            "end": "stop" if generation.tokens[-1] in self.stop else "length",
        }
        if self.audit:
            from executor.audit import audit_text

            record["audit"] = asdict(audit_text(self.target, self.tokens[place], generation.tokens))
        return record

    def streamer(self) -> "Callable[[Sequence[int], bool], None]":
        """Prints tokens of one request as they come, and a line end after its last."""
        from executor.loading import text_streamer

        put, end = text_streamer(self.tokenizer)

        def stream(tokens: "Sequence[int]", ended: bool) -> None:
            put(tokens)
            if ended:
                end()

        return stream


def _done(output: Path | None, resume: bool, meta: dict[str, Any]) -> set[int]:
    """Requests that an interrupted output holds already.

    Raises:
        UsageError: the output was written by another command.
    """
    if output is None or not resume or not output.exists():
        return set()
    try:
        lines = output.read_text("utf-8").split("\n")
        head = get(parse(lines[0], SCHEMA), "meta", dict, "line 1")
        found = {get(json.loads(line), "request", int, f"line {n}") for n, line in enumerate(lines[1:-1], 2)}
    except (RecordError, ValueError, OSError) as error:
        raise UsageError(f"--resume {output}: {error}") from error
    mine = {key: value for key, value in meta.items() if key != "provenance"}
    theirs = {key: value for key, value in head.items() if key != "provenance"}
    for key in mine.keys() | theirs.keys():
        if mine.get(key) != theirs.get(key):
            raise UsageError(f"--resume {output}: it was written with {key} {theirs.get(key)}, not {mine.get(key)}")
    return found


@contextmanager
def _lines(output: Path, meta: dict[str, Any], *, keep: bool) -> Iterator[IO[str]]:
    """The output, open at the end of its last whole line, its first line saying where it comes from."""
    if keep:
        whole = output.read_bytes()
        with output.open("r+b") as file:
            file.truncate(whole.rfind(b"\n") + 1)
    with output.open("a" if keep else "w", encoding="utf-8") as file:
        if not keep:
            _put(file, {"schema": SCHEMA, "meta": meta})
        yield file


def _put(file: IO[str] | None, record: dict[str, Any]) -> None:
    """A whole line, handed to the system at once."""
    if file is not None:
        file.write(json.dumps(record, ensure_ascii=False) + "\n")
        file.flush()


@contextmanager
def _live(requests: int, *, hidden: bool) -> "Iterator[Callable[[Gathered], None]]":
    """Figures on stderr while requests are decoded."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, disable=hidden or not console.is_terminal) as bar:
        task = bar.add_task("", total=requests)

        def show(gathered: "Gathered") -> None:
            bar.update(task, completed=gathered.ended, description=_figures(gathered))

        yield show


def _figures(gathered: "Gathered") -> str:
    """tau, tokens a second and milliseconds of a step, so far."""
    if not gathered.steps:
        return "nothing decoded"
    step_s = (gathered.draft_s + gathered.rest_s) / gathered.steps
    total_s = gathered.draft_s + gathered.rest_s + gathered.admit_s
    return f"tau {gathered.tau:.2f}, {gathered.committed / total_s:.1f} tokens/s, {step_s * 1e3:.1f} ms a step"


def _summary(gathered: "Gathered", batch: int) -> str:
    return (
        f"{gathered.ended} requests, {gathered.committed} tokens in {gathered.steps} steps at batch {batch}: "
        f"{_figures(gathered)} (mean; prefill counted in tokens/s)"
    )


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
    from executor.audit import MARGIN, Audit

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


def _meta(decoder: "Decoder", seed: int, new_tokens: int, **sampling: Any) -> dict[str, Any]:
    """Everything that the texts depend on, and where they come from."""
    from executor.fingerprint import device_name, identity

    shape = decoder.tree
    return {
        **identity(decoder.target, decoder.drafter),
        "tree": [list(path) for path in shape.paths] if isinstance(shape, Tree) else asdict(shape),
        "batch": decoder.batch,
        "rule": type(decoder.rule).__name__,
        "lossless": decoder.rule.lossless,
        **sampling,
        "seed": seed,
        "new_tokens": new_tokens,
        "device": device_name(decoder.target.device),
        "provenance": this_run(),
    }
