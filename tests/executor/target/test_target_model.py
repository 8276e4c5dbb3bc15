import gc
import weakref
from itertools import islice, product
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, BloomConfig, FalconConfig, GPTNeoConfig, LlamaConfig, LlamaForCausalLM

import executor.target.tree_attention_mask
from executor.decoding.decoder import Decoder
from executor.decoding.self_test import audit_text
from executor.target.architectures import REFUSED, refusal
from executor.target.kv_cache import TreeCache
from executor.target.target_model import Target
from executor.verification.tree_tensors import Topology
from tests.helpers.model_families import BASE, WINDOW, Oracle, decode, family
from tests.helpers.models import SMALL, random_heads, random_prompts, small_target
from tests.helpers.slow_params import slow_unless
from treeopt.errors import ExecutorError
from treeopt.tree import EMPTY, Tree

MIXED = ["llama", "mistral", "gemma3", "gpt_oss", "deepseek_v3", "opt", "falcon"]


# --- the comparison with `generate` notices what is broken


def break_compaction(target, monkeypatch):
    monkeypatch.setattr(TreeCache, "compact", lambda *args: None)


def break_mask(target, monkeypatch):  # the nodes before a node instead of its ancestors
    seen, table = executor.target.tree_attention_mask.tree_seen, executor.target.tree_attention_mask.tree_table
    monkeypatch.setattr(
        "executor.target.tree_attention_mask.tree_seen",
        lambda n, d, above, *rest: seen(n, d, torch.ones_like(above).tril(), *rest),
    )
    monkeypatch.setattr(
        "executor.target.tree_attention_mask.tree_table",
        lambda above, *rest: table(torch.ones_like(above).tril(), *rest),
    )


def break_positions(target, monkeypatch):  # a node's position is its row instead of its depth
    verify = Target.verify
    monkeypatch.setattr(
        Target,
        "verify",
        lambda self, tokens, n, d, *rest: verify(self, tokens, n, torch.arange(d.shape[1]).expand_as(d), *rest),
    )


def break_window(target, monkeypatch):  # none
    target.masks.windows = dict.fromkeys(target.masks.windows)


def break_window_of_positions(target, monkeypatch):  # counted in rows
    seen = executor.target.tree_attention_mask.tree_seen
    monkeypatch.setattr(
        "executor.target.tree_attention_mask.tree_seen",
        lambda n, d, *rest: seen(n, torch.arange(d.shape[1]).expand_as(d), *rest),
    )


def break_window_of_branches(target, monkeypatch):  # it cuts the text, but not a node's ancestors
    monkeypatch.setattr(executor.target.tree_attention_mask, "within_window", lambda ancestors, window: ancestors)


ALWAYS = [break_compaction, break_mask, break_positions]
WINDOWED = [break_window, break_window_of_positions, break_window_of_branches]


@pytest.mark.parametrize(
    ("name", "broken"),
    slow_unless(
        lambda name, _: name in ("opt", "gemma3"),
        [*product(("llama", "opt", "gpt_oss"), ALWAYS), *product(("mistral", "gemma3"), WINDOWED)],
    ),
)
def test_the_comparison_notices(name, broken, monkeypatch):
    known = family(name)
    target = known.target()
    broken(target, monkeypatch)
    found, _ = decode(target, known.prompts, Oracle(known.texts, 24, 1.0))
    assert found != known.texts


# --- kinds of attention


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3", "gpt_neox"])
def test_other_attentions_write_the_same(name, attention):
    known = family(name)
    target = known.target(attention=attention)
    assert (target.attention, target.attention_reason) == (attention, None)
    found, _ = decode(target, known.prompts, Oracle(known.texts, 24, 0.8), chunk=5, view=128)
    assert found == known.texts


# --- prompts in pieces


@pytest.mark.parametrize("name", MIXED)
def test_prompts_in_pieces_are_prompts(name):
    known = family(name)
    target = known.target()
    target.allocate(4, 128)
    whole = target.prefill(range(4), known.prompts)
    stores = [store.clone() for store in target.cache.stores]
    for chunk in (1, 5, 12):
        target.allocate(4, 128)
        pieces = target.prefill([2, 0, 3, 1], [known.prompts[i] for i in (2, 0, 3, 1)], chunk=chunk)
        for i, feature in zip((2, 0, 3, 1), pieces, strict=True):
            assert feature.shape == (len(known.prompts[i]), target.hidden)
            torch.testing.assert_close(feature, whole[i], atol=2e-4, rtol=1e-4)
            for store, due in zip(target.cache.stores, stores, strict=True):
                n = len(known.prompts[i])
                torch.testing.assert_close(store[:, i, :, :n], due[:, i, :, :n], atol=2e-4, rtol=1e-4)
    found, _ = decode(target, known.prompts, Oracle(known.texts, 12, 0.7), chunk=4)
    assert found == known.texts


@pytest.mark.parametrize("name", MIXED)
def test_features_are_the_head_s_input(name):
    known = family(name)
    target = known.target()
    plain = target.features(torch.tensor([known.prompts[2]]))
    target.allocate(1, 32)
    [filled] = target.prefill([0], [known.prompts[2]])
    torch.testing.assert_close(filled, plain.features[0])
    scaled = plain.logits / target.head(plain.features)  # some models scale or cap what the head gives
    if name != "gemma3":
        torch.testing.assert_close(scaled, torch.ones_like(scaled))


@pytest.fixture
def filled(monkeypatch):
    """How many prompts the models were asked to compute, call by call."""
    counts, fill = [], Target._prefill
    monkeypatch.setattr(Target, "_prefill", lambda self, *args: counts.append(len(args[0])) or fill(self, *args))
    return counts


@pytest.mark.parametrize("tree", [Tree.chain(3), Tree.from_paths([(0, 0), (1,)])], ids=["chain", "tree"])
def test_kept_prompts_are_prompts(tree, filled):
    """Steps after a prompt that was not computed again are those after one that was, whatever was decoded before."""
    target, heads, prompts = small_target(), random_heads(), random_prompts([9, 4, 1, 6])
    texts = [list(found.tokens) for found in Decoder(target, batch=4).generate(prompts, new_tokens=12)]
    filled.clear()
    with target.keeping_prompts():
        for asked in (EMPTY, tree, tree, EMPTY):
            found = [list[int]() for _ in prompts]
            steps = Decoder(target, heads, tree=asked, batch=4).steps(prompts, new_tokens=12)
            for step in islice(steps, 3):
                for row, more in zip(found, step.committed, strict=True):
                    row += more
            assert found == [text[: len(row)] for text, row in zip(texts, found, strict=True)]
            assert min(map(len, found)) >= 3
        assert filled == [4, 4]  # without features, and with them
        next(Decoder(target, batch=4).steps(prompts[::-1], new_tokens=12))
        next(Decoder(target, batch=4).steps([*prompts[:3], [1] * 300], new_tokens=12))  # a larger cache
        assert filled == [4, 4, 4, 4]
    next(Decoder(target, batch=4).steps([*prompts[:3], [1] * 300], new_tokens=12))
    assert filled == [4, 4, 4, 4, 4]


def test_a_kept_prompt_s_memory_is_let_go_before_more_is_taken(monkeypatch):
    target, held = small_target(), []
    with target.keeping_prompts():
        target.allocate(2, 64)
        target.prefill([0, 1], [[1, 2], [3]])
        held.append(weakref.ref(target.cache.stores[0]))
        monkeypatch.setattr("executor.target.target_model.free_bytes", lambda device: held.append(held[0]()))
        target.allocate(4, 512)
    assert held[1] is None


def test_a_kept_prompt_is_forgotten_by_runs_without_a_request_for_its_row(filled):
    """A row whose request ended idles behind its prompt; one that never had a request, at 0."""
    target, prompts = small_target(), random_prompts([9, 4, 2, 6])
    with target.keeping_prompts():
        runs = [Decoder(target, batch=4).generate(prompts, new_tokens=[3, 5, 3, 5]) for _ in range(2)]
        assert filled == [4]
        runs.append(Decoder(target, batch=4).generate(prompts[:2], new_tokens=[3, 5]))
        runs.append(Decoder(target, batch=4).generate(prompts, new_tokens=[3, 5, 3, 5]))
    assert runs[0] == runs[1] == runs[3]
    assert runs[2] == runs[0][:2]
    assert filled == [4, 2]


@pytest.mark.parametrize("tree", [Tree.chain(3), Tree.from_paths([(0, 0), (1,)])], ids=["chain", "tree"])
def test_a_kept_prompt_serves_the_next_request_of_its_row(tree, filled):
    target, heads, prompts = small_target(), random_heads(), random_prompts([9, 4]) * 4
    due = Decoder(target, heads, tree=tree, batch=2).generate(prompts, new_tokens=7)
    filled.clear()
    with target.keeping_prompts():
        assert Decoder(target, heads, tree=tree, batch=2).generate(prompts, new_tokens=7) == due
    assert filled == [2]


def test_a_target_that_nobody_holds_is_freed_at_once():
    """Its memory is the device's: it must not wait until cycles are collected."""
    target, prompts = small_target(), random_prompts([9, 4])
    Decoder(target, random_heads(), tree=Tree.chain(3), batch=2).generate(prompts, new_tokens=4)
    target.features(torch.tensor(prompts[:1]), taps=(1,))
    held = weakref.ref(target.model)
    gc.disable()
    try:
        del target
        assert held() is None
    finally:
        gc.enable()


# --- trees fed level by level


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3", "gpt_oss"])
def test_a_tree_fed_level_by_level_is_the_tree(name):
    target, prompts = family(name).target(), family(name).prompts
    parents = torch.tensor([[0, 0, 0, 1, 2, 3, 3, 5, 7, 8, 9, 10]])
    topology = Topology.from_parents(parents, 8)
    tokens = torch.randint(499, (4, 12), generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    target.allocate(4, 128)
    target.prefill(range(4), prompts)
    whole = target.verify(tokens, lengths, topology.depth, topology.ancestors, 128)
    assert int(topology.depth.max()) > WINDOW
    target.allocate(4, 128)
    target.prefill(range(4), prompts)
    for first, last in ((0, 1), (1, 3), (3, 7), (7, 8), (8, 12)):
        part = target.verify(
            tokens[:, first:last],
            lengths,
            topology.depth[:, first:last],
            topology.ancestors[:, first:last, :last],
            128,
            first=first,
        )
        torch.testing.assert_close(part.features, whole.features[:, first:last], atol=2e-4, rtol=1e-4)
        torch.testing.assert_close(part.logits, whole.logits[:, first:last], atol=2e-4, rtol=1e-4)


# --- nothing is asked of the host, and it compiles


class NoHostReads(TorchDispatchMode):
    """Fails on operators whose result or its shape the host must wait for."""

    READS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal", "is_nonzero", "item")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__.strip("_").startswith(tuple(r.strip("_") for r in self.READS)):
            raise AssertionError(f"{func} reads from the device")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("attention", ["packed", "sdpa", "eager"])
@pytest.mark.parametrize("name", ["llama", "gemma3", "opt"])
def test_verifying_reads_nothing_back(name, attention):
    target = family(name).target(attention=attention)
    target.allocate(2, 128)
    target.prefill([0, 1], [[1, 2, 3], [4]])
    topology = Topology.from_parents(torch.tensor([[0, 0, 1, 1, 2], [0, 0, 0, 0, 3]]), 3)
    lengths, tokens = torch.tensor([3, 1]), torch.ones(2, 5, dtype=torch.long)
    path = torch.tensor([[0, 2, 4, 4], [0, 3, 3, 3]])
    target.verify(tokens, lengths, topology.depth, topology.ancestors, 128)
    with NoHostReads():
        target.verify(tokens, lengths, topology.depth, topology.ancestors, 128)
        target.cache.compact(lengths, path)


def test_the_mode_notices_a_read():
    with pytest.raises(AssertionError, match="reads from the device"), NoHostReads():
        torch.ones(3).sum().item()
    with pytest.raises(AssertionError, match="reads from the device"), NoHostReads():
        torch.ones(3).nonzero()


@pytest.mark.slow
def test_compiled_it_writes_the_same_and_compiles_once():
    known, compiled = family("llama"), []

    def backend(module, inputs):
        compiled.append(module)
        return module.forward

    target = known.target()
    target.compile(backend=backend)
    for _ in range(2):  # a second cache in the same memory
        found, _ = decode(target, known.prompts, Oracle(known.texts, 16, 0.8), view=128)
        assert found == known.texts
    assert len(compiled) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # inductor's own imports
def test_inductor_writes_the_same():
    known = family("mistral")
    target = known.target()
    target.compile()
    found, _ = decode(target, known.prompts, Oracle(known.texts, 16, 0.8), view=128)
    assert found == known.texts


def test_many_nodes_and_views_of_any_width():
    count = 200
    topology = Topology.from_parents(torch.tensor([[0, *(max(0, i - i % 7) for i in range(count - 1))]]), 60)
    tokens = torch.randint(499, (2, count), generator=torch.Generator().manual_seed(0))
    found = []
    for attention in ("packed", "sdpa"):
        target = family("mistral").target(attention=attention)
        target.allocate(2, 300)
        target.prefill([0, 1], [[1, 2, 3], list(range(50))])
        found.append(target.verify(tokens, torch.tensor([3, 50]), topology.depth, topology.ancestors, 259).logits)
    torch.testing.assert_close(found[1], found[0])


# --- memory


@pytest.mark.parametrize("name", ["llama", "gemma3", "deepseek_v3"])
def test_the_cache_s_size_is_known_before(name):
    target = family(name).target()
    needed = target.cache_bytes(3, 40)
    assert target.cache is None
    target.allocate(3, 40)
    assert needed == sum(store.numel() * store.element_size() for store in target.cache.stores)
    assert target.cache_bytes(6, 80) == 4 * needed


def test_a_cache_that_does_not_fit_is_refused(monkeypatch):
    target = family("llama").target()
    monkeypatch.setattr("executor.target.target_model.free_bytes", lambda device: 2**20)
    with pytest.raises(ExecutorError, match=r"64 sequences of 1024 tokens needs 0.0\d GiB, cpu has 0.00 GiB free"):
        target.allocate(64, 1024)
    assert target.cache is None
    target.allocate(1, 8)


def test_memory_is_used_again_but_owned_anew():
    target = family("llama").target()
    target.allocate(2, 64)
    first, memory = target.cache, target.cache.stores
    memory[0].fill_(float("nan"))
    target.allocate(2, 32)
    second = target.cache
    assert second is not first
    assert first.stores == ()
    assert [new.data_ptr() for new in second.stores] == [old.data_ptr() for old in memory]
    assert not second.stores[0].any()
    target.allocate(2, 65)
    assert second.stores == ()
    assert target.cache.stores[0].shape[3] == 65
    target.allocate(1, 65)
    assert target.cache.stores[0].shape[1] == 1


# --- refusals


@pytest.mark.parametrize(
    ("config", "words"),
    [(BloomConfig, {}), (GPTNeoConfig, {"attention_types": [[["local"], 2]]}), (FalconConfig, {"alibi": True})],
)
def test_models_that_cannot_verify_trees_are_refused_by_name(config, words):
    made = config(vocab_size=32, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, **words)
    with pytest.raises(ExecutorError, match=f"{made.model_type} models cannot verify trees: its "):
        Target(AutoModelForCausalLM.from_config(made))


@pytest.mark.parametrize("kind", sorted(REFUSED))
def test_refused_families_are_told_by_their_configuration(kind):
    assert refusal(SimpleNamespace(model_type=kind)) == REFUSED[kind]


def test_what_a_forward_of_one_token_shows_is_refused():
    model = AutoModelForCausalLM.from_config(LlamaConfig(**BASE))
    target = Target(model)
    model.lm_head.register_forward_pre_hook(lambda module, args: (2 * args[0],))
    with pytest.raises(ExecutorError, match="llama models cannot verify trees: their decoder does not return"):
        target.allocate(1, 8)


def test_a_state_is_refused_whatever_its_name():
    model = AutoModelForCausalLM.from_config(LlamaConfig(**BASE))
    model._is_stateful = True
    with pytest.raises(ExecutorError, match="llama models cannot verify trees: it keeps a recurrent state"):
        Target(model)


def test_a_window_that_the_code_does_not_know_is_none():
    """Configurations carry keys that their family ignores; a plain forward is the judge."""
    torch.manual_seed(0)
    words = SMALL | {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
    for given in (words, SMALL | {"sliding_window": 4}):
        model = LlamaForCausalLM._from_config(LlamaConfig(**given, num_key_value_heads=2))
        target = Target(model)
        assert target.masks.windows == {"": None}
        prompt = random_prompts((12,))[0]
        found = Decoder(target).generate([prompt], new_tokens=8)[0].tokens
        assert audit_text(target, prompt, found).unexcused == 0
