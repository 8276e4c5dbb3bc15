"""Check that a model uses the positions that its config.json states; nothing is computed with weights.

A field is used if the rotary embedding that the model's own class makes of a changed field differs. A field that is not
used must agree with what is.
"""

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from executor.target.positions.field_names import BASES, DICTIONARIES, GLOBAL_BASES, LOCAL_BASES, SHARES, WIDTHS
from executor.target.positions.sliding_windows import unused_window
from treeopt.errors import ExecutorError

ALL_BASES = (*BASES, *LOCAL_BASES, *GLOBAL_BASES)
Fields = dict[str, Any]


class _Rotary:
    """The rotary embeddings that a model makes of changed fields of its config.json."""

    def __init__(self, model: PreTrainedModel, fields: Fields) -> None:
        """Take the classes of a model's rotary embeddings, and the fields of its config.json."""
        config: Any = model.config
        text = config.get_text_config()
        self.kind: type[PretrainedConfig] = type(config)
        self.fields = fields
        self.place = next((name for name in fields if text is not config and getattr(config, name, None) is text), None)
        found = [m for m in model.get_decoder().modules() if any(name.endswith("inv_freq") for name in _tensors(m))]
        self.classes: list[Any] = list({type(module): None for module in found})

    @property
    def text(self) -> Fields:
        """The fields of the text part."""
        return self.fields if self.place is None else self.fields[self.place]

    def config(self, text: Fields) -> Any:
        """Return the text configuration with other fields."""
        fields = text if self.place is None else {**self.fields, self.place: text}
        return self.kind.from_dict(copy.deepcopy(fields)).get_text_config()

    def made(self, text: Fields) -> dict[str, Tensor] | None:
        """Return the frequencies and what scales them, by name; None if these fields make no model."""
        try:
            config = self.config(text)
            modules: list[nn.Module] = [kind(config) for kind in self.classes]
        except Exception:  # noqa: BLE001 - a changed field may be impossible; configurations have classes of their own
            return None
        made = {f"{number} {name}": tensor for number, m in enumerate(modules) for name, tensor in _tensors(m).items()}
        for part in _parts(getattr(config, "rope_parameters", None)):
            if part.get("rope_type") == "dynamic":  # its factor matters later, when the text is long
                made |= {f"factor {len(made)}": torch.tensor(float(part.get("factor") or 1))}
        return made

    def uses(self, place: tuple[str, ...], value: float) -> bool:
        """Return whether the model differs if a field has half its value."""
        text = copy.deepcopy(self.text)
        part = text
        for name in place[:-1]:
            part = part[name]
        part[place[-1]] = value // 2 if isinstance(value, int) and place[-1] in WIDTHS else value / 2
        return not _equal(self.made(text), self.made(self.text))

    def rotates_shares(self, share: float, made: Mapping[str, Tensor]) -> bool:
        """Return whether the model's class rotates a share of each head; functions for other kinds always return it."""
        plain = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": share}
        others = {name: value for name, value in self.text.items() if name not in DICTIONARIES}
        expected = self.made({**others, "rope_parameters": plain})
        return expected is None or _widths(expected) == _widths(made)


def check_positions(path: Path | str, model: PreTrainedModel) -> tuple[str, ...]:
    """Refuse fields of positions in config.json that contradict the model; return warnings of windows without effect.

    Raises:
        ExecutorError: names the field, its value and what the model uses.
    """
    fields, _ = type(model.config).get_config_dict(path, local_files_only=True)
    rotary = _Rotary(model, fields)
    made = rotary.made(rotary.text)
    if made:
        where, name = Path(path) / "config.json", type(model).__name__
        _check_dictionaries(where, name, rotary, made)
        config = rotary.config(rotary.text)
        for place, value in _numbers(rotary.text, set(getattr(config, "layer_types", None) or ())):
            field, said = ".".join(place), f"{where}: {'.'.join(place)} is {value:g}"
            reason = _disagreement(place[-1], value, config, made)
            if reason is not None and not rotary.uses(place, value):
                raise ExecutorError(f"{said}, but {name} {reason} and does not read {field}: remove or correct it")
            if place[-1] in SHARES and value != 1 and not rotary.rotates_shares(value, made):
                raise ExecutorError(f"{said}, but {name} rotates whole heads: remove it, or name another model_type")
    return unused_window(path, model)


def _check_dictionaries(where: Path, name: str, rotary: _Rotary, made: dict[str, Tensor]) -> None:
    """Refuse `rope_scaling` beside a `rope_parameters` that means other positions."""
    both = [rotary.text.get(field) for field in DICTIONARIES]
    if not all(isinstance(part, dict) and part for part in both):
        return
    for field in DICTIONARIES:
        others = {key: value for key, value in rotary.text.items() if key != field}
        if not _equal(rotary.made(others), made):
            raise ExecutorError(
                f"{where}: rope_parameters {both[0]!r:.120} and rope_scaling {both[1]!r:.120} contradict each other in "
                f"{name}: remove one"
            )


def _disagreement(field: str, value: float, config: Any, made: Mapping[str, Tensor]) -> str | None:
    """Return what a model uses in place of a field's value; None where they agree."""
    widths = _widths(made)
    rope = [part for part in _parts(getattr(config, "rope_parameters", None)) if "rope_theta" in part]
    if field in ALL_BASES:
        bases = sorted({float(part["rope_theta"]) for part in rope})
        return f"has base {', '.join(f'{base:g}' for base in bases)}" if bases and float(value) not in bases else None
    if field == "factor":
        kinds = {part.get("rope_type") for part in _parts(getattr(config, "rope_parameters", None))} - {None}
        return "has positions of rope_type default" if value != 1 and kinds == {"default"} else None
    try:
        head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    except Exception:  # noqa: BLE001 - where heads differ between layers transformers raises a class of its own
        return None
    width = value if field in WIDTHS else int(head * value)
    agree = (field in WIDTHS and width == 0) or any(width in (size, size - 1) for size in widths)
    return None if agree else f"rotates {', '.join(map(str, widths))} of {head} numbers of a head"


def _widths(made: Mapping[str, Tensor]) -> list[int]:
    """Return how many numbers of a head are rotated, in order; they may differ between kinds of layers."""
    return sorted({2 * tensor.numel() for name, tensor in made.items() if name.endswith("inv_freq")})


def _numbers(text: Fields, kinds: set[str]) -> Iterator[tuple[tuple[str, ...], float]]:
    """Yield the fields of positions that are numbers: their places and values.

    Args:
        text: the fields of the text part.
        kinds: of the model's layers; dictionaries of other kinds are left out.
    """
    names = (*ALL_BASES, *SHARES, *WIDTHS)
    places: list[tuple[tuple[str, ...], Fields]] = [((), text)]
    for field in DICTIONARIES:
        held = text.get(field)
        if isinstance(held, dict):
            places.append(((field,), held))
            places += [((field, name), part) for name, part in held.items() if isinstance(part, dict) and name in kinds]
    for place, part in places:
        for name, value in part.items():
            known = name in names or (place and name == "factor")
            if known and isinstance(value, (int, float)) and not isinstance(value, bool):
                yield (*place, name), value


def _parts(rope: Any) -> list[Fields]:
    """Return a dictionary of positions, or those of each type of layer."""
    if not isinstance(rope, dict):
        return []
    return [rope, *(part for part in rope.values() if isinstance(part, dict))]


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return the frequencies of a rotary embedding, and what scales its sines."""
    found = {name: value for name, value in module.named_buffers(recurse=False) if name.endswith("inv_freq")}
    scales = {name: value for name, value in vars(module).items() if name.endswith("attention_scaling")}
    return found | {name: torch.tensor(float(value)) for name, value in scales.items() if value is not None and found}


def _equal(one: Mapping[str, Tensor] | None, other: Mapping[str, Tensor] | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
