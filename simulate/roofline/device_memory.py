"""Device memory: bytes that weights of target and drafter and a sequence's keys and values take."""

from simulate.roofline.roofline_model import Roofline


def weights_bytes(model: Roofline, *, heads: int = 1) -> float:
    """Return the minimum bytes of one device's memory that weights of target and drafter take.

    Not counted: a drafter's embedding, experts that a token of the drafter does not pick, norms, and an LM head of the
    size of the target's, which a sequential drafter is assumed to share. A head's blocks count as often as they are
    applied; for Hydra++'s single block this is more than is stored.

    Args:
        model: target, drafter and device.
        heads: heads of a drafter that has one per depth.
    """
    embeddings = (2 - model.target.tied) * model.target.vocab * model.target.hidden
    target = (model.target.parameters - embeddings) * model.weight_bytes + embeddings * model.kernels.head_bytes
    own_heads = model.drafter.parallel or bool(model.drafter.deeper)  # each head has an LM head of its own
    drafter = 0.0
    levels = heads if model.drafter.parallel else min(heads, 1 + len(model.drafter.deeper))
    for forward in [model.drafts.at(depth) for depth in range(levels)]:
        head = 0 if forward.head is None else forward.head[0] * forward.head[1]
        stored_head = head if own_heads or forward.head != model.forward.head else 0
        layers = forward.weights - forward.head_weights
        drafter += layers * model.draft_bytes + stored_head * model.draft_kernels.head_bytes
    opening = 0 if model.drafts.opening is None else model.drafts.opening.weights
    return target / model.devices + drafter + opening * model.draft_bytes


def sequence_bytes(model: Roofline, *, context: int | None = None) -> float:
    """Return the bytes of one device's memory that a sequence's keys and values take, target and drafter together."""
    layers = [model.forward, model.drafts.level, *([model.drafts.opening] if model.drafts.opening else [])]
    tokens = model.context if context is None else context
    return sum(forward.kv_elements for forward in layers) * model.kv_bytes * tokens
