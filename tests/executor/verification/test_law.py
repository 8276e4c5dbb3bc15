"""Losslessness of the whole loop: the law of the texts that a live `Decoder` emits is the target's.

A tiny Llama (8 tokens, two layers) at temperature 2.5, flat enough that broken caches show in what is sampled. The
law of the first four tokens is computed by feeding all 8^4 continuations in float64; thousands of requests of two
prompts, of unlike length, go through the real batched loop, whose rows are refilled as requests end; chi-square
compares, at a false-alarm probability of 1e-4 a test with fixed seeds. Cells are pooled by what is expected only.
Rules by themselves, exactly: test_lossless.py. Here faults are planted in the loop, and p must collapse.
"""

import copy
from functools import cache
from typing import Any

import pytest
import torch
from scipy.stats import chi2
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from executor.decoding.decoder import Decoder
from executor.decoding.tree_growth import DynamicGrowth, StaticGrowth
from executor.drafters.base.decoder_layer import layer_config
from executor.drafters.base.drafter import Drafter
from executor.drafters.dflash.drafter import DFlash
from executor.drafters.language_model.drafter import LanguageModel
from executor.drafters.medusa.drafter import MedusaHeads
from executor.target.kv_cache import TreeCache
from executor.target.target_model import Target
from executor.target.tree_attention_mask import tree_table
from executor.verification.acceptance_rules import make_rule
from executor.verification.temperature_top_k_top_p import Warp, seeded_generator
from executor.verification.typical_acceptance import Typical
from tests.helpers.models import SMALL, noisy
from tests.helpers.slow_growth import CALIBRATION
from tests.helpers.slow_params import slow_unless
from treeopt.acceptance_rule_entries import RULES
from treeopt.errors import ExecutorError
from treeopt.policies import DynamicTree, OptTree, Policy
from treeopt.tree import Tree

VOCABULARY, HIDDEN, NEW = 8, 16, 4
ALARM = 1e-4
FLAT = Warp(temperature=2.5)
PROMPTS = ([3], [5, 1, 7, 0, 2])
CPU = torch.device("cpu")
TREES: dict[str, Tree | Policy] = {  # of depth 2 and 3: an accepted path must leave something for another step
    "chain": Tree.chain(2),
    "branching": Tree.from_paths([(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]),
    "deep": Tree.from_paths([(0, 0, 0), (1, 0), (1, 1), (2, 0, 0), (2, 1, 0), (3, 0)]),
    "dynamic": DynamicTree(nodes=7, depth=3, beam=3, width=3),
    "stopping": DynamicTree(nodes=7, depth=2, beam=3, width=3, min_probability=0.01),
    "opt-tree": OptTree(nodes=7, depth=3, threshold=0.3, beam=3, width=3),
    "calibrated": DynamicTree(nodes=5, depth=2, beam=3, calibration=CALIBRATION),
}


@cache
def tiny(seed: int = 0) -> PreTrainedModel:
    """Random weights, double precision."""
    torch.manual_seed(seed)
    sizes = {"vocab_size": VOCABULARY, "hidden_size": HIDDEN, "intermediate_size": 24, "num_attention_heads": 2}
    config = LlamaConfig(**SMALL | sizes | {"initializer_range": 0.7, "num_key_value_heads": 1})
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.float64).eval()


def target() -> Target:
    """In single precision: the loop as it runs."""
    return Target(copy.deepcopy(tiny()).float())


def drafter(kind: str) -> Drafter:
    """A language model (the target's copy, the copy with noise, another one), Medusa heads or DSpark."""
    if kind == "dspark":  # its scores depend on what was drafted before
        torch.manual_seed(3)
        made = DFlash(
            [layer_config(tiny().config)],
            taps=(1, 2),
            vocabulary=VOCABULARY,
            mask=3,
            slots=4,
            from_anchor=True,
            markov=4,
        )
        for parameter in made.parameters():
            torch.nn.init.normal_(parameter, mean=0.7 * (parameter.dim() == 1), std=0.4)
        return made.float().eval().requires_grad_(False)
    if kind == "medusa":
        generator = torch.Generator().manual_seed(5)
        heads = MedusaHeads(3, HIDDEN).float().eval().requires_grad_(False)
        for parameter in heads.parameters():
            parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
        return heads
    model = copy.deepcopy(tiny(1 if kind == "stranger" else 0)).float()
    if kind == "near":
        model = noisy(model, 0.12)
    return LanguageModel(Target(model, name=kind))


@cache
def law(warp: Warp) -> Tensor:
    """P(first four tokens) after each prompt, float64 (prompts, 8, 8, 8, 8), by reading every continuation."""
    found = []
    for prompt in PROMPTS:
        every = torch.cartesian_prod(*[torch.arange(VOCABULARY)] * NEW)
        text = torch.cat([torch.tensor(prompt).expand(len(every), -1), every], 1)
        with torch.no_grad():
            logits = tiny()(text).logits[:, len(prompt) - 1 : -1]
        logs = warp.log_probabilities(logits).gather(2, every[..., None])[..., 0].sum(1)
        found.append(logs.exp().view(*[VOCABULARY] * NEW))
    return torch.stack(found)


def emitted(decoder: Decoder, requests: int) -> Tensor:
    """How often each continuation followed each prompt; float64, shaped like `law`."""
    prompts = [PROMPTS[i % len(PROMPTS)] for i in range(requests)]
    texts = torch.tensor([g.tokens for g in decoder.generate(prompts, new_tokens=NEW)])
    places = torch.cat([torch.arange(requests)[:, None] % len(PROMPTS), texts], 1)
    counts = torch.zeros(len(PROMPTS), *[VOCABULARY] * NEW, dtype=torch.float64)
    return counts.index_put_(tuple(places.unbind(1)), torch.ones((), dtype=torch.float64), accumulate=True)


def pooled(seen: Tensor, due: Tensor, least: float = 5.0) -> tuple[Tensor, Tensor]:
    """Cells of which at least `least` are expected; the others join those with the same beginning."""
    kept_seen, kept_due = [], []
    while due.dim():
        large = due >= least
        kept_seen.append(seen[large])
        kept_due.append(due[large])
        seen, due = seen.masked_fill(large, 0).sum(-1), due.masked_fill(large, 0).sum(-1)
    return torch.cat([*kept_seen, seen[None]]), torch.cat([*kept_due, due[None]])


def p_value(seen: Tensor, warp: Warp = FLAT) -> float:
    """Of chi-square, each prompt's requests counted as given; 0 where something impossible was seen."""
    due = law(warp) * seen.sum((1, 2, 3, 4), keepdim=True)
    if seen[law(warp) < 1e-12].sum() > 0:
        return 0.0
    total, cells = 0.0, 0
    for one_seen, one_due in zip(seen, due, strict=True):
        found, expected = pooled(one_seen, one_due)
        some = expected > 1e-9
        found, expected = found[some], expected[some]
        total += float(((found - expected) ** 2 / expected).sum())
        cells += len(found) - 1
    return float(chi2.sf(total, cells))


def decoder(
    rule: str, draft: str, tree: str, *, warp: Warp = FLAT, late: int = 0, batch: int = 512, seed: int = 0
) -> Decoder:
    """A fresh loop."""
    made = Typical(warp) if rule == "typical" else make_rule(rule, warp=warp, generator=seeded_generator(CPU, seed))
    return Decoder(target(), drafter(draft), tree=TREES[tree], batch=batch, rule=made, late=late)


# Faults of the loop: each changes a decoder, or what it calls, before it runs.


def of_target(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accepted branches stay where they were written in the target's cache."""
    compact = TreeCache.compact
    monkeypatch.setattr(
        TreeCache, "compact", lambda self, *where: None if self is decoder.target.cache else compact(self, *where)
    )


def causal(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes see all that stand before them, not their ancestors alone."""

    def table(ancestors: Tensor, *words: Any) -> Tensor:
        return tree_table(torch.ones_like(ancestors).tril(ancestors.shape[2] - ancestors.shape[1]), *words)

    monkeypatch.setattr("executor.target.tree_attention_mask.tree_table", table)


def by_row(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node's position is its row instead of its depth; in the target only."""
    verify = decoder.target.verify

    def moved(tokens: Tensor, lengths: Tensor, depths: Tensor, *rest: Any, **words: Any) -> Any:
        return verify(tokens, lengths, torch.arange(depths.shape[1])[None], *rest, **words)

    monkeypatch.setattr(decoder.target, "verify", moved)


def shifted(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each node's q is read at the node that was fed after it."""
    growth = decoder.growth
    assert isinstance(growth, StaticGrowth)
    fed = growth.fed
    growth.fed = torch.where(fed >= 0, (fed + 1) % (fed.max() + 1), fed)


def selected(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws from q are kept in the tree by their score; what `Decoder` refuses."""
    policy = TREES["dynamic"]
    assert isinstance(policy, DynamicTree)
    decoder.growth = DynamicGrowth(policy, CPU)


# The tests.


def allowed(rule: str, tree: str) -> bool:
    if RULES[rule].chains:
        return tree == "chain"
    return isinstance(TREES[tree], Tree) or not RULES[rule].draws


def test_the_setting_is_worth_testing_in():
    """The law is flat, unlike for the two prompts, and the drafters are as good as their names say."""
    laws = law(FLAT)
    torch.testing.assert_close(laws.sum((1, 2, 3, 4)), torch.ones(2, dtype=torch.float64))
    assert laws.max() < 0.1
    assert (laws[0] - laws[1]).abs().sum() > 0.5
    kept = {}
    for kind in ("copy", "near", "stranger", "medusa"):
        found = decoder("leviathan", kind, "chain").generate(PROMPTS * 250, new_tokens=NEW)
        kept[kind] = sum(g.accepted[0] for g in found) / len(found)
    assert kept["copy"] == 2
    assert 1 < kept["near"] < 1.9
    assert 0.1 < kept["stranger"] < 1
    assert 0.1 < kept["medusa"] < 1.2


FAST = [
    ("leviathan", "near", "chain", 0),
    ("leviathan", "medusa", "chain", 1),
    ("block", "near", "chain", 1),
    ("block", "stranger", "chain", 0),
    ("block", "copy", "chain", 0),
    ("specinfer", "near", "branching", 0),
    ("specinfer", "medusa", "deep", 1),
    ("sequoia", "copy", "branching", 1),
    ("sequoia", "near", "deep", 0),
    ("sample-and-match", "near", "dynamic", 0),
    ("sample-and-match", "medusa", "stopping", 1),
    ("point-mass", "stranger", "branching", 0),
    ("point-mass", "copy", "dynamic", 1),
    ("sample-and-match", "near", "opt-tree", 0),
    ("point-mass", "near", "calibrated", 1),
    ("leviathan", "dspark", "chain", 0),
    ("sequoia", "dspark", "branching", 1),
]


DAILY = [FAST[i] for i in (0, 2, 6, 7, 9, 14, 16)]  # each rule that samples, and each way to draw a tree, once


@pytest.mark.parametrize(("rule", "draft", "tree", "late"), slow_unless(lambda *case: case in DAILY, FAST))
def test_the_loop_is_lossless(rule, draft, tree, late):
    """False-alarm probability 1e-4, seeds fixed."""
    assert p_value(emitted(decoder(rule, draft, tree, late=late), 5000)) > ALARM


SAMPLING = [name for name in RULES if "generator" in RULES[name].takes]


@pytest.mark.slow
@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("draft", ["copy", "near", "stranger", "medusa", "dspark"])
@pytest.mark.parametrize(("rule", "tree"), [(rule, tree) for rule in SAMPLING for tree in TREES if allowed(rule, tree)])
def test_the_loop_is_lossless_with_many_samples(rule, draft, tree, late):
    """False-alarm probability 1e-4 a test and 1.5e-2 for the whole grid, seeds fixed."""
    assert p_value(emitted(decoder(rule, draft, tree, late=late, seed=1), 20_000)) > ALARM


WARPS = [Warp(0.3), Warp(2.5, 4), Warp(2.5, None, 0.7), Warp(1.5, 5, 0.9)]
WARPED = [("block", "chain"), ("sequoia", "branching"), ("sample-and-match", "dynamic")]


@pytest.mark.parametrize(
    ("rule", "tree", "warp"),
    slow_unless(
        lambda rule, _, warp: (rule, warp) in {("block", WARPS[1]), ("sample-and-match", WARPS[2])},
        [(rule, tree, warp) for rule, tree in WARPED for warp in WARPS],
    ),
)
def test_the_law_is_that_of_the_warped_target(rule, tree, warp):
    """False-alarm probability 1e-4, seeds fixed; no text that top-k or top-p rule out is ever written."""
    assert p_value(emitted(decoder(rule, "near", tree, warp=warp), 2500), warp) > ALARM


def test_plain_sampling_has_the_law():
    """No tree: one token a step. False-alarm probability 1e-4, seed fixed."""
    rule = make_rule("sample-and-match", warp=FLAT, generator=seeded_generator(CPU, 3))
    assert p_value(emitted(Decoder(target(), batch=512, rule=rule), 3000)) > ALARM


@pytest.mark.parametrize(
    ("draft", "tree"), slow_unless(lambda draft, _: draft == "medusa", [("medusa", "branching"), ("near", "dynamic")])
)
def test_typical_acceptance_is_noticed(draft, tree):
    assert p_value(emitted(decoder("typical", draft, tree), 4000)) < 1e-9


FAULTS = [
    (of_target, "sequoia", "copy", "branching", 0),
    (of_target, "specinfer", "near", "branching", 1),
    (of_target, "sample-and-match", "near", "dynamic", 0),
    (causal, "sequoia", "copy", "branching", 1),
    (causal, "point-mass", "near", "dynamic", 0),
    (by_row, "sequoia", "copy", "branching", 1),
    (by_row, "sample-and-match", "medusa", "deep", 0),
    (shifted, "leviathan", "near", "chain", 1),
    (shifted, "block", "stranger", "chain", 0),
    (shifted, "specinfer", "near", "branching", 1),
    (shifted, "sequoia", "near", "deep", 0),
    (selected, "leviathan", "near", "chain", 1),
    (selected, "block", "near", "chain", 0),
    (selected, "specinfer", "near", "branching", 1),
    (selected, "sequoia", "near", "branching", 0),
]


# Of a target's positions and of a drafter's probabilities one every day: they are tests of the tests.
FAULTS_OF_A_DAY = [(by_row, "sequoia", "copy", "branching", 1), (shifted, "leviathan", "near", "chain", 1)]


@pytest.mark.parametrize(
    ("fault", "rule", "draft", "tree", "late"), slow_unless(lambda *row: row in FAULTS_OF_A_DAY, FAULTS)
)
def test_faults_of_the_loop_are_noticed(monkeypatch, fault, rule, draft, tree, late):
    loop = decoder(rule, draft, tree, late=late)
    fault(loop, monkeypatch)
    requests = 9000 if fault is of_target else 4500  # a later step must follow an accepted branch to show it
    assert p_value(emitted(loop, requests)) < 1e-9


@pytest.mark.parametrize("rule", [name for name, rule in RULES.items() if rule.draws])
def test_what_the_selecting_fault_plants_is_refused(rule):
    with pytest.raises(ExecutorError, match="biases a rule that samples them"):
        decoder(rule, "near", "dynamic")
