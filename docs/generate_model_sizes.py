"""Write docs/reference/model_sizes.md: sizes as read from each config.json, by transformers and by the card.

Needs the repository's root on PYTHONPATH: `PYTHONPATH=. python docs/generate_model_sizes.py`, some minutes.
"""

import re
from pathlib import Path

from simulate.model_sizes.hf_config import known_models, text_part
from simulate.model_sizes.model_shape import Shape
from tests.simulate.model_sizes.test_hf_config_parameters import CARDS, covered, real_counts

PAGE = Path(__file__).parent / "reference" / "model_sizes.md"
OPENING = """# Sizes of models

<!-- Written by docs/generate_model_sizes.py. Do not edit. -->

Weights in billions as `treeopt models` reads them from each `config.json` alone, of transformers' model on the `meta`
device (without vision parts), and as the model's name or card states them. Active weights are those that a token needs:
the LM head, no embedding that is only looked up. MTP modules do not count; cards may count them. K/V bytes are those of
a token in bf16. Models of equal sizes share a row.

| model | read | active | transformers | active | card | K/V bytes | state MB |
|---|---|---|---|---|---|---|---|
"""
STATED = {  # total and active, where the name does not say
    "openai/gpt-oss-120b": "117, 5.1",
    "openai/gpt-oss-20b": "21, 3.6",
    "deepseek-ai/DeepSeek-V3": "671, 37",
    "moonshotai/Kimi-K2-Instruct": "1000, 32",
    "MiniMaxAI/MiniMax-M2.5": "230, 10",
    "MiniMaxAI/MiniMax-M1-80k": "456, 45.9",
    "ibm-granite/granite-4.0-h-small": "32, 9",
    "ibm-granite/granite-4.0-h-tiny": "7, 1",
    "ibm-granite/granite-4.0-h-micro": "3",
    "zai-org/GLM-4.6": "355, 32",
    "zai-org/GLM-5": "744, 40",
    "XiaomiMiMo/MiMo-V2-Flash": "309, 15",
    "mistralai/Mixtral-8x7B-v0.1": "46.7, 12.9",
    "mistralai/Mixtral-8x22B-v0.1": "141, 39",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": "109, 17 (with vision)",
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct": "400, 17 (with vision)",
}


def card(names: list[str]) -> str:
    """Return what a card or name states."""
    for name in names:
        if name in STATED:
            return STATED[name]
        if name in CARDS:
            return f"{CARDS[name]:g}"
    for name in names:
        if sizes := re.search(r"-(\d+(?:\.\d+)?)([BT])(?:-A(\d+(?:\.\d+)?)B)?\b", name, re.IGNORECASE):
            total = float(sizes[1]) * (1000 if sizes[2].upper() == "T" else 1)
            return f"{total:g}" + (f", {sizes[3]}" if sizes[3] else "")
    return ""


def of_transformers(name: str) -> str | None:
    """Return total and active weights of transformers' model, in billions; None without a class."""
    try:
        return " | ".join(f"{n / 1e9:.3f}" for n in real_counts(known_models()[name], covered()[name].experts))
    except KeyError:
        return None


def main() -> None:
    """Write the page."""
    rows: dict[tuple[int, int], list[str]] = {}
    for name, shape in covered().items():
        if isinstance(shape, Shape):
            rows.setdefault((shape.parameters, shape.kv_bytes), []).append(name)
    text = OPENING
    for names in rows.values():
        shape = covered()[names[0]]
        real = next(filter(None, map(of_transformers, names)), "no class | ")
        same = "" if len(names) == 1 else f" and {len(names) - 1} more"
        read = f"{shape.parameters / 1e9:.3f} | {shape.step_parameters / 1e9:.3f}"
        kept = f"{shape.kv_bytes} | {shape.state_bytes / 1e6:.1f}"
        text += f"| {names[0]}{same} | {read} | {real} | {card(names)} | {kept} |\n"
    text += "\nWithout a price, by the field that is not understood:\n\n"
    for name, said in covered().items():
        if not isinstance(said, Shape):
            text += f"- {name} ({text_part(known_models()[name])['model_type']}): `{said.split()[0]}`\n"
    PAGE.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
