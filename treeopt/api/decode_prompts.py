"""`treeopt.decode`: continue prompts with a target, a drafter and a tree, in treeopt's own loop."""

import json
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treeopt import defaults
from treeopt.api.file_loading import as_plan
from treeopt.api.messages import note, warn
from treeopt.api.run_models import (
    Models,
    Prompts,
    Requests,
    Sampling,
    load_prompts,
    load_target_and_drafter,
    quiet_libraries,
)
from treeopt.api.runners import graphs_used
from treeopt.comparison.mismatch_warnings import plan_model_warnings, plan_rule_warnings
from treeopt.errors import ExecutorError, PlanError, UsageError, counted
from treeopt.planning.search_warnings import position_warnings
from treeopt.plans import Plan
from treeopt.policies import DynamicTree, OptTree, Policy
from treeopt.policies.policy import setting_names
from treeopt.policies.policy_kinds import identity as policy_identity
from treeopt.results.kinds import Record
from treeopt.settings import Settings, group, setting, takes
from treeopt.storage.json_records import RecordError
from treeopt.storage.provenance import look
from treeopt.storage.typed_records import Integer, read_field
from treeopt.storage.work_file import appended, check_same_settings, read_lines
from treeopt.tree import EMPTY, Tree

if TYPE_CHECKING:
    from executor.decoding.decoder import Decoder
    from executor.decoding.request_queue import Gathered, Generation
    from executor.target.target_model import Target

SCHEMA = "treeopt.decode/1"


@dataclass(frozen=True, kw_only=True)
class DecodeSettings(Settings):
    """The settings of `decode`."""

    models: Models = group(Models)
    source: Prompts = group(Prompts)
    new_tokens: int = defaults.new_tokens()
    plan: Plan | Path | str | None = setting(None, help="Decode with the plan's configuration for the batch size.")
    tree: Tree | None = setting(
        None,
        help="A static tree: the length of a chain, rank paths as any engine spells them, FILE[:NAME] with these or a "
        "growmap, or the name of a published tree such as medusa/mc_sim_7b_63.",
    )
    dynamic: Policy | None = setting(
        None,
        help="A dynamic policy that extends paths where the drafter is confident: "
        f"nodes=60,depth=6 [,{'=,'.join(setting_names(DynamicTree)[2:])}=]; or one that adds a level while it gains "
        f"enough: nodes=60,depth=6,threshold=0.1 [,{'=,'.join(setting_names(OptTree)[3:])}=].",
    )
    batch: int | None = setting(None, least=1, help="Requests decoded together; default 1, or the plan's only size.")
    sampling: Sampling = group(Sampling)
    ignore_end: bool = setting(False, help="Continue to --new-tokens past tokens that end a text.")
    compiled: bool = setting(False, help="Compile the target's forward (torch.compile); slow to start.")
    graphs: str = defaults.graphs()
    audit: bool = setting(False, help="Check each greedy text against a plain forward; exit code 1 if it fails.")
    output: Path | None = setting(
        None, help="Write each request to this file when it ends (JSON lines, never a partial one)."
    )
    resume: bool = setting(False, help="Resume an interrupted --output; prints only the remaining requests.")

    def check(self) -> None:
        """Raise UsageError where settings do not go together."""
        sampled = self.sampling.temperature > 0
        if sum(shape is not None for shape in (self.plan, self.tree, self.dynamic)) > 1:
            raise UsageError("give one of --plan, --tree and --dynamic")
        if self.audit and sampled:
            raise UsageError("--audit compares texts with the greedy choice, so it needs --temperature 0")
        if self.resume and self.output is None:
            raise UsageError("--resume needs the --output to resume")
        if self.resume and sampled:
            raise UsageError(
                "--resume works only with greedy decoding: sampled texts that are short finish first, so keeping them "
                "would bias the result"
            )
        if self.output is not None and self.output.exists() and not self.resume:
            raise UsageError(f"--output {self.output} exists: give --resume to resume it, or another name")

    def shape(self) -> tuple[Tree | Policy, int, Plan | None]:
        """Return tree or policy, batch size and the plan they come from, if any; the empty tree decodes plainly.

        Raises:
            UsageError: the plan is for several batch sizes.
            PlanError: the plan has no such batch size, or its choice is a bound, which nothing can run.
        """
        plan = as_plan(self.plan)
        if plan is None:
            return self.tree or self.dynamic or EMPTY, self.batch or 1, None
        if self.batch is None and len(plan.entries) > 1:
            sizes = ", ".join(str(entry.batch) for entry in plan.entries)
            name = f"{self.plan}: is" if isinstance(self.plan, Path | str) else "the plan is"
            raise UsageError(f"{name} for batch {sizes}: choose one with --batch")
        entry = plan.entry(self.batch)
        grown = entry.choice.grown
        if grown is not None and grown.policy is None:
            raise PlanError(f"the plan's choice {grown.kind} is a bound, not a policy that can run")
        return (grown and grown.policy) or entry.choice.tree or EMPTY, entry.batch, plan


class Watcher:
    """The caller's view of a run; this one looks away."""

    streams = False  # whether the caller wants each text in pieces, which needs batch 1

    def running(self, requests: int) -> AbstractContextManager[None]:
        """Return a context around the decoding of this many requests."""
        return nullcontext()

    def step(self, gathered: "Gathered") -> None:
        """Take the figures so far, after each step."""

    def piece(self, text: str) -> None:
        """Take a piece of a text."""

    def ended(self, record: dict[str, Any]) -> None:
        """Take the record of a finished request."""


@takes(DecodeSettings, "target")
def decode(*, settings: DecodeSettings, watcher: Watcher | None = None) -> Record:
    """Continue prompts with a target and, given a plan or a tree, a drafter.

    Args:
        watcher: is called while requests are decoded.

    Returns:
        The record that `treeopt decode --json` prints: `requests` with `text`, `tokens` and accepted lengths, `counts`
        and `meta`.

    Raises:
        UsageError: settings that do not go together.
        ExecutorError: models that cannot be loaded, or a text that fails the audit.

    Examples:
        >>> import treeopt
        >>> models = {"target": "data/models/stdlib-llama", "drafter": "data/models/stdlib-medusa"}
        >>> record = treeopt.decode(**models, texts=["def read(path):"], tree=treeopt.Tree.chain(2), new_tokens=8)
        >>> len(record["requests"][0]["tokens"]), sum(record["counts"]["accepted"].values())
        (8, 7)
    """
    shape, batch, plan = settings.shape()
    if watcher is not None and watcher.streams and batch > 1:
        raise UsageError(f"--stream needs batch 1, got batch {batch}")
    if shape.nodes and settings.models.drafter is None:
        raise UsageError("a tree needs --drafter; without a drafter omit --plan, --tree and --dynamic")
    before, earlier = _begun(settings.output if settings.resume else None)
    target, drafter = load_target_and_drafter(settings.models, shape)
    if settings.compiled:
        target.compile()
    requests = load_prompts(settings.models, target, settings.source)
    from executor.decoding.decoder import Decoder
    from executor.models import compute_as_recorded
    from executor.target.tensor_parallel import is_main_rank
    from executor.verification.acceptance_rules import rule_meta

    if before is not None:
        compute_as_recorded(target, drafter, before.get("provenance"))
    rule = settings.sampling.rule_for(target)
    graphs = graphs_used(settings.graphs, target, drafter, shape)
    decoder = Decoder(target, drafter, tree=shape, batch=batch, rule=rule, graphs=graphs)
    stop = [] if settings.ignore_end else requests.stop
    meta = _meta(decoder, requests.tokens, settings, stop)
    longest = [len(prompt) + settings.new_tokens for prompt in requests.tokens]
    warn(position_warnings(look(meta, "drafter", "positions"), longest, "may pass"))
    if plan is not None:
        warn([*plan_model_warnings(plan, meta, graphs=graphs), *plan_rule_warnings(plan, rule_meta(rule))])
    if before is not None and settings.output is not None:
        both = (before, json.loads(json.dumps(meta)))
        check_same_settings(
            settings.output, *({key: of[key] for key in sorted(of.keys() - {"provenance", "device"})} for of in both)
        )
    main = is_main_rank()
    run = _Run(decoder, requests, settings, stop, (watcher or Watcher()) if main else Watcher())
    gathered, records = run.decode({record["request"] for record in earlier}, meta, write=main)
    if main:
        note([_summary(gathered, decoder)])
        if settings.audit:
            _audit([*earlier, *records], target)
    return Record({"schema": SCHEMA, "meta": meta, "counts": _counts(gathered), "requests": records})


def _begun(output: Path | None) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """Return meta and records of an interrupted output; None and no records without one.

    Raises:
        UsageError: the file is not such an output.
    """
    if output is None:
        return None, []
    quiet_libraries()
    from executor.decoding.self_test import Audit

    try:
        lines = read_lines(output, SCHEMA)
        if lines is None:
            return None, []
        meta, records = read_field(lines[0], "meta", dict[str, Any], "line 1"), lines[1]
        for number, record in enumerate(records, 2):
            read_field(record, "request", Integer, f"line {number}")
            if meta.get("audit"):
                read_field(record, "audit", Audit, f"line {number}")
    except RecordError as error:
        raise UsageError(f"--resume {output}: {error}") from error
    return meta, records


@dataclass(frozen=True, eq=False)
class _Run:
    """A decoder with its requests."""

    decoder: "Decoder"
    requests: Requests
    settings: DecodeSettings
    stop: list[int]
    watcher: Watcher

    def decode(self, done: set[int], meta: dict[str, Any], *, write: bool) -> "tuple[Gathered, list[dict[str, Any]]]":
        """Decode the requests that are not done, write them to the output, and return counts and records."""
        from executor.decoding.request_queue import Gathered
        from executor.target.tokenizer import TextStream

        tokens, skip, new_tokens = self.requests.tokens, self.settings.source.skip, self.settings.new_tokens
        waiting = [number for number in range(len(tokens)) if skip + number not in done]
        prompts = [tokens[number] for number in waiting]
        if write:
            note([self.decoder.memory(prompts, new_tokens=new_tokens)])
        gathered, text, records = Gathered(), TextStream(self.requests.tokenizer), []
        steps = self.decoder.steps(prompts, new_tokens=new_tokens, stop=self.stop)
        output = self.settings.output if write else None
        head = {"schema": SCHEMA, "meta": meta}
        writer = nullcontext(lambda record: None) if output is None else appended(output, head)
        with writer as put, self.watcher.running(len(waiting)):
            for step in steps:
                if self.watcher.streams:
                    self.watcher.piece(text.put(step.committed[0], last=step.ended[0]))
                for place, generation in gathered.add(step):
                    record = self._record(waiting[place], generation)
                    put(record)
                    self.watcher.ended(record)
                    records.append(record)
                    text = TextStream(self.requests.tokenizer)
                self.watcher.step(gathered)
        return gathered, records

    def _record(self, number: int, generation: "Generation") -> dict[str, Any]:
        """Return a finished request; `request` counts the prompts of the file from 0."""
        tokens = list(generation.tokens)
        prompt = self.requests.tokens[number]
        record = {
            "request": self.settings.source.skip + number,
            "domain": self.requests.prompts[number].domain,
            "prompt_tokens": len(prompt),
            "text": self.requests.tokenizer.decode(tokens, skip_special_tokens=True),
            "tokens": tokens,
            "accepted": list(generation.accepted),
            "end": "stop" if tokens[-1] in self.stop else "length",
        }
        if self.settings.audit:
            from executor.decoding.self_test import audit_text

            record["audit"] = asdict(audit_text(self.decoder.target, prompt, generation.tokens))
        return record


def _meta(
    decoder: "Decoder", tokens: Sequence[Sequence[int]], settings: DecodeSettings, stop: Collection[int]
) -> dict[str, Any]:
    """Return identity of models, tree, batch, prompts, device and provenance, and the settings that texts depend on."""
    from executor.models import device_name, identity, run_provenance, tokens_hash

    shape = decoder.tree
    return {
        **identity(decoder.target, decoder.drafter),
        "tree": [list(path) for path in shape.paths] if isinstance(shape, Tree) else policy_identity(shape),
        "batch": decoder.batch,
        "prompts_sha256": tokens_hash(tokens),
        "device": device_name(decoder.target.device),
        "provenance": run_provenance(decoder.target, decoder.drafter),
        **asdict(settings.sampling),
        "rule": settings.sampling.name,
        "skip": settings.source.skip,
        "new_tokens": settings.new_tokens,
        "stop": list(stop),
        "audit": settings.audit,
    }


def _summary(gathered: "Gathered", decoder: "Decoder") -> str:
    """Return counts, and means over all steps."""
    means = f": {figures(gathered)} (means; prefill counted in tokens/s)" if gathered.steps else ""
    held = f"; graphs hold {decoder.graph_bytes / 2**20:.1f} MiB, captured in {decoder.capture_s:.1f} s, counted too"
    tokens, steps = counted(gathered.committed, "token"), counted(gathered.steps, "step")
    counts = f"{counted(gathered.ended, 'request')}, {tokens} in {steps}"
    return f"{counts} at batch {decoder.batch}{means}{held if decoder.graphs else ''}"


def figures(gathered: "Gathered") -> str:
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


def _audit(records: list[dict[str, Any]], target: "Target") -> None:
    """Note the result of the audit.

    Raises:
        ExecutorError: a text fails it.
    """
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
    note([result])
