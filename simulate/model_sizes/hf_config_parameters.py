"""The layers that a config.json describes: one reader of transformers' field names, and a table of what they leave out.

Counts weights, numbers in the cache and states of attention (grouped, latent, sparse, with windows or chunks), linear
attention, state space, dense layers and experts. A field that is not read, and is a list per layer or names attention,
experts or states, is refused by name.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from simulate.model_sizes.gguf_header import MODEL_DATA
from simulate.model_sizes.hf_config import FIELDS, OWN_SWEEP, positive, text_part
from simulate.model_sizes.layer_weights_and_kv import Experts, LayerAttention, LayerGroup, LayerMatrix
from simulate.model_sizes.stored_bytes import StoredBytes
from treeopt.errors import CostError
from treeopt.storage.typed_records import read_record
from treeopt.storage.user_files import shipped_json

MOST = 2**16  # layers of a model
BY_HAND = "or give its sizes with --sizes params=..,active=..,kv_bytes=.."


@dataclass(frozen=True)
class _Family:
    """The properties of a model class that its config.json does not state.

    Attributes:
        names: its model_types.
        gated: MLPs have a gate.
        tied: the LM head is the embedding where the field is missing.
        qkv_bias: queries, keys and values have biases.
        output_bias: `attention_bias` also gives the output projection one.
        biases: `attention_bias` and `mlp_bias` are read.
        qk_norm: weights of the norms of queries and keys: of a "head", of a whole "layer", or as "stated".
        norms: norms of the model's width in a layer.
        gate: gate of the attention's output: "query" (a second query), "full", or "head" (one number a head).
        sinks: kinds of layers that have sinks.
        router_bias: the router has a bias.
        expert_bias: experts have biases.
        shared: shared experts that no field states, of the width of the dense `intermediate_size`.
        shared_gate: shared experts have a gate.
        beside: experts stand beside the MLP, with norms and scales of their own (Gemma 4).
        windows: layers with the window where no list says: "all", all but those of `sliding_window_pattern`, those
            "later" than `max_window_layers`, "chunks" in layers with positions, "never"; "": not known.
        kinds: kinds of layers, repeated, where no list has one per layer.
        attending: the field that lists the layers with attention; the others are of `kinds`.
        lightning: linear attention is MiniMax's.
        defaults: values of fields that are missing.
        ignored: fields that change nothing that is counted.
        requires: fields without which transformers' class differs from what is read here.
    """

    names: tuple[str, ...] = ()
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
    kinds: tuple[str, ...] = ()
    attending: str = ""
    lightning: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()


@cache
def _families() -> Mapping[str, _Family]:
    """Return the families by model_type; data/model_configs.json has them as transformers' classes are."""
    rows = read_record(shipped_json(MODEL_DATA)["families"], tuple[_Family, ...])
    return {name: family for family in rows for name in family.names}


DENSE = ("arcee", "gemma", "llama", "mistral", "qwen2", "qwen3")  # families that drafters' layers may be of
_WINDOWS = ("sliding_window", "sliding_window_size", "attention_chunk_size", "use_sliding_window", "max_window_layers")
MOE_K = ("moe_topk", "moe_k")  # of LongCat and Hunyuan, of ERNIE
SHARED = ("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts")
_OPTIONAL = ("num_key_value_heads", "intermediate_size")
_LISTS = re.compile("layer_ids$|source|(multiplier|scale|factor)s$")  # of layers, not of tokens


class _Fields:
    """The fields of a config.json, which remembers what was read."""

    def __init__(self, config: Mapping[str, Any], family: _Family) -> None:
        self.config, self.family, self.given = config, family, {**family.defaults, **config}
        self.seen = set(family.ignored)

    def get(self, *names: str, default: Any = None) -> Any:
        """Return the first of the fields that is given."""
        self.seen.update(names)
        return next((v for n in names if (v := self.given.get(n)) is not None), default)

    def read(self, *names: str) -> None:
        """Count fields as read that say what others say, or change nothing that is counted."""
        self.seen.update(names)

    def nested(self, name: str, *names: str) -> list[int]:
        """Return sizes of a nested part."""
        return [positive(f"{name}: {each}", self.get(name).get(each)) for each in names]

    def size(self, *names: str, default: int | None = None) -> int:
        """Return a size; one that a list states for every layer, too."""
        given = next((name for name in names if self.config.get(name) is not None), names[0])
        value = self.get(*names, default=default)
        return positive(given, value[0] if isinstance(value, list) and value == value[:1] * len(value) != [] else value)

    def count(self, *names: str) -> int:
        """Return a size, 0 where it is missing, null or 0."""
        value = self.get(*names)
        return 0 if value is None or (type(value) is int and value == 0) else self.size(*names)

    def switch(self, name: str, default: bool = False) -> bool:
        """Return a boolean."""
        value = self.get(name, default=default)
        if not isinstance(value, bool):
            raise CostError(f"{name} must be true or false, got {value!r:.80}")
        return value

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


def sizes_of(config: Mapping[str, Any], stored: StoredBytes) -> dict[str, Any]:
    """Return the fields of a `Shape` that a parsed config.json states; `stored`: bytes of its weights.

    Raises:
        CostError: a field is wrong, missing or not covered; names it.

    >>> config = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 4}
    >>> sizes_of(config | {"intermediate_size": 16, "vocab_size": 32}, StoredBytes())["head_dim"]
    2
    """
    text = text_part(config)
    name = str(text.get("model_type"))
    family, notes = _families().get(name), []
    if family is None:
        family = _Family(gated=not re.search("gelu|relu|xielu", str(text.get("hidden_act"))))
        if missing := [field for field in FIELDS if text.get(field) is None and field not in _OPTIONAL]:
            raise CostError(
                f"model_type {name!r:.80} has no price, and {missing[0]} is missing: {OWN_SWEEP}, {BY_HAND}"
            )
        notes.append(f"model_type {name!r:.80} is not known: its layers are counted by the usual names of fields alone")
        if not family.gated:
            notes.append(
                f"MLPs are taken to have no gate, as those with hidden_act {text['hidden_act']!r:.80} mostly do"
            )
    if absent := [required for required in family.requires if required not in text]:
        raise CostError(f"{absent[0]} must be given for model_type {name}")
    fields = _Fields(text, family)
    layers = fields.get("num_hidden_layers")
    if layers is None:  # of Nemotron-H
        layers = len(fields.get("layers_block_type", "hybrid_override_pattern", default="")) or None
    layers, hidden = positive("num_hidden_layers", layers, most=MOST), fields.size("hidden_size")
    heads = fields.size("num_attention_heads")
    if text.get("head_dim") is None and not fields.get("kv_lora_rank") and hidden % heads:
        raise CostError(f"num_attention_heads must divide hidden_size, got {heads} and {hidden}")
    reader = _Reader(fields, stored, layers=layers, hidden=hidden, heads=heads)
    groups, experts = reader.groups(), reader.experts
    latent = bool(fields.get("kv_lora_rank"))
    sizes = {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "intermediate": reader.expert_width if experts else reader.dense_width,
        "kv_heads": heads if latent else fields.size("num_key_value_heads", default=heads),
        "head_dim": fields.size("v_head_dim") if latent else fields.size("head_dim", default=hidden // heads),
        "vocab": fields.size("vocab_size"),
        "tied": fields.switch("tie_embedding", fields.switch("tie_word_embeddings", family.tied)),
        "gated": family.gated,
        "experts": experts,
        "window": reader.window if all(g.attention and g.attention.window for g in groups) else None,
        "groups": groups,
        "head_bytes": stored.of("lm_head"),
        "embedding_bytes": stored.of("embed_tokens") if stored.sizes else None,
    }
    _refuse_unread(fields, layers)
    if stored.groups and not any(m.stored for group in groups for m in (*group.matrices, *group.expert_matrices)):
        raise CostError("quantization_config names no matrix of this model: give the bytes of a weight by hand")
    if family.tied and text.keys().isdisjoint(("tie_word_embeddings", "tie_embedding")):
        notes.append("tie_word_embeddings is missing: the LM head counts as the embedding, as in the family's class")
    return sizes | {"notes": (*notes, *stored.notes)}


class _Reader:
    """The layers of a config.json; what a layer multiplies and holds is gathered while it is read."""

    def __init__(self, fields: _Fields, stored: StoredBytes, *, layers: int, hidden: int, heads: int) -> None:
        self.fields, self.family, self.stored = fields, fields.family, stored
        self.layers, self.hidden, self.heads = layers, hidden, heads
        self.matrices: dict[str, tuple[int, int]] = {}  # by their names in checkpoints
        self.other = 0  # weights of a layer beside its matrices
        totals = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
        count = fields.count(*totals)
        names = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "experts_per_token", *MOE_K)
        if any(len({str(fields.given.get(name)) for name in same} - {"None"}) > 1 for same in (totals, names)):
            raise CostError(f"{', '.join(totals)} must agree where several are given, and {', '.join(names)}")
        self.experts = Experts(count, fields.size(*names)) if count else None
        widths = ("intermediate_size_mlp", "dense_intermediate_size", "block_ff_dim", "intermediate_size")
        self.dense_width = (0 if count else fields.count("shared_intermediate_size")) or fields.count(*widths)
        if fields.switch("block_auto_adjust_ff_dim"):  # of LFM2
            width, part = 2 * self.dense_width // 3, fields.size("block_multiple_of")
            self.dense_width = -(-int(fields.get("block_ffn_dim_multiplier", default=1) * width) // part) * part
        self.expert_width = fields.size("moe_intermediate_size", "intermediate_size") if count else 0
        self.window: int | None = None

    def biased(self, name: str) -> bool:
        """Return whether a field gives biases to a class that reads it."""
        return self.fields.switch(name) and self.family.biases

    def groups(self) -> tuple[LayerGroup, ...]:
        """Return the layers, those that are alike together, in the order in which kinds first appear."""
        kinds, sparse, indexed = self._kinds(), self._sparse(), self._indexed()
        if "sliding_attention" in kinds:
            self.window = self.fields.size("sliding_window", "sliding_window_size", "attention_chunk_size")
        found = Counter(self._layer(i, *place) for i, place in enumerate(zip(kinds, sparse, indexed, strict=True)))
        return tuple(replace(group, count=count) for group, count in found.items())

    def _kinds(self) -> list[str]:
        """Return the kind of each layer's mixer."""
        fields, n, windows = self.fields, self.layers, self.family.windows
        slides = [False] * n
        for name in ("layer_types", "layers_block_type", "hybrid_override_pattern"):
            if (kinds := fields.listed(name, n)) is not None:
                fields.read("full_attention_interval", "sliding_window_pattern", "linear_attn_config", *_WINDOWS)
                fields.read("no_rope_layers", "no_rope_layer_interval", "_sliding_window_pattern")
                fields.read(self.family.attending)
                if windows == "later" and not fields.switch("use_sliding_window"):
                    return ["full_attention"] * n
                known = shipped_json(MODEL_DATA)["layer_kinds"]
                if unknown := [kind for kind in kinds if kind not in known]:
                    raise CostError(f"{name}: {unknown[0]!r:.80} is no kind of layer that is counted: {OWN_SWEEP}")
                return [known[kind] for kind in kinds]
        if (types := fields.listed("attn_type_list", n)) is not None:  # of MiniMax
            return ["full_attention" if each else "linear_attention" for each in types]
        if mixers := self.family.kinds:
            attending = fields.get(self.family.attending, default=())
            if isinstance(attending, Mapping):  # of Kimi, counted from 1
                attending = [i - 1 for i in attending.get("full_attn_layers", ())]
            if self.family.attending and not attending:
                raise CostError(f"{self.family.attending} or layer_types must list the layers with attention")
            return ["full_attention" if i in attending else mixers[i % len(mixers)] for i in range(n)]
        linear = fields.get("linear_num_value_heads") or fields.get("short_conv_kernel_size")
        if (interval := fields.count("full_attention_interval", "layer_group_size")) and linear:
            return ["linear_attention" if (i + 1) % interval else "full_attention" for i in range(n)]
        if (pattern := fields.listed("hybrid_layer_pattern", n)) is not None:  # of MiMo-V2
            slides = [bool(entry) for entry in pattern]
        elif windows == "later" and fields.switch("use_sliding_window") and fields.get("sliding_window"):
            slides = [i >= fields.size("max_window_layers") for i in range(n)]
        elif windows == "chunks" and fields.get("attention_chunk_size"):
            every = fields.size("no_rope_layer_interval")
            slides = [bool(e) for e in fields.listed("no_rope_layers", n) or [(i + 1) % every for i in range(n)]]
        elif windows == "pattern":
            every = fields.size("sliding_window_pattern")
            slides = [bool((i + 1) % every) for i in range(n)]
        elif windows == "all":
            slides = [fields.get("sliding_window") is not None] * n
        if any(slides) or windows or fields.get("use_sliding_window") is False:
            fields.read(*_WINDOWS)
        return ["sliding_attention" if each else "full_attention" for each in slides]

    def _sparse(self) -> list[bool]:
        """Return whether a layer has experts."""
        fields, n = self.fields, self.layers
        if self.experts is None or not fields.get("enable_moe_block", default=True):
            return [False] * n
        first = fields.count("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index")
        every = fields.get("moe_layer_freq", default=1)
        only, named = fields.get("mlp_only_layers", default=[]), fields.get("moe_layers")
        step = fields.size("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval", default=1)
        if (kinds := fields.listed("mlp_layer_types", n)) is not None:
            return [kind == "sparse" for kind in kinds]
        if (entries := fields.listed("moe_layer_freq", n)) is not None:
            return [bool(entry) for entry in entries]
        if isinstance(named, list):
            return [i in named for i in range(n)]
        every = positive("moe_layer_freq", every)
        return [i >= first and i % every == 0 and i not in only and (i + 1) % step == 0 for i in range(n)]

    def _indexed(self) -> list[bool]:
        """Return whether a layer has an indexer of its own."""
        fields, n = self.fields, self.layers
        if (sparse := fields.get("sparse_attention_config")) is not None:  # of MiniMax-M3
            return [bool(entry) for entry in sparse.get("sparse_attention_freq", [1] * n)[:n]]
        if not fields.config.get("index_topk") or not fields.get("kv_lora_rank"):
            return [False] * n
        if kinds := fields.listed("indexer_types", n):
            fields.read("index_topk_freq", "index_topk_pattern", "index_skip_topk_offset")  # say the same
        return [kind == "full" for kind in kinds or ["full"] * n]

    def _layer(self, i: int, kind: str, sparse: bool, indexed: bool) -> LayerGroup:
        """Return a layer of one kind."""
        self.matrices, self.other = {}, self.family.norms * self.hidden
        state, attention = 0, None
        if own := self.fields.listed("num_attention_heads_per_layer", self.layers):
            self.heads = positive("num_attention_heads_per_layer", own[i])
        mamba = self.fields.get("mamba_num_heads", "mamba_n_heads")
        if kind in ("mamba", "hybrid") or (kind == "linear_attention" and mamba):
            state = self._mamba()
        elif kind == "linear_attention":
            state = self._linear()
        elif kind == "conv":
            state = self._short_convolution()
        if kind in ("full_attention", "sliding_attention", "hybrid"):
            latent = self.fields.get("kv_lora_rank")
            attention = self._latent(indexed) if latent else self._attention(kind, indexed)
        if self.fields.switch("mhc"):  # several residual streams are mixed before attention and MLP
            streams = self.fields.size("hc_mult")
            rows = streams * (streams + 2)
            self.matrices |= dict.fromkeys(("attn_hc", "ffn_hc"), (rows, streams * self.hidden))
            self.other += 2 * (rows + 3)
        alone = self.family.norms == 1  # a layer is either a mixer or an MLP
        routed: tuple[LayerMatrix, ...] = ()
        if experts := kind == "moe" or (sparse and not alone):
            routed = self._experts("experts" if self.family.beside else "mlp.experts", i)
        if kind == "mlp" or (not alone and (not sparse or self.family.beside)):
            self._mlp("mlp", positive("intermediate_size", self.dense_width or self.fields.get("intermediate_size")))
        matrices = tuple(LayerMatrix(*size, self.stored.of(name, i)) for name, size in self.matrices.items())
        group = LayerGroup(1, matrices, self.other, attention, state)
        if not experts:
            return group
        biases = self.family.expert_bias * sum(each.outputs for each in routed)
        return replace(group, experts=self.experts, expert_matrices=routed, expert_other=biases)

    def _mlp(self, prefix: str, width: int) -> None:
        """Add an MLP."""
        outputs = (1 + self.family.gated) * width
        self.matrices[f"{prefix}.gate_up_proj"] = (outputs, self.hidden)
        self.matrices[f"{prefix}.down_proj"] = (self.hidden, width)
        self.other += self.biased("mlp_bias") * (outputs + self.hidden)

    def _experts(self, name: str, i: int) -> tuple[LayerMatrix, ...]:
        """Add the router and shared experts; return the matrices of a routed expert."""
        fields, family, hidden, width = self.fields, self.family, self.hidden, self.expert_width
        if self.experts is None:
            raise CostError("a layer of experts needs their number, such as num_experts")
        count, inner = self.experts.count, fields.count("moe_latent_size") or hidden
        self.matrices["mlp.gate"] = (count, hidden)
        self.other += family.router_bias * count + family.beside * (4 * hidden + count)
        if inner != hidden:
            self.matrices |= {"mlp.fc1_latent_proj": (inner, hidden), "mlp.fc2_latent_proj": (hidden, inner)}
        counted = fields.count(*SHARED) or family.shared
        names = ("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "share_expert_dim")
        if shared := fields.count(*names, "shared_intermediate_size") or counted * width:
            self._mlp("mlp.shared_experts", shared)
            self.other += family.shared_gate * hidden
        stored = self.stored.of(name, i)
        return LayerMatrix((1 + family.gated) * width, inner, stored), LayerMatrix(inner, width, stored)

    def _attention(self, kind: str, indexed: bool) -> LayerAttention:
        """Add attention; return its keys and values."""
        fields, family, hidden = self.fields, self.family, self.hidden
        slides, shared, heads = kind == "sliding_attention", False, self.heads
        kv_heads = fields.size("num_key_value_heads", default=heads)
        key = fields.size("head_dim", default=hidden // heads)
        value = fields.size("v_head_dim", default=key)
        if slides:  # of MiMo-V2
            heads = fields.size("swa_num_attention_heads", default=heads)
            kv_heads = fields.size("swa_num_key_value_heads", default=kv_heads)
            key, value = fields.size("swa_head_dim", default=key), fields.size("swa_v_head_dim", default=value)
        elif wide := fields.count("global_head_dim"):  # of Gemma 4
            key = value = wide
            if shared := fields.switch("attention_k_eq_v"):
                kv_heads = fields.size("num_global_key_value_heads", default=kv_heads)
        gate = family.gate if fields.get("attn_output_gate", default=True) else ""
        queries, keys, values = heads * key, kv_heads * key, 0 if shared else kv_heads * value
        self.matrices["self_attn.qkv_proj"] = ((1 + (gate == "query")) * queries + keys + values, hidden)
        self.matrices["self_attn.o_proj"] = (hidden, heads * value)
        if gate in ("full", "head"):
            self.matrices["self_attn.g_proj"] = (queries if gate == "full" else heads, hidden)
        biased = self.biased("attention_bias")
        norm = family.qk_norm if family.qk_norm != "stated" else "head" if fields.switch("use_qk_norm") else ""
        fields.read("use_qk_norm", "qk_norm_type", "attention_output_gate", "head_dim")
        if not fields.get("hidden_size_per_layer_input"):
            fields.read("vocab_size_per_layer_input")
        sinks = fields.get("add_swa_attention_sink_bias" if slides else "add_full_attention_sink_bias")
        self.other += (biased or family.qkv_bias) * (queries + keys + values) + (biased and family.output_bias) * hidden
        self.other += {"head": 2 * key, "layer": queries + keys, "": 0}[norm]
        self.other += (kind in family.sinks if sinks is None else sinks) * heads
        picked, index = None, (0, 0)
        if indexed:  # of MiniMax-M3
            names = ("sparse_num_index_heads", "sparse_index_dim", "sparse_topk_blocks", "sparse_block_size")
            count, width, blocks, size = fields.nested("sparse_attention_config", *names)
            picked, index = blocks * size, (count, width)
            self.matrices["self_attn.indexer.qk_proj"] = ((count + 1) * width, hidden)
            self.other += 2 * width
        window = self.window if slides else None
        return LayerAttention(heads, kv_heads, key, value, key + value, window, picked, *index)

    def _latent(self, indexed: bool) -> LayerAttention:
        """Add latent attention, with an indexer. Decoding absorbs kv_b into queries and output."""
        fields, hidden, heads = self.fields, self.hidden, self.heads
        rank, value = fields.size("kv_lora_rank"), fields.size("v_head_dim")
        rope, nope = fields.count("qk_rope_head_dim"), fields.size("qk_nope_head_dim")
        fields.read("num_key_value_heads", "head_dim", "qk_head_dim", "mla_use_nope")
        wide = fields.count("q_lora_rank")
        if wide:
            self.matrices["self_attn.q_a_proj"] = (wide, hidden)
        self.matrices["self_attn.q_b_proj"] = (heads * (nope + rope), wide or hidden)
        self.matrices["self_attn.kv_a_proj_with_mqa"] = (rank + rope, hidden)
        self.matrices["self_attn.kv_b_proj"] = (heads * (nope + value), rank)
        self.matrices["self_attn.o_proj"] = (hidden, heads * value)
        if self.family.gate == "head":
            self.matrices["self_attn.g_proj"] = (heads, hidden)
        self.other += wide + rank + self.biased("attention_bias") * (wide + rank + rope + hidden)
        picked, index = fields.count("index_topk") or None, (0, 0)
        if indexed:
            index = count, width = fields.size("index_n_heads"), fields.size("index_head_dim")
            self.matrices["self_attn.indexer.wq_b"] = (count * width, wide or hidden)
            self.matrices["self_attn.indexer.wk"] = (width, hidden)
            self.matrices["self_attn.indexer.weights_proj"] = (count, hidden)
            self.other += 2 * width
            if pooled := fields.count("index_kpool"):  # of GLM-5.3 Flash
                fields.read("index_kpool_compress", "index_kpool_always_select_tail")
                self.matrices["self_attn.indexer.index_kpool_compress_gate"] = (width, hidden)
                self.other += pooled * width
                index = count, max(1, width // pooled)  # one key is kept of so many tokens
        return LayerAttention(heads, 1, rank + rope, rank, rank + rope, None, picked, *index)

    def _linear(self) -> int:
        """Add MiniMax's lightning attention, or gated delta networks, Qwen3-Next's or Kimi's.

        Return the bytes of the state, which is fp32; MiniMax's is bf16.
        """
        fields, hidden = self.fields, self.hidden
        if self.family.lightning:
            size = fields.size("head_dim", default=hidden // self.heads)
            inner = self.heads * size
            self.matrices |= {"self_attn.qkv_proj": (3 * inner, hidden), "self_attn.output_gate": (inner, hidden)}
            self.matrices["self_attn.out_proj"] = (hidden, inner)
            self.other += inner
            return 2 * inner * size
        own, ling = ("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim"), "short_conv_kernel_size"
        if fields.get(ling) and not fields.get(own[0]):
            own = ("num_attention_heads", "head_dim", ling)
        if fields.get("linear_attn_config", own[0]):
            fields.read(*own, "linear_lower_bound")
            names = ("num_heads", "head_dim", "short_conv_kernel_size")
            nested = fields.get("linear_attn_config")
            heads, key, kernel = fields.nested("linear_attn_config", *names) if nested else map(fields.size, own)
            inner, mixed, size = heads * key, 3 * heads * key, key
            self.matrices |= {"self_attn.qkv_proj": (mixed, hidden), "self_attn.o_proj": (hidden, inner)}
            if fields.get(ling):  # gates of full rank
                self.matrices |= dict.fromkeys(("self_attn.f_proj", "self_attn.g_proj"), (inner, hidden))
            else:
                self.matrices |= dict.fromkeys(("self_attn.f_a_proj", "self_attn.g_a_proj"), (key, hidden))
                self.matrices |= dict.fromkeys(("self_attn.f_b_proj", "self_attn.g_b_proj"), (inner, key))
            self.matrices["self_attn.b_proj"] = (heads, hidden)
            self.other += inner - heads
        elif not fields.get("linear_num_value_heads"):
            raise CostError(f"linear attention without linear_num_value_heads is not counted: {OWN_SWEEP}, {BY_HAND}")
        else:
            heads, size = fields.size("linear_num_value_heads"), fields.size("linear_value_head_dim")
            key, kernel = fields.size("linear_key_head_dim"), fields.size("linear_conv_kernel_dim")
            inner = heads * size
            mixed = 2 * fields.size("linear_num_key_heads") * key + inner
            self.matrices |= {"linear_attn.in_proj_qkv": (mixed, hidden), "linear_attn.in_proj_z": (inner, hidden)}
            self.matrices["linear_attn.in_proj_ba"] = (2 * heads, hidden)
            self.matrices["linear_attn.out_proj"] = (hidden, inner)
        self.other += mixed * kernel + 2 * heads + size
        return 4 * inner * key + 2 * mixed * (kernel - 1)

    def _mamba(self) -> int:
        """Add Mamba 2; return the bytes of the state, in fp32."""
        fields, hidden = self.fields, self.hidden
        heads, state = fields.size("mamba_num_heads", "mamba_n_heads"), fields.size("ssm_state_size", "mamba_d_state")
        part, kernel = "mamba" if fields.get("mamba_n_heads") else "mixer", fields.size("conv_kernel", "mamba_d_conv")
        if width := fields.count("mamba_head_dim"):
            inner = heads * width
        else:
            inner = fields.count("mamba_d_ssm") or fields.size("mamba_expand") * hidden
        if inner % heads or fields.get("mamba_d_head", default="auto") not in ("auto", inner // heads):
            raise CostError(f"mamba_n_heads x mamba_d_head must be {inner}, as mamba_d_ssm or mamba_expand say")
        mixed = inner + 2 * fields.size("n_groups", "mamba_n_groups") * state  # what is convolved
        self.matrices[f"{part}.in_proj"] = (inner + mixed + heads, hidden)
        self.matrices[f"{part}.out_proj"] = (hidden, inner)
        fields.read("expand", "mamba_expand", "mamba_proj_bias")
        self.other += mixed * kernel + 3 * heads + fields.switch("mamba_rms_norm", True) * inner
        self.other += (fields.switch("use_conv_bias", True) and fields.switch("mamba_conv_bias", True)) * mixed
        into = fields.switch("use_bias") or (part == "mamba" and fields.switch("mamba_proj_bias"))
        out = fields.switch("projectors_bias", into)  # of Falcon-H1
        self.other += into * (inner + mixed + heads) + out * hidden
        return 4 * inner * state + 2 * mixed * (kernel - 1)

    def _short_convolution(self) -> int:
        """Add LFM2's gated convolution; return the bytes of its state."""
        fields, hidden = self.fields, self.hidden
        kernel = fields.size("conv_L_cache")
        self.matrices |= {"conv.in_proj": (3 * hidden, hidden), "conv.out_proj": (hidden, hidden)}
        self.other += hidden * kernel + fields.switch("conv_bias") * 5 * hidden
        return 2 * hidden * (kernel - 1)


def _refuse_unread(fields: _Fields, layers: int) -> None:
    """Raise CostError for the first field that was not read and may change what is counted."""
    unread = [(name, value) for name, value in fields.config.items() if name not in fields.seen and value]
    lists = {name for name, value in unread if isinstance(value, list) and len(value) >= max(layers, 2)}
    lists |= {name for name, value in unread if isinstance(value, Mapping) and str(layers - 1) in value}
    lists |= {name for name, value in unread if isinstance(value, str) and len(value) == layers > 4 > len(set(value))}
    off = tuple(f"{name[4:]}_" for name, value in fields.config.items() if name.startswith("use_") and not value)
    weighty, harmless = ("|".join(shipped_json(MODEL_DATA)["field_words"][kind]) for kind in ("weighty", "harmless"))
    for name, _ in sorted(unread, key=lambda field: field[0] not in lists):
        passed = "quant" in name or name.startswith(off) or (re.search(harmless, name) and not _LISTS.search(name))
        if not passed and (name in lists or re.search(weighty, name)):
            raise CostError(f"{name} is not understood, and may change what a layer holds: {OWN_SWEEP}, {BY_HAND}")
