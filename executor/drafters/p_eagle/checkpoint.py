"""Read and write P-EAGLE checkpoints: EAGLE-3's tensors and `mask_hidden`, (1, 1, taps x width)."""

from dataclasses import replace
from functools import partial

from executor.checkpoints.tensors.lazy_tensors import Stored
from executor.checkpoints.tensors.write_tensors import Written
from executor.drafters.dflash.checkpoint import mask_of
from executor.drafters.eagle3.read_checkpoint import read_eagle3
from executor.drafters.eagle3.write_layouts import eagle3_content
from executor.drafters.p_eagle import SLOTS
from executor.drafters.p_eagle.drafter import PEagle
from executor.target.target_model import Target
from treeopt.errors import ExecutorError


def read_peagle(stored: Stored, target: Target) -> PEagle:
    """Read P-EAGLE in any of the layouts.

    Raises:
        ExecutorError: no mask token, or see `read_eagle3`.
    """
    slots = stored.facts.get("slots", SLOTS)
    if type(slots) is not int or slots < 1:
        raise ExecutorError(f"{stored.where}: slots must be 1 or more, found {slots!r:.40}")
    return read_eagle3(stored, target, partial(PEagle, mask=mask_of(stored, target), slots=slots))


def peagle_content(drafter: PEagle, layout: str | None, target: Target | None, name: str) -> Written:
    """Return the file contents, EAGLE-3's for vLLM or speculators with the mask; see `eagle3_content`."""
    written = eagle3_content(drafter, "eagle3-vllm" if layout is None else "speculators-eagle3", target, name)
    config = {**written.config, "mask_token_id": drafter.mask}
    if layout is None:
        config |= {"pard_token": drafter.mask, "parallel_drafting": True}
    else:
        config |= {"speculators_model_type": "peagle", "architectures": ["PEagleSpeculator"]}
    return replace(written, config=config, facts=written.facts | {"slots": drafter.max_depth})
