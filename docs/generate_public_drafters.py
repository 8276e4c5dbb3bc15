"""Write docs/reference/public_drafters.md: public configurations of drafters, read as small random checkpoints.

`public_drafters.json` beside it has the configurations. Widths, heads and vocabularies are made small here; names of
tensors and all other settings are the published ones.
"""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from executor.checkpoints import assumptions_of, load_drafter
from executor.target.target_model import Target
from treeopt.errors import ExecutorError

FOLDER = Path(__file__).parent / "reference"
DATA, PAGE = FOLDER / "public_drafters.json", FOLDER / "public_drafters.md"
HIDDEN, BETWEEN, HEADS, WIDTH, VOCABULARY, DRAFTED = 32, 48, 4, 8, 64, 40
HEAD = """# Public configurations of drafters

Each configuration was written beside a small random checkpoint with the names of tensors that its trainer gives, and
read by treeopt. Widths, heads and vocabularies are small; all other settings are the published ones. The published
weights were not opened. `python docs/generate_public_drafters.py` writes this page from `public_drafters.json`.

| drafter | configuration | result | why, or what is assumed |
|---|---|---|---|
"""


def target_of(entry: dict[str, Any]) -> Target:
    """Return a small target whose configuration has as many layers as the drafter's."""
    torch.manual_seed(0)
    sizes = {"hidden_size": HIDDEN, "intermediate_size": BETWEEN, "vocab_size": VOCABULARY}
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": 2, "num_hidden_layers": 1}
    target = Target(LlamaForCausalLM(LlamaConfig(**sizes, **heads)), name="target")
    # Readers look at the configuration alone; the layers themselves would only take time.
    target.model.config.num_hidden_layers = entry["target_layers"]
    target.model.config.model_type = entry["target_type"]
    return target


def small(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration with small widths; nested parts too."""
    made = {name: small(part) if isinstance(part, dict) else part for name, part in config.items()}
    heads, keys = config.get("num_attention_heads"), config.get("num_key_value_heads")
    sizes = {
        "hidden_size": HIDDEN,
        "target_hidden_size": None if config.get("target_hidden_size") is None else HIDDEN,
        "intermediate_size": BETWEEN,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS if keys == heads else 2,
        "head_dim": WIDTH,
        "vocab_size": VOCABULARY,
        "mask_token_id": VOCABULARY - 1,
        "truncated_vocab_size": DRAFTED if "model" not in str(config.get("architectures")).lower() else VOCABULARY,
    }
    if config.get("draft_vocab_size") is not None:
        made["draft_vocab_size"] = VOCABULARY if config["draft_vocab_size"] == config.get("vocab_size") else DRAFTED
    return made | {name: size for name, size in sizes.items() if name in config}


def layer(first: bool, config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a decoder layer; the first one of EAGLE-3 reads pairs."""
    keys = (config.get("num_key_value_heads") or HEADS) * WIDTH
    wide = 2 * HIDDEN if first else HIDDEN
    shapes = {"q": (HEADS * WIDTH, wide), "k": (keys, wide), "v": (keys, wide), "o": (HIDDEN, HEADS * WIDTH)}
    return {
        **{f"self_attn.{part}_proj.weight": shape for part, shape in shapes.items()},
        "mlp.gate_proj.weight": (BETWEEN, HIDDEN),
        "mlp.up_proj.weight": (BETWEEN, HIDDEN),
        "mlp.down_proj.weight": (HIDDEN, BETWEEN),
        "post_attention_layernorm.weight": (HIDDEN,),
    }


def shapes_of(names: str, config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a drafter as its trainer names them."""
    inner = config.get("transformer_layer_config", config)
    if names == "medusa":
        heads = range(config["medusa_num_heads"])
        block = {
            f"{k}.0.linear.{part}": (HIDDEN,) * (2 if part == "weight" else 1)
            for k in heads
            for part in ("weight", "bias")
        }
        return block | {f"{k}.1.weight": (VOCABULARY, HIDDEN) for k in heads}
    if names == "vllm-medusa":
        heads = range(config["num_heads"])
        return {f"blocks.{k}.layers.0.weight": (HIDDEN, HIDDEN) for k in heads} | {
            f"lm_heads.{k}.weight": (VOCABULARY, HIDDEN) for k in heads
        }
    if names == "hydra":
        shapes: dict[str, tuple[int, ...]] = {}
        for k in range(config["hydra_num_heads"]):
            wide = (k + 2) * HIDDEN
            for part in ("linear", "res_connection"):
                shapes |= {f"hydra_mlp.{k}.0.{part}.weight": (HIDDEN, wide), f"hydra_mlp.{k}.0.{part}.bias": (HIDDEN,)}
            shapes |= {f"hydra_lm_head.{k}.weight": (VOCABULARY, HIDDEN), f"hydra_lm_head.{k}.bias": (VOCABULARY,)}
        return shapes
    if names == "eagle":
        bias = {} if config.get("bias") is False else {"fc.bias": (HIDDEN,)}
        own = {f"layers.0.{name}": shape for name, shape in layer(False, inner).items()}
        return {"fc.weight": (HIDDEN, 2 * HIDDEN), **bias, **own}
    if names in ("dflash", "mtp"):
        prefix = "layers.{}." if names == "dflash" else "mtp.layers.{}."
        own = {
            prefix.format(n) + name: shape
            for n in range(config["num_hidden_layers"])
            for name, shape in layer(False, inner).items()
        }
        outer, wide = ("", 5) if names == "dflash" else ("mtp.", 2)
        norms = (
            ("norm", "hidden_norm") if names == "dflash" else ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")
        )
        own |= {f"{outer}{name}.weight": (HIDDEN,) for name in norms}
        if names == "dflash":
            layers = range(config["num_hidden_layers"])
            own |= {f"layers.{n}.self_attn.{part}_norm.weight": (WIDTH,) for n in layers for part in "qk"}
            own |= {f"layers.{n}.input_layernorm.weight": (HIDDEN,) for n in layers}
        return own | {f"{outer}fc.weight": (HIDDEN, wide * HIDDEN)}
    return eagle3(names, config, inner)


def eagle3(names: str, config: dict[str, Any], inner: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the tensors of EAGLE-3 and what is made of it."""
    prefix = {"specforge": "midlayer.", "reference": "midlayer.", "automodel": "model.layers.0."}.get(
        names, "layers.0."
    )
    outer = "model." if names == "automodel" else ""
    own = layer(True, inner) | {"input_layernorm.weight": (HIDDEN,), "hidden_norm.weight": (HIDDEN,)}
    if names == "speculators-qwen3":
        own |= {f"self_attn.{part}_norm.weight": (WIDTH,) for part in "qk"}
    if names == "experts":
        own = {name: shape for name, shape in own.items() if "mlp" not in name}
        own |= {"mlp.gate.weight": (4, HIDDEN), "mlp.experts.0.up_proj.weight": (BETWEEN, HIDDEN)}
    if names == "mla":
        own = {name: shape for name, shape in own.items() if "self_attn" not in name}
        own |= {"self_attn.q_a_proj.weight": (8, 2 * HIDDEN), "self_attn.kv_a_proj_with_mqa.weight": (8, 2 * HIDDEN)}
    shapes = {prefix + name: shape for name, shape in own.items()} | {f"{outer}norm.weight": (HIDDEN,)}
    if names != "no-fc":
        shapes[f"{outer}fc.weight"] = (HIDDEN, 3 * HIDDEN)
    if names in ("specforge", "speculators", "speculators-qwen3", "automodel"):
        shapes[f"{outer}embed_tokens.weight"] = (VOCABULARY, HIDDEN)
    if config.get("fc_norm"):
        shapes |= {f"{outer}fc_norm.{i}.weight": (HIDDEN,) for i in range(3)}
    if config.get("norm_before_fc"):
        shapes["input_norm.weight"] = (3 * HIDDEN,)
    if names == "peagle":
        shapes["mask_hidden"] = (1, 1, 3 * HIDDEN)
    drafted = config.get("draft_vocab_size", config.get("truncated_vocab_size"))
    return shapes if drafted is None else shapes | {"lm_head.weight": (drafted, HIDDEN)}


def tensors_of(entry: dict[str, Any], config: dict[str, Any]) -> dict[str, Tensor]:
    """Return random tensors, and the mapping of a small vocabulary as trainers write it: by frequency."""
    torch.manual_seed(1)
    tensors = {name: torch.randn(shape) / 8 for name, shape in shapes_of(entry["names"], config).items()}
    drafted = len(tensors["lm_head.weight"]) if "lm_head.weight" in tensors else VOCABULARY
    if drafted < VOCABULARY:
        ids = torch.randperm(VOCABULARY)[:drafted]
        chosen = torch.zeros(VOCABULARY, dtype=torch.bool)
        chosen[ids] = True
        tensors |= {"d2t": ids - torch.arange(drafted), "t2d": chosen}
    return tensors


def results() -> Iterator[tuple[dict[str, Any], str, str]]:
    """Yield each configuration, whether it was read or refused, and the reader's words."""
    for entry in json.loads(DATA.read_text("utf-8")):
        config = small(entry["config"])
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder)
            save_file(tensors_of(entry, config), path / "model.safetensors")
            (path / "config.json").write_text(json.dumps(config))
            try:
                drafter = load_drafter(path, target_of(entry))
                kind, words = f"read: {drafter.kind}", "; ".join(assumptions_of(drafter))
            except ExecutorError as error:
                kind, words = "refused", str(error)
        for name in ("config.json: ", "model.safetensors: "):
            words = words.replace(f"{path / name}", "")
        yield entry, kind, words


def page() -> str:
    """Return the page."""
    rows = [f"| {e['name']} | {e['source']} | {kind} | {words} |" for e, kind, words in results()]
    return HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
