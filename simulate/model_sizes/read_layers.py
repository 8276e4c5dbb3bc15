"""The layers that a config.json describes: one reader of transformers' field names, and a table of what they leave out.

Counts weights, numbers in the cache and states of attention (grouped, latent, sparse, with windows or chunks), linear
attention, state space, dense layers and experts. A field that is not read, and is a list per layer or names attention,
experts or states, is refused by name.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from simulate.model_sizes.hf_config import FIELDS, OWN_SWEEP, positive, text_part, true_or_false
from simulate.model_sizes.layer_groups import LayerAttention, LayerGroup, LayerMatrix
from simulate.model_sizes.mixture_of_experts import Experts
from simulate.model_sizes.stored_bytes import StoredBytes
from treeopt.errors import CostError

BY_HAND = "or give its sizes with --sizes params=..,active=..,kv_bytes=.."


@dataclass(frozen=True)
class _Family:
    """The properties of a model class that its config.json does not state.

    Attributes:
        gated: MLPs have a gate.
        tied: the LM head is the embedding where the field is missing.
        qkv_bias: queries, keys and values have biases.
        output_bias: `attention_bias` also gives the output projection one.
        biases: `attention_bias` and `mlp_bias` are read.
        qk_norm: weights of the norms of queries and keys: of a "head", or of a whole "layer".
        norms: norms of the model's width in a layer.
        gate: gate of the attention's output: "query" (a second query), "full", or "head" (one number a head).
        sinks: kinds of layers that have sinks.
        router_bias: the router has a bias.
        expert_bias: experts have biases.
        shared: shared experts that no field states, of the width of the dense `intermediate_size`.
        shared_gate: shared experts have a gate.
        beside: experts stand beside the MLP, with norms and scales of their own (Gemma 4).
        windows: where the window is: "all", every "sixth" layer without, or "" (only as `layer_types` says).
        defaults: values of fields that are missing.
        requires: fields without which transformers' class differs from what is read here.
    """

    gated: bool = True
    tied: bool = False
    qkv_bias: bool = False
    output_bias: bool = True
    biases: bool = True
    qk_norm: str = ""
    norms: int = 2
    gate: str = ""
    sinks: tuple[str, ...] = ()
    router_bias: bool = False
    expert_bias: bool = False
    shared: int = 0
    shared_gate: bool = False
    beside: bool = False
    windows: str = ""
    defaults: tuple[tuple[str, Any], ...] = ()
    requires: tuple[str, ...] = ()


_KV, _HEAD = ("num_key_value_heads",), ("num_key_value_heads", "head_dim")
_MOE = (*_HEAD, "moe_intermediate_size")
_LATENT = ("kv_lora_rank", "first_k_dense_replace")
_GEMMA = replace(_Family(), tied=True, requires=_HEAD)
_QWEN_NEXT = _Family(
    qk_norm="head",
    gate="query",
    shared_gate=True,
    defaults=(("full_attention_interval", 4), ("linear_conv_kernel_dim", 4)),
    requires=_HEAD,
)
FAMILIES = {
    "arcee": _Family(gated=False),
    "deepseek_v2": _Family(requires=_LATENT),
    "deepseek_v3": _Family(requires=_LATENT),
    "deepseek_v32": _Family(requires=_LATENT),
    "gemma": _GEMMA,
    "gemma2": replace(_GEMMA, norms=4, windows="second"),
    "gemma3_text": replace(_GEMMA, norms=4, qk_norm="head", windows="sixth"),
    "gemma4_text": replace(_GEMMA, norms=4, qk_norm="head", beside=True),
    "glm4_moe": _Family(output_bias=False, requires=_MOE),
    "glm5_next_text": _Family(requires=_LATENT),
    "glm_moe_dsa": _Family(requires=_LATENT),
    "gpt_oss": _Family(
        sinks=("full_attention", "sliding_attention"), router_bias=True, expert_bias=True, requires=(*_HEAD,)
    ),
    "kimi_k2": _Family(requires=_LATENT),
    "llama": _Family(),
    "llama4_text": _Family(shared=1, windows="chunks", requires=_HEAD),
    "mimo": _Family(qkv_bias=True, biases=False, requires=_KV),
    "mimo_v2_flash": _Family(sinks=("sliding_attention",), requires=_MOE),
    "minimax_m2": _Family(qk_norm="layer", biases=False, requires=_HEAD),
    "minimax_m3": _Family(qk_norm="head", biases=False, requires=_HEAD),
    "minimax_m3_vl": _Family(qk_norm="head", biases=False, requires=_HEAD),
    "mistral": _Family(biases=False, windows="all", defaults=(("sliding_window", 4096),), requires=_KV),
    "mixtral": _Family(biases=False, windows="all", requires=_KV),
    "muse_glimmer_text": _Family(norms=4, gate="full", requires=_HEAD),
    "nemotron_h": _Family(gated=False, norms=1, defaults=(("head_dim", 128), ("conv_kernel", 4)), requires=_KV),
    "qwen2": _Family(qkv_bias=True, biases=False, windows="later", requires=_KV),
    "qwen3": _Family(qk_norm="head", windows="later", requires=_HEAD),
    "qwen3_5_moe_text": _QWEN_NEXT,
    "qwen3_5_text": _QWEN_NEXT,
    "qwen3_moe": _Family(qk_norm="head", requires=_MOE),
    "qwen3_next": _QWEN_NEXT,
    "qwen3_vl_moe_text": _Family(qk_norm="head", requires=_MOE),
    "qwen3_vl_text": _Family(qk_norm="head", requires=_HEAD),
    "step3p7": _Family(qk_norm="head", gate="head", requires=_MOE),
}
_CLASSES = {"gemma3": "gemma3_text", "gemma4": "gemma4_text", "llama4": "llama4_text", "kimi_k25": "kimi_k2"}
DENSE = ("arcee", "gemma", "llama", "mistral", "qwen2", "qwen3")  # families that drafters' layers may be of
KINDS = {  # names of layer_types, layers_block_type and hybrid_override_pattern
    **dict.fromkeys(("full_attention", "attention", "deepseek_sparse_attention", "*", "full"), "full_attention"),
    **dict.fromkeys(("sliding_attention", "chunked_attention"), "sliding_attention"),
    **dict.fromkeys(("linear_attention",), "linear_attention"),
    **dict.fromkeys(("mamba", "M"), "mamba"),
    **dict.fromkeys(("mlp", "-"), "mlp"),
    **dict.fromkeys(("moe", "E"), "moe"),
}
# Fields whose names say that they change what is counted, and those among them that do not.
_WEIGHTY = re.compile(
    "attn|attention|expert|moe|state|ssm|conv|mamba|kv_|mla|index|compress|latent|window|sparse|head|lora|linear|"
    "per_layer|shared|engram|hc_mult|altup|laurel|layer_id|chunk|double_wide|no_rope|residual_block"
)
_HARMLESS = re.compile(
    "architectures|dropout|rope_(theta|scal|param)|softcap|scal(e|ing)|aux_loss|router_(z|jitter|aux|logits)|mtp|nextn|eps|init|"
    "norm_topk|topk_(method|group)|expert_group|scoring|implementation|max_window|mamba_(ssm|hidden|chunk|proj)|"
    "chunk_size|score|index_(share_for_mtp|skip_topk|topk_freq)|gate_lower|attn_temperature|floor_scale|cache_dtype|"
    "num_experts_per_tok|experts_per_token|pretraining|output_|dtype|_id$|_ids$|head_dim|logit|act$"
)
_OPTIONAL = ("num_key_value_heads", "intermediate_size")
_ID_LISTS = re.compile("layer_ids$|source")  # ids of layers, not of tokens


class _Fields:
    """The fields of a config.json, which remembers what was read."""

    def __init__(self, config: Mapping[str, Any], family: _Family) -> None:
        self.config, self.family = config, family
        self.seen: set[str] = set()

    def get(self, *names: str, default: Any = None) -> Any:
        """Return the first of the fields that is given."""
        self.seen.update(names)
        defaults = dict(self.family.defaults)
        return next((v for n in names if (v := self.config.get(n, defaults.get(n))) is not None), default)

    def size(self, *names: str, default: int | None = None) -> int:
        """Return a size."""
        given = next((name for name in names if self.config.get(name) is not None), names[0])
        return positive(given, self.get(*names, default=default))

    def count(self, *names: str) -> int:
        """Return a size, 0 where it is missing, null or 0."""
        return self.size(*names) if self.get(*names) else 0

    def switch(self, name: str, default: bool = False) -> bool:
        """Return a boolean."""
        return true_or_false(name, self.get(name, default=default))

    def listed(self, name: str, layers: int) -> list[Any] | None:
        """Return a list of one entry per layer; None where it is missing."""
        values = self.get(name)
        if isinstance(values, str):
            values = list(values)
        if not isinstance(values, list):
            return None
        if len(values) < layers:
            raise CostError(f"{name} must have an entry for each of {layers} layers, got {len(values)}")
        return values[:layers]


def sizes_of(config: Mapping[str, Any], stored: StoredBytes | None = None) -> dict[str, Any]:
    """Return the fields of a `Shape` that a parsed config.json states; `stored`: bytes of its weights.

    Raises:
        CostError: a field is wrong, missing or not covered; names it.

    >>> config = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 4}
    >>> sizes_of(config | {"intermediate_size": 16, "vocab_size": 32})["head_dim"]
    2
    """
    text = text_part(config)
    name = str(text.get("model_type"))
    name = _CLASSES.get(name, name)
    family, notes = FAMILIES.get(name), []
    if family is None:
        family = _Family()
        if missing := [field for field in FIELDS if text.get(field) is None and field not in _OPTIONAL]:
            raise CostError(
                f"model_type {name!r:.80} has no price, and {missing[0]} is missing: {OWN_SWEEP}, {BY_HAND}"
            )
        notes.append(f"model_type {name!r:.80} is not known: its layers are counted by the usual names of fields alone")
    for field in family.requires:
        if field not in text:
            raise CostError(f"{field} must be given for model_type {name}")
    fields = _Fields(text, family)
    layers = fields.get("num_hidden_layers")
    if layers is None:  # of Nemotron-H
        layers = len(fields.get("layers_block_type", "hybrid_override_pattern", default="")) or None
    layers, hidden = positive("num_hidden_layers", layers), fields.size("hidden_size")
    heads = fields.size("num_attention_heads")
    if text.get("head_dim") is None and not fields.get("kv_lora_rank") and hidden % heads:
        raise CostError(f"num_attention_heads must divide hidden_size, got {heads} and {hidden}")
    stored = StoredBytes() if stored is None else stored
    reader = _Reader(fields, family, stored, layers=layers, hidden=hidden, heads=heads)
    groups, experts = reader.groups(), reader.experts
    latent = bool(fields.get("kv_lora_rank"))
    biased = reader.biased("attention_bias")
    sizes = {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "intermediate": reader.expert_width if experts else reader.dense_width,
        "kv_heads": heads if latent else fields.size("num_key_value_heads", default=heads),
        "head_dim": fields.size("v_head_dim") if latent else fields.size("head_dim", default=hidden // heads),
        "vocab": fields.size("vocab_size"),
        "tied": fields.switch("tie_word_embeddings", family.tied),
        "qkv_bias": family.qkv_bias or biased,
        "output_bias": family.output_bias and biased,
        "mlp_bias": reader.biased("mlp_bias"),
        "qk_norm": family.qk_norm == "head",
        "gated": family.gated,
        "experts": experts,
        "window": reader.window if all(g.attention and g.attention.window for g in groups) else None,
        "groups": groups,
        "head_bytes": stored.of("lm_head"),
    }
    _refuse_unread(fields, layers)
    if reader.unplaced:
        raise CostError(f"sliding_window: which layers have it is not known: {OWN_SWEEP}, {BY_HAND}")
    if family.tied and "tie_word_embeddings" not in text:
        notes.append("tie_word_embeddings is missing: the LM head counts as the embedding, as in the family's class")
    return sizes | {"notes": (*notes, *stored.notes)}


class _Reader:
    """The layers of a config.json."""

    def __init__(
        self, fields: _Fields, family: _Family, stored: StoredBytes, *, layers: int, hidden: int, heads: int
    ) -> None:
        self.fields, self.family, self.stored = fields, family, stored
        self.layers, self.hidden, self.heads = layers, hidden, heads
        self.unplaced = False  # a window of layers that no field names
        count = fields.count("num_experts", "num_local_experts", "n_routed_experts")
        names = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "experts_per_token", "moe_topk")
        self.experts = Experts(count, fields.size(*names)) if count else None
        self.dense_width = fields.count("intermediate_size_mlp", "dense_intermediate_size", "intermediate_size")
        self.expert_width = fields.size("moe_intermediate_size", "intermediate_size") if count else 0
        self.window = fields.count("sliding_window", "sliding_window_size", "attention_chunk_size") or None

    def biased(self, name: str) -> bool:
        """Return whether a field gives biases to a class that reads it."""
        return self.fields.switch(name) and self.family.biases

    def groups(self) -> tuple[LayerGroup, ...]:
        """Return the layers, those that are alike together, in the order in which kinds first appear."""
        kinds, sparse, indexed = self._kinds(), self._sparse(), self._indexed()
        found: Counter[LayerGroup] = Counter()
        for i, place in enumerate(zip(kinds, sparse, indexed, strict=True)):
            found[self._layer(i, *place)] += 1
        return tuple(LayerGroup(**(vars(group) | {"count": count})) for group, count in found.items())

    def _kinds(self) -> list[str]:
        """Return the kind of each layer's mixer."""
        fields, n, windows = self.fields, self.layers, self.family.windows
        for name in ("layer_types", "layers_block_type", "hybrid_override_pattern"):
            if (kinds := fields.listed(name, n)) is not None:
                fields.seen.update(("full_attention_interval", "sliding_window_pattern", "linear_attn_config"))
                if windows == "later" and not fields.switch("use_sliding_window"):
                    return ["full_attention"] * n
                if unknown := [kind for kind in kinds if kind not in KINDS]:
                    raise CostError(f"{name}: {unknown[0]!r:.80} is no kind of layer that is counted: {OWN_SWEEP}")
                return [KINDS[kind] for kind in kinds]
        if (pattern := fields.listed("hybrid_layer_pattern", n)) is not None:  # of MiMo-V2
            return ["sliding_attention" if entry else "full_attention" for entry in pattern]
        if (pattern := fields.listed("attn_type_list", n)) is not None and set(pattern) != {1}:  # of MiniMax
            raise CostError(f"attn_type_list: lightning attention is not counted: {OWN_SWEEP}")
        if (interval := fields.count("full_attention_interval")) and fields.get("linear_num_value_heads"):
            return ["linear_attention" if (i + 1) % interval else "full_attention" for i in range(n)]
        first_full = fields.get("max_window_layers", default=28)
        if windows == "later":
            slides = fields.switch("use_sliding_window") and fields.get("sliding_window", default=4096)
            return ["sliding_attention" if slides and i >= first_full else "full_attention" for i in range(n)]
        if windows == "chunks":
            every = fields.get("no_rope_layer_interval", default=4)
            rotary = fields.listed("no_rope_layers", n) or [(i + 1) % every != 0 for i in range(n)]
            return ["sliding_attention" if entry and self.window else "full_attention" for entry in rotary]
        if windows in ("second", "sixth"):
            every = fields.get("sliding_window_pattern", default=2 if windows == "second" else 6)
            return ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(n)]
        if windows == "all" and fields.get("sliding_window"):
            self.window = fields.size("sliding_window")
            return ["sliding_attention"] * n
        slides = fields.get("use_sliding_window", default=True) and fields.config.get("sliding_window")
        self.unplaced = bool(slides) and not any(self.family is FAMILIES[name] for name in DENSE)
        return ["full_attention"] * n

    def _sparse(self) -> list[bool]:
        """Return whether a layer has experts."""
        fields, n = self.fields, self.layers
        if self.experts is None or not fields.get("enable_moe_block", default=True):
            return [False] * n
        if (kinds := fields.listed("mlp_layer_types", n)) is not None:
            fields.seen.update(("first_k_dense_replace", "moe_layer_freq"))
            return [kind == "sparse" for kind in kinds]
        first, every = fields.count("first_k_dense_replace"), fields.get("moe_layer_freq", default=1)
        if isinstance(every, list):
            return [bool(entry) for entry in fields.listed("moe_layer_freq", n) or ()]
        only = fields.get("mlp_only_layers", default=[])
        step = fields.get("decoder_sparse_step", "interleave_moe_layer_step", default=1)
        step = positive("decoder_sparse_step", step)
        named = fields.get("moe_layers")
        return [
            i in named
            if isinstance(named, list)
            else i >= first and i % every == 0 and i not in only and (i + 1) % step == 0
            for i in range(n)
        ]

    def _indexed(self) -> list[bool]:
        """Return whether a layer has an indexer of its own."""
        fields, n = self.fields, self.layers
        sparse = fields.get("sparse_attention_config")
        if isinstance(sparse, Mapping):  # of MiniMax-M3
            return [bool(entry) for entry in sparse.get("sparse_attention_freq", [1] * n)[:n]]
        if not fields.config.get("index_topk") or not fields.get("kv_lora_rank"):
            return [False] * n
        kinds = fields.listed("indexer_types", n) or ["full"] * n
        return [kind == "full" for kind in kinds]

    def _layer(self, i: int, kind: str, sparse: bool, indexed: bool) -> LayerGroup:
        """Return a layer of one kind; its matrices by their names in checkpoints."""
        matrices: dict[str, tuple[int, int]] = {}
        other, state, attention = self.family.norms * self.hidden, 0, None
        if kind == "mamba":
            other, state = other + self._mamba(matrices), self._mamba_state()
        elif kind == "linear_attention":
            more, state = self._linear(matrices)
            other += more
        elif kind not in ("mlp", "moe"):
            more, attention = self._attention(matrices, kind, indexed)
            other += more
        other += self._hyper_connections(matrices)
        routed: dict[str, Any] = {}
        alone = self.family.norms == 1  # a layer is either a mixer or an MLP
        if kind == "moe" or (sparse and not alone):
            more, routed = self._experts(matrices)
            other += more
        if kind == "mlp" or (not alone and (not sparse or self.family.beside)):
            other += self._mlp(
                matrices, "mlp", positive("intermediate_size", self.dense_width or self.fields.get("intermediate_size"))
            )
        if routed:
            as_stored = self.stored.of("experts" if self.family.beside else "mlp.experts", i)
            routed["expert_matrices"] = tuple(replace(each, stored=as_stored) for each in routed["expert_matrices"])
        stored = tuple(LayerMatrix(*size, self.stored.of(name, i)) for name, size in matrices.items())
        return LayerGroup(1, stored, other, attention, state, **routed)

    def _mlp(self, matrices: dict[str, tuple[int, int]], prefix: str, width: int) -> int:
        """Add an MLP; return its biases."""
        matrices[f"{prefix}.gate_up_proj"] = ((1 + self.family.gated) * width, self.hidden)
        matrices[f"{prefix}.down_proj"] = (self.hidden, width)
        return self.biased("mlp_bias") * ((1 + self.family.gated) * width + self.hidden)

    def _experts(self, matrices: dict[str, tuple[int, int]]) -> tuple[int, dict[str, Any]]:
        """Add the router and shared experts; return other weights, and the routed experts."""
        fields, family, experts = self.fields, self.family, self.experts
        if experts is None:
            raise CostError("a layer of experts needs their number, such as num_experts")
        inner, width = fields.count("moe_latent_size") or self.hidden, self.expert_width
        matrices["mlp.gate"] = (experts.count, self.hidden)
        other = family.router_bias * experts.count
        if inner != self.hidden:
            matrices["mlp.fc1_latent_proj"], matrices["mlp.fc2_latent_proj"] = (
                (inner, self.hidden),
                (self.hidden, inner),
            )
        if family.beside:
            other += 3 * self.hidden + self.hidden + experts.count
        counted = fields.count("n_shared_experts", "num_shared_experts")
        names = ("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "share_expert_dim")
        shared = fields.count(*names, "shared_intermediate_size") or (counted or family.shared) * width
        if shared:
            self._mlp(matrices, "mlp.shared_experts", shared)
            other += family.shared_gate * self.hidden
        outputs = (1 + family.gated) * width
        routed = {
            "experts": experts,
            "expert_matrices": (LayerMatrix(outputs, inner), LayerMatrix(inner, width)),
            "expert_other": family.expert_bias * (outputs + inner),
        }
        return other, routed

    def _attention(self, matrices: dict[str, tuple[int, int]], kind: str, indexed: bool) -> tuple[int, LayerAttention]:
        """Add attention; return its other weights, and its keys and values."""
        if self.fields.get("kv_lora_rank"):
            return self._latent(matrices, indexed)
        fields, family, hidden = self.fields, self.family, self.hidden
        slides = kind == "sliding_attention"
        heads, kv_heads = self.heads, fields.size("num_key_value_heads", default=self.heads)
        key = fields.size("head_dim", default=hidden // heads)
        value = fields.size("v_head_dim", default=key)
        shared = False
        if slides:  # of MiMo-V2
            heads = fields.size("swa_num_attention_heads", default=heads)
            kv_heads = fields.size("swa_num_key_value_heads", default=kv_heads)
            key, value = fields.size("swa_head_dim", default=key), fields.size("swa_v_head_dim", default=value)
        else:  # of Gemma 4
            key = fields.count("global_head_dim") or key
            value = key if fields.count("global_head_dim") else value
            shared = fields.switch("attention_k_eq_v")
            kv_heads = fields.count("num_global_key_value_heads") or kv_heads if shared else kv_heads
        gate = family.gate if fields.get("attn_output_gate", default=True) else ""
        queries, keys, values = heads * key, kv_heads * key, 0 if shared else kv_heads * value
        matrices["self_attn.qkv_proj"] = (queries * (2 if gate == "query" else 1) + keys + values, hidden)
        matrices["self_attn.o_proj"] = (hidden, heads * value)
        if gate in ("full", "head"):
            matrices["self_attn.g_proj"] = (queries if gate == "full" else heads, hidden)
        biased = self.biased("attention_bias")
        other = (biased or family.qkv_bias) * (queries + keys + values) + (biased and family.output_bias) * hidden
        norm = "head" if not family.qk_norm and family is FAMILIES["glm4_moe"] and fields.switch("use_qk_norm") else ""
        norm = family.qk_norm or norm
        fields.seen.update(("use_qk_norm", "qk_norm_type", "attention_output_gate", "head_dim"))
        if not fields.config.get("hidden_size_per_layer_input"):
            fields.seen.add("vocab_size_per_layer_input")
        other += {"head": 2 * key, "layer": queries + keys, "": 0}[norm]
        sinks = fields.get("add_swa_attention_sink_bias" if slides else "add_full_attention_sink_bias")
        other += (kind in family.sinks if sinks is None else sinks) * heads
        picked, index = None, (0, 0)
        if indexed:
            picked, index, more = self._block_indexer(matrices)
            other += more
        window = self.window if slides else None
        return other, LayerAttention(heads, kv_heads, key, value, key + value, window, picked, *index)

    def _block_indexer(self, matrices: dict[str, tuple[int, int]]) -> tuple[int, tuple[int, int], int]:
        """Add MiniMax-M3's indexer; return the tokens that it picks, its heads and width, and its norms."""
        sparse = self.fields.get("sparse_attention_config")
        heads, width = (positive(n, sparse.get(n)) for n in ("sparse_num_index_heads", "sparse_index_dim"))
        picked = prod(positive(n, sparse.get(n)) for n in ("sparse_topk_blocks", "sparse_block_size"))
        matrices["self_attn.indexer.qk_proj"] = ((heads + 1) * width, self.hidden)
        return picked, (heads, width), 2 * width

    def _latent(self, matrices: dict[str, tuple[int, int]], indexed: bool) -> tuple[int, LayerAttention]:
        """Add latent attention, with an indexer; see `_attention`. Decoding absorbs kv_b into queries and output."""
        fields, hidden, heads = self.fields, self.hidden, self.heads
        rank, value = fields.size("kv_lora_rank"), fields.size("v_head_dim")
        rope, nope = fields.count("qk_rope_head_dim"), fields.size("qk_nope_head_dim")
        fields.seen.update(("num_key_value_heads", "head_dim", "qk_head_dim", "mla_use_nope"))
        wide, other = fields.count("q_lora_rank"), rank
        if wide:
            matrices["self_attn.q_a_proj"] = (wide, hidden)
            other += wide
        matrices["self_attn.q_b_proj"] = (heads * (nope + rope), wide or hidden)
        matrices["self_attn.kv_a_proj_with_mqa"] = (rank + rope, hidden)
        matrices["self_attn.kv_b_proj"] = (heads * (nope + value), rank)
        matrices["self_attn.o_proj"] = (hidden, heads * value)
        if self.biased("attention_bias"):
            other += wide + rank + rope + hidden
        picked = fields.count("index_topk") or None
        index = (fields.size("index_n_heads"), fields.size("index_head_dim")) if indexed else (0, 0)
        if indexed:
            matrices["self_attn.indexer.wq_b"] = (prod(index), wide)
            matrices["self_attn.indexer.wk"] = (index[1], hidden)
            matrices["self_attn.indexer.weights_proj"] = (index[0], hidden)
            other += 2 * index[1]
            if pooled := fields.count("index_kpool"):  # of GLM-5.3 Flash
                fields.seen.update(("index_kpool_compress", "index_kpool_always_select_tail"))
                matrices["self_attn.indexer.index_kpool_compress_gate"] = (index[1], hidden)
                other += pooled * index[1]
        return other, LayerAttention(heads, 1, rank + rope, rank, rank + rope, None, picked, *index)

    def _linear(self, matrices: dict[str, tuple[int, int]]) -> tuple[int, int]:
        """Add gated delta networks (Qwen3-Next) or Kimi's; return other weights, and the bytes of the state."""
        fields, hidden = self.fields, self.hidden
        if nested := fields.get("linear_attn_config"):
            fields.seen.update(("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim", "linear_lower_bound"))
            heads, size, kernel = (
                positive(n, nested.get(n)) for n in ("num_heads", "head_dim", "short_conv_kernel_size")
            )
            inner = heads * size
            matrices["self_attn.qkv_proj"] = (3 * inner, hidden)
            for name in ("f", "g"):
                matrices[f"self_attn.{name}_a_proj"], matrices[f"self_attn.{name}_b_proj"] = (
                    (size, hidden),
                    (inner, size),
                )
            matrices["self_attn.b_proj"], matrices["self_attn.o_proj"] = (heads, hidden), (hidden, inner)
            return 3 * inner * kernel + inner + heads + size, 4 * inner * size + 2 * 3 * inner * (kernel - 1)
        keys = fields.size("linear_num_key_heads") * fields.size("linear_key_head_dim")
        heads, size = fields.size("linear_num_value_heads"), fields.size("linear_value_head_dim")
        kernel, values = fields.size("linear_conv_kernel_dim"), heads * size
        matrices["linear_attn.in_proj_qkv"] = (2 * keys + values, hidden)
        matrices["linear_attn.in_proj_z"] = (values, hidden)
        matrices["linear_attn.in_proj_ba"] = (2 * heads, hidden)
        matrices["linear_attn.out_proj"] = (hidden, values)
        state = 4 * values * fields.size("linear_key_head_dim") + 2 * (2 * keys + values) * (kernel - 1)
        return (2 * keys + values) * kernel + 2 * heads + size, state

    def _mamba(self, matrices: dict[str, tuple[int, int]]) -> int:
        """Add Mamba 2; return other weights."""
        fields, hidden = self.fields, self.hidden
        inner, mixed, kernel = self._mamba_sizes()
        heads = fields.size("mamba_num_heads")
        matrices["mixer.in_proj"] = (inner + mixed + heads, hidden)
        matrices["mixer.out_proj"] = (hidden, inner)
        biases = fields.switch("use_bias") * (inner + mixed + heads + hidden)
        fields.seen.add("expand")
        return mixed * (kernel + fields.switch("use_conv_bias", True)) + 3 * heads + inner + biases

    def _mamba_sizes(self) -> tuple[int, int, int]:
        """Return the inner width, the width that is convolved, and the kernel's length."""
        fields = self.fields
        inner = fields.size("mamba_num_heads") * fields.size("mamba_head_dim")
        mixed = inner + 2 * fields.size("n_groups") * fields.size("ssm_state_size")
        return inner, mixed, fields.size("conv_kernel")

    def _mamba_state(self) -> int:
        """Return the bytes of Mamba 2's state, in fp32, and of its convolution's."""
        inner, mixed, kernel = self._mamba_sizes()
        return 4 * inner * self.fields.size("ssm_state_size") + 2 * mixed * (kernel - 1)

    def _hyper_connections(self, matrices: dict[str, tuple[int, int]]) -> int:
        """Add the mixing of several residual streams before attention and MLP; return other weights."""
        if not self.fields.switch("mhc"):
            return 0
        streams = self.fields.size("hc_mult")
        rows = streams * (streams + 2)
        for name in ("attn_hc", "ffn_hc"):
            matrices[name] = (rows, streams * self.hidden)
        return 2 * (rows + 3)


def _refuse_unread(fields: _Fields, layers: int) -> None:
    """Raise CostError for the first field that was not read and may change what is counted."""
    unread = [(name, value) for name, value in fields.config.items() if name not in fields.seen and value]
    lists = {name for name, value in unread if isinstance(value, list) and len(value) >= max(layers, 2)}
    for name, _ in sorted(unread, key=lambda field: field[0] not in lists):
        harmless = "quant" in name or (_HARMLESS.search(name) and not _ID_LISTS.search(name))
        if not harmless and (name in lists or _WEIGHTY.search(name)):
            raise CostError(f"{name} is not understood, and may change what a layer holds: {OWN_SWEEP}, {BY_HAND}")
