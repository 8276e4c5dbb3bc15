"""Drafter checkpoints: load and save them in the layouts of their projects and of engines.

The tensors decide what a checkpoint is; its configuration is only read for what tensors cannot show.

This file holds `load_drafter`, `lookup_first`, `save_drafter`, `trained_for`, `assumptions_of` and `warnings_of`;
the others:

* `convert`: `python -m executor.checkpoints.convert`; OpenVINO, through optimum-intel in an environment of its own.
* `optimum_worker`: the script that this environment's Python runs.
* `gguf_file`: GGUF for llama.cpp, for EAGLE-3 and for Llama models.
* `tensors`: tensor files and the settings of layers, independent of the drafter that they hold.
"""

from pathlib import Path
from typing import Any

from executor.checkpoints.tensors.detect_layout import kind_of, refuse_unsupported, without_wrapper
from executor.checkpoints.tensors.find_tensor_files import config_beside, open_checkpoint
from executor.checkpoints.tensors.layer_config import with_model_fields
from executor.checkpoints.tensors.lazy_tensors import facts_of
from executor.checkpoints.tensors.write_tensors import write
from executor.drafters.base.drafter import Drafter
from executor.drafters.combined.drafter import Combined
from executor.drafters.language_model.drafter import LanguageModel
from executor.target.load_hf_model import check_finite, dtype_name, load_target
from executor.target.packed_linears import pack_where_it_fits
from executor.target.target_model import Target
from simulate.drafter_kinds import kind_of_name, known_kind
from simulate.model_sizes.hf_config import other_format
from treeopt.errors import ExecutorError, UsageError
from treeopt.registry import load
from treeopt.storage.hub_models import folder_name, hub_hint


def load_drafter(path: Path | str, target: Target, *, packed: bool = False) -> Drafter:
    """Load a drafter for `target`, in the target's number type and on its device.

    Args:
        path: a folder, or one file, of a kind of drafter, or the folder of a whole language model; or a name in its
            place, such as `prompt-lookup`, `prompt-lookup:vllm:2-4`, `suffix:8` and `mtp`; or a name of a lookup that
            may propose nothing, and after `+` the drafter of those steps, such as `suffix:8+DIR`.
        target: the model that it drafts for.
        packed: see `load_target`.

    Raises:
        ExecutorError: no drafter at `path`, an unknown layout, or tensors that do not fit the target; names the keys.
        UsageError: a name that is not valid, such as prompt lookup of an unknown engine.
    """
    first, plus, second = str(path).partition("+")
    if plus and second and kind_of_name(first) is not None:
        return Combined(lookup_first(first, target), load_drafter(second, target, packed=packed))
    if (named := kind_of_name(str(path))) is not None:
        made: Drafter = load(named.named)(str(path), target)
        return made
    if (reason := other_format(Path(path))) is not None:
        raise ExecutorError(f"{path}: {reason}")
    stored = open_checkpoint(Path(path))
    if stored is None:
        if Path(path).exists():
            raise ExecutorError(f"{path}: holds no safetensors, .pt or .bin files of a drafter")
        raise ExecutorError(f"{path}: no such file or folder{hub_hint(Path(path))}")
    stored = with_model_fields(without_wrapper(stored))
    kind = kind_of(stored)
    refuse_unsupported(stored, None if kind is None else kind.name)
    if kind is None or kind.files is None:
        dtype, device = dtype_name(target.dtype), str(target.device)
        model = load_target(path, dtype=dtype, device=device, packed=packed, drafter=True)
        return _with_name(LanguageModel(model), path)
    drafter = load(kind.files.read)(stored, target).to(target.device, target.dtype)
    check_finite(stored.path, drafter)  # in the target's type too
    drafter.eval().requires_grad_(False)
    drafter.assumptions = tuple(stored.assumptions)
    if packed:
        pack_where_it_fits(drafter)
    return _with_name(drafter, path)


def lookup_first(name: str, target: Target) -> Drafter:
    """Return the lookup of a combination; raise UsageError for a drafter that always proposes something."""
    first = load_drafter(name, target)
    if not first.abstains or first.taps is not None:
        raise UsageError(f"{name}+...: {first.kind} always drafts: needed is suffix or prompt-lookup:ENGINE")
    return first


def _with_name(drafter: Drafter, path: Path | str) -> Drafter:
    """Give a drafter the name of its folder, for the files that it is recorded in."""
    drafter.name = folder_name(Path(path).parent if Path(path).is_file() else path)  # type: ignore[attr-defined]
    return drafter


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
    drafter: Any,
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
        drafter: of a kind that has files.
        dtype: float32, bfloat16, float16 or float64.
        meta: facts about the drafter: target, recipe.
        layout: one of the kind's `Files.layouts`, for the programs that read it. Default: the reference's names in
            safetensors.
        target: needed by layouts that hold copies of its LM head or embeddings.

    Raises:
        UsageError: not a layout of this drafter.
        ExecutorError: the layout cannot express this drafter.
    """
    kind = known_kind(getattr(drafter, "kind", ""))
    if kind is None or kind.files is None:
        raise ExecutorError(f"a {type(drafter).__name__} has no layout on disk")
    if layout is not None and layout not in kind.files.layouts:
        layouts = ", ".join(kind.files.layouts) or "omitted"
        raise UsageError(f"layout of {kind.title} must be one of {layouts}, got {layout}")
    content = load(kind.files.write)(drafter, layout, target, str(meta.get("target", "")))
    return write(Path(path), content, dtype=dtype, meta=meta)
