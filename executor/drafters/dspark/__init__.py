"""DSpark: DFlash's network and files (`executor.drafters.dflash`) with a Markov head and a confidence head."""

from dataclasses import replace

from executor.drafters.dflash import DFLASH, recognise
from executor.drafters.dflash import ENTRY as BLOCK
from simulate.drafter_kinds import Files, Training

# Slot 0 scores too, and rank 256 (arXiv 2607.05147); weights of the terms: DeepSpec's config/dspark.
RECIPE = replace(
    DFLASH,
    name="dspark",
    kind="dspark",
    depths=7,
    kl_weight=0.0,
    hard_ce_weight=0.1,
    l1_weight=0.9,
    confidence_weight=1.0,
    markov_rank=256,
)
ENTRY = replace(
    BLOCK,
    name="dspark",
    title="DSpark",
    words=("dspark",),
    fields=(),
    priority=2,
    named="",
    files=replace(
        BLOCK.files or Files(recognise, "", ""),
        recognise=lambda names: any(name.endswith("markov_head.markov_w1.weight") for name in names),
        layouts=(),
        needs=("fc.weight", "hidden_norm.weight", "markov_head.markov_w1.weight"),
        known_as="SpecForge's and vLLM's",
    ),
    training=Training(
        (RECIPE,), "executor.drafters.dflash.drafter:untrained", fields=("layers", "anchors", "markov_rank")
    ),
)
