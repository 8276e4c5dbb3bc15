"""Device memory: what weights, caches and states of target and drafter take, and the batch that there is room for.

Counts bytes as stored. Not counted: activations, vision parts, padding of pages and states, prefixes and checkpoints
that an engine keeps for later, a drafter's embedding, experts that a token of the drafter does not pick, norms.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simulate.drafter_kinds import DrafterShape
from simulate.model_sizes.forward_pass import Forward
from simulate.model_sizes.model_shape import Shape
from treeopt.errors import CostError
from treeopt.storage.typed_records import read_record

SHARE = 0.92  # gpu_memory_utilization, the default of vLLM 0.32 (vllm/config/cache.py)
HEAD_BYTES = 2  # quantised models (AWQ, GPTQ) keep their LM heads in bf16


@dataclass(frozen=True)
class DeviceMemory:
    """The bytes of one device's memory at a context.

    Attributes:
        weights: of the target.
        drafter: of the drafter's weights.
        sequence: of a sequence's keys, values and states in the target.
        drafted: of a sequence's keys and values in the drafter.
        snapshot: of the states that verification keeps for each drafted token (vLLM's `MambaSpec`; TreeWY, arXiv
            2608.20961).
        total: of the device; None where it is not known.
        share: share of `total` that the engine takes.
        groups: groups of devices, each with sequences of its own.

    >>> memory = DeviceMemory(weights=50, drafter=8, sequence=2, drafted=1, snapshot=1, total=100)
    >>> memory.batch(), memory.batch(3)
    (21, 5)
    """

    weights: float
    drafter: float
    sequence: float
    drafted: float
    snapshot: float
    total: float | None = None
    share: float = SHARE
    groups: int = 1

    @classmethod
    def of(
        cls,
        target: Shape,
        drafter: DrafterShape,
        *,
        context: int,
        heads: int = 1,
        devices: int = 1,
        tensor: int = 0,
        weight_bytes: float = 2.0,
        draft_bytes: float = 2.0,
        kv_bytes: float = 2.0,
        total: float | None = None,
        share: float = SHARE,
    ) -> "DeviceMemory":
        """Return the memory of models on each device; devices, `heads` and sizes of numbers are as of `Roofline`.

        A sequential drafter is assumed to share an LM head of the size of the target's. A head's blocks count as often
        as they are applied; for Hydra++'s single block this is more than is stored.

        Raises:
            CostError: the devices cannot share the heads.
        """
        forward, drafts = Forward.of(target).shared(devices, tensor), drafter.shared(devices, tensor)
        rows, ends = target.vocab * target.hidden, max(weight_bytes, HEAD_BYTES)
        head = rows * (ends if target.head_bytes is None else target.head_bytes)
        embedding = rows * (ends if target.embedding_bytes is None else target.embedding_bytes)
        dense = target.weight_bytes(weight_bytes, experts=0)
        experts = target.weight_bytes(weight_bytes) - dense
        weights = (dense + head + (0 if target.tied else embedding)) * forward.groups + experts
        heads = heads if drafts.parallel and not drafts.slots else min(heads, 1 + len(drafts.deeper))
        several = drafts.parallel and not drafts.shared_head
        own_heads = not drafts.slots and (several or bool(drafts.deeper))  # each has an LM head of its own
        opening = drafts.opening or Forward(())
        first = replace(opening, matrices=()) if drafts.slots else opening  # a block's keys have the level's matrices
        drafter_bytes = first.stored_bytes(draft_bytes)
        for depth in range(heads):
            level = drafts.at(depth)
            size = 0 if level.head is None else level.head[0] * level.head[1]
            stored_head = size if own_heads or level.head != forward.head else 0
            drafter_bytes += level.stored_bytes(draft_bytes) + stored_head * max(draft_bytes, HEAD_BYTES)
        return cls(
            weights / devices,
            drafter_bytes,
            forward.kept_elements(context) * kv_bytes + forward.state_bytes,
            sum(each.kept_elements(context) * kv_bytes + each.state_bytes for each in (drafts.level, opening)),
            forward.state_bytes,
            total,
            share,
            forward.groups,
        )

    @classmethod
    def at(cls, records: Mapping[str, Any], context: int) -> "DeviceMemory | None":
        """Return the memory at a context, between the records of contexts that a profile has; None outside them.

        Raises:
            CostError: the records are none.

        >>> one, two = ({"weights": 5, "drafter": 1, "sequence": size, "drafted": 0, "snapshot": 0} for size in (2, 4))
        >>> DeviceMemory.at({"100": one, "200": two}, 150).sequence
        3.0
        """
        try:
            known = {int(tokens): read_record(record, cls) for tokens, record in records.items()}
        except (ValueError, TypeError, AttributeError) as error:
            raise CostError(f"the profile's memory cannot be read: {error}") from error
        contexts = sorted(known)
        if not contexts or not contexts[0] <= context <= contexts[-1]:
            return None
        sequence = float(np.interp(context, contexts, [known[c].sequence for c in contexts]))
        drafted = float(np.interp(context, contexts, [known[c].drafted for c in contexts]))
        return replace(known[contexts[0]], sequence=sequence, drafted=drafted)

    def batch(self, nodes: int = 0) -> int | None:
        """Return the largest batch that all devices hold; `nodes` are verified per sequence, with 0 without drafter."""
        if self.total is None:
            return None
        room = self.share * self.total - self.weights - (self.drafter if nodes else 0)
        sequence = self.sequence + (self.drafted + nodes * self.snapshot if nodes else 0)
        return self.groups * max(0, int(room // max(sequence, 1)))
