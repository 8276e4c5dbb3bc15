"""treeopt's own loop as a runner: exact trees, imposed acceptance, CUDA graphs, and the times of single steps."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch

from executor.decoding.decoder import Decoder
from executor.decoding.request_queue import Step
from executor.device import no_collection
from executor.drafters.base.drafter import Drafter
from executor.models import device_name, identity, run_provenance
from executor.runners.runner import Requests, RequestSteps, Run, Runner, Shape
from executor.target.packed_linears import quantization_of
from executor.target.target_model import Target
from executor.target.tensor_parallel import processes
from executor.verification.acceptance_rules import Greedy, Rule, rule_meta
from executor.verification.replayed_acceptance import Imposed
from simulate.device_memory import DeviceMemory
from simulate.drafter_kinds import known_kind
from simulate.model_sizes.model_shape import Shape as ModelShape
from treeopt.errors import CostError
from treeopt.registry import load
from treeopt.tree import Tree

WARM_UP = 3  # steps before any is measured: libraries allocate, processors wake


class LoopRunner(Runner):
    """The loop with its models and its rule of verification; see `Runner`."""

    single_steps = True
    least_batches = 2
    target: Target
    timing = "executor.profiling.timed_blocks:LoopBlocks"

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        *,
        rule: Rule | None = None,
        graphs: bool = False,
        models: Mapping[str, Any] | None = None,
    ) -> None:
        """Keep models and settings.

        Args:
            target: the verifying model.
            drafter: what proposes; None: plain decoding alone.
            rule: of verification, for plain decoding too; None: greedy.
            graphs: replay steps from CUDA graphs.
            models: result of `identity` for these models, if it is known: it reads all their weights.
        """
        self.target, self.drafter, self.graphs = target, drafter, graphs
        self.rule: Rule = Greedy() if rule is None else rule
        self.late, self.processes = Decoder(target).late, processes()
        self._models = models
        self._seed: int | None = None  # of the rule's generator

    @cached_property
    def record(self) -> dict[str, Any]:
        """Models, device and rule."""
        models = identity(self.target, self.drafter) if self._models is None else self._models
        return {**models, "device": device_name(self.target.device), **rule_meta(self.rule), "graphs": self.graphs}

    @property
    def provenance(self) -> dict[str, Any]:
        """Software and machine, with what computed."""
        return run_provenance(self.target, self.drafter)

    @property
    def weights_read(self) -> tuple[int, int] | None:
        """Weights read by a drafter forward and by a plain step of the target; None where they are not known."""
        return None if self.drafter is None else weights_read(self.target, self.drafter)

    def memory(self, context: int) -> DeviceMemory | None:
        """See `Runner.memory`; the share that vLLM takes by default is counted."""
        if self.processes > 1:
            return None
        models: list[Any] = [self.target.model, self.drafter]
        target, drafter = (sum(value.nbytes for value in each.state_dict().values()) if each else 0 for each in models)
        sequence = self.target.cache_bytes(1, context)
        drafted = self.drafter.cache_bytes(1, context) if self.drafter else 0
        device = self.target.device  # a processor has no memory of its own
        total = torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else None
        return DeviceMemory(target, drafter, sequence, drafted, 0, total)

    def decoder(self, shape: Shape, batch: int, requests: Requests) -> Decoder:
        """Return the loop that decodes these requests; raise ExecutorError if drafter or rule cannot do this."""
        rule = self.rule
        if requests.replayed is not None and isinstance(shape, Tree):
            rule = Imposed(requests.replayed, shape, rule=rule)
        drafter = self.drafter if shape.nodes else None
        return Decoder(self.target, drafter, tree=shape, batch=batch, rule=rule, graphs=self.graphs)

    def check(self, shape: Shape, batch: int, requests: Requests) -> None:
        """Check that this can be drafted and that the requests fit the model's context and memory."""
        self.decoder(shape, batch, requests).memory(requests.prompts, new_tokens=requests.limits)

    def begin(self, number: int) -> None:
        """Seed the rule's generator for a part of a measurement, from its own seed and the part's number."""
        generator: torch.Generator | None = getattr(self.rule, "generator", None)
        if generator is not None:
            own = self._seed = generator.initial_seed() if self._seed is None else self._seed
            generator.manual_seed(int(np.random.SeedSequence([own, number]).generate_state(1, "u8")[0] >> 1))

    def warm_up(self, shape: Shape, batch: int, requests: Requests) -> None:
        """Take a few steps."""
        steps = self.decoder(shape, batch, requests).steps(
            requests.prompts, new_tokens=requests.limits, stop=requests.stop
        )
        for _ in zip(range(WARM_UP), steps, strict=False):
            pass

    def run(self, shape: Shape, batch: int, requests: Requests) -> Run:
        """Decode the requests to their end; steps with idle rows count, and are not timed."""
        decoder = self.decoder(shape, batch, requests)
        with no_collection():
            steps = list(decoder.steps(requests.prompts, new_tokens=requests.limits, stop=requests.stop))
        wall_s = sum(step.draft_s + step.rest_s + step.admit_s for step in steps)
        return run_of(steps, context=requests.context, wall_s=wall_s, first=requests.first)


def run_of(steps: Sequence[Step], *, context: float, wall_s: float, first: int = 0) -> Run:
    """Return the run that steps of the loop make; `first` is the number of the first request."""
    committed, drafted = dict[int, list[int]](), dict[int, list[int]]()
    for step in steps:
        for request, tokens, nodes in zip(step.requests, step.committed, step.drafted, strict=True):
            if request >= 0:
                committed.setdefault(first + request, []).append(len(tokens))
                drafted.setdefault(first + request, []).append(nodes)
    full = [step for step in steps if step.full]
    return Run(
        draft_s=tuple(step.draft_s for step in full),
        rest_s=tuple(step.rest_s for step in full),
        requests=tuple(RequestSteps(number, tuple(committed[number]), tuple(drafted[number])) for number in committed),
        context=context,
        wall_s=wall_s,
        timed=len(full),
        drafted=sum(sum(step.drafted) for step in full),
    )


def weights_read(target: Target, drafter: Drafter) -> tuple[int, int] | None:
    """Return the weights that one forward of the drafter and a plain step of the target read (CORAL, Table 1).

    LM heads are counted, embeddings are not.

    Return None for models that `hf_config` does not cover, for quantised ones, and for drafters whose kind does not
    tell them (`DrafterKind.reads`).
    """
    kind = known_kind(drafter.kind)
    if kind is None or not kind.reads or quantization_of(target.model) is not None:
        return None
    try:
        shape = ModelShape.from_config(target.model.config.to_dict())
        if shape.notes:  # of a family that is not known
            return None
        weights: int | None = load(kind.reads)(drafter, shape)
    except CostError:
        return None
    return None if weights is None else (weights, shape.step_parameters)
