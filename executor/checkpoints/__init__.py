"""Drafter checkpoints: load and save them in the layouts of their projects and of engines.

The tensors decide what a checkpoint is; its configuration is only read for what tensors cannot show.

This file holds `load_drafter`, `save_drafter`, `save_ngram`, `trained_for`, `assumptions_of` and `warnings_of`; the
others:

* `unsupported_kinds`: drafters that are recognised by name and refused.
* `layer_settings`: the settings of a drafter's decoder layers.
* `convert`: `python -m executor.checkpoints.convert`.
* `engine_files`: files of engines that are more than the drafter's tensors.
* `tensors`: tensor files, independent of the drafter that they hold.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from executor.checkpoints.layer_settings.config_fields import with_model_fields
from executor.checkpoints.tensors.detect_layout import kind_of, without_wrapper
from executor.checkpoints.tensors.find_tensor_files import config_beside, open_checkpoint
from executor.checkpoints.tensors.lazy_tensors import Stored, facts_of
from executor.checkpoints.tensors.write_tensors import Written, write
from executor.checkpoints.unsupported_kinds import refuse_unsupported
from executor.drafters.base.drafter import Drafter
from executor.drafters.eagle.checkpoint import eagle_content, read_eagle
from executor.drafters.eagle.drafter import Eagle
from executor.drafters.eagle3.checkpoint import read_eagle3
from executor.drafters.eagle3.checkpoint_layouts import eagle3_content
from executor.drafters.eagle3.drafter import Eagle3
from executor.drafters.hydra.checkpoint import hydra_content, read_hydra
from executor.drafters.hydra.drafter import Hydra
from executor.drafters.language_model.drafter import LanguageModel
from executor.drafters.medusa.checkpoint import MEDUSA_FILE, medusa_content, read_medusa
from executor.drafters.medusa.drafter import MedusaHeads
from executor.drafters.ngram.checkpoint import NGRAM_FILE, ngram_content, read_ngram
from executor.drafters.ngram.drafter import NGram
from executor.drafters.prompt_lookup.lookup_names import lookup_drafter
from executor.target.load_hf_model import check_finite, dtype_name, load_target
from executor.target.packed_linears import pack_where_it_fits
from executor.target.target_model import Target
from treeopt.errors import ExecutorError

READERS: dict[str, Callable[[Stored, Target], nn.Module]] = {
    "medusa": read_medusa,
    "hydra": read_hydra,
    "eagle": read_eagle,
    "eagle3": read_eagle3,
}
CONTENTS: dict[type[Any], Callable[..., Written]] = {
    MedusaHeads: medusa_content,
    Hydra: hydra_content,
    Eagle: eagle_content,
    Eagle3: eagle3_content,
}


def load_drafter(path: Path | str, target: Target, *, packed: bool = False) -> Drafter:
    """Load a drafter for `target`, in the target's number type and on its device.

    Args:
        path: a folder, or one file, of Medusa or Hydra heads, any kind of EAGLE or n-gram counts, or the folder of a
            whole language model; or `prompt-lookup`, or `prompt-lookup:5` to match up to 5 tokens; or an engine's
            prompt lookup, such as `prompt-lookup:vllm:2-4` (see `executor.drafters.prompt_lookup`).
        target: the model that it drafts for.
        packed: see `load_target`.

    Raises:
        ExecutorError: no drafter at `path`, an unknown layout, or tensors that do not fit the target; names the keys.
        UsageError: prompt lookup with an invalid number of tokens, or of an unknown engine.
    """
    lookup = lookup_drafter(str(path), target)
    if lookup is not None:
        return lookup
    stored = open_checkpoint(Path(path))
    if stored is None:
        raise ExecutorError(f"{path}: {_absence(Path(path))}")
    stored = with_model_fields(without_wrapper(stored))
    kind = kind_of(stored)
    if kind == "ngram":
        return _with_name(read_ngram(stored, target).to(target.device).eval(), path)
    refuse_unsupported(stored, kind)
    if kind is None:
        dtype, device = dtype_name(target.dtype), str(target.device)
        model = load_target(path, dtype=dtype, device=device, packed=packed, drafter=True)
        return _with_name(LanguageModel(model), path)
    drafter = READERS[kind](stored, target).to(target.device, target.dtype)
    check_finite(stored.path, drafter)  # in the target's type too
    drafter.eval().requires_grad_(False)
    drafter.assumptions = tuple(stored.assumptions)  # type: ignore[assignment]
    if packed:
        pack_where_it_fits(drafter)
    return _with_name(drafter, path)  # type: ignore[arg-type]


def _with_name(drafter: Drafter, path: Path | str) -> Drafter:
    """Give a drafter the name of its folder, for the files that it is recorded in."""
    place = Path(path).resolve()
    drafter.name = (place.parent if place.is_file() else place).name  # type: ignore[attr-defined]
    return drafter


def _absence(path: Path) -> str:
    """Return why no checkpoint is at a path."""
    if not path.exists():
        return (
            "no such file or folder; nothing is downloaded: name the folder that `hf download NAME --local-dir FOLDER` "
            "fills"
        )
    if any(path.glob("*.gguf")):
        return "GGUF files are written, but not read: name the Hugging Face checkpoint that they were made from"
    return f"holds neither {MEDUSA_FILE} nor {NGRAM_FILE} nor other safetensors, .pt or .bin files"


def assumptions_of(drafter: object) -> tuple[str, ...]:
    """Return what `load_drafter` assumed where a drafter's files say nothing, sentences without a full stop."""
    return tuple(getattr(drafter, "assumptions", ()))


def warnings_of(drafter: object) -> tuple[str, ...]:
    """Return what `load_drafter` warned of a language model as the drafter, sentences without a full stop."""
    return tuple(getattr(drafter, "warnings", ()))


def trained_for(path: Path | str) -> str | None:
    """Return the name of the target that a drafter was made for, as treeopt recorded it; None if it is not recorded.

    Raises:
        ExecutorError: the drafter's configuration is not a JSON object.
    """
    folder = Path(path).parent if Path(path).is_file() else Path(path)
    name = facts_of(config_beside(folder)).get("target")
    return name if isinstance(name, str) and name else None


def save_drafter(
    path: Path,
    drafter: nn.Module | Drafter,
    *,
    dtype: str,
    meta: dict[str, Any],
    layout: str | None = None,
    target: Target | None = None,
) -> str:
    """Write a drafter, and `meta` under `treeopt_drafter` in config.json; return a remark on what the layout changed.

    Each file is written whole or not at all.

    Args:
        path: the folder.
        drafter: Medusa or Hydra heads, EAGLE or EAGLE-3.
        dtype: float32, bfloat16, float16 or float64.
        meta: facts about the drafter: target, recipe.
        layout: names and files for the engines that read them: medusa-v1, medusa-v2, vllm-medusa; hydra; eagle,
            vllm (EAGLE without a bias after `fc`, which is folded into embeddings: the drafter must be in `dtype`);
            eagle3 (the reference's), eagle3-specforge, eagle3-vllm, speculators-eagle3. Default: the reference's names
            in safetensors.
        target: needed by layouts that hold copies of its LM head or embeddings.

    Raises:
        UsageError: not a layout of this drafter.
        ExecutorError: the layout cannot express this drafter.
    """
    content = CONTENTS.get(type(drafter))
    if content is None:
        raise ExecutorError(f"a {type(drafter).__name__} has no layout on disk")
    return write(Path(path), content(drafter, layout, target, str(meta.get("target", ""))), dtype=dtype, meta=meta)


def save_ngram(path: Path, drafter: NGram, *, meta: dict[str, Any]) -> None:
    """Write n-gram counts, and `meta` in config.json; each file whole or not at all."""
    write(Path(path), ngram_content(drafter), dtype="float32", meta=meta)
