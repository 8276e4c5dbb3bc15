"""Convert a drafter to another layout: `python -m executor.checkpoints.convert SOURCE TARGET OUTPUT --layout L`.

The target is loaded, since checkpoints are checked against it, and some layouts hold copies of its tensors.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from executor.checkpoints import assumptions_of, load_drafter, optimum_worker, save_drafter
from executor.checkpoints.gguf_file import write_gguf
from executor.checkpoints.tensors.find_tensor_files import open_checkpoint
from executor.checkpoints.tensors.write_tensors import refuse_lost
from executor.drafters.base.drafter import Drafter
from executor.drafters.dflash.drafter import DFlash
from executor.drafters.eagle3.drafter import Eagle3
from executor.drafters.language_model.drafter import LanguageModel
from executor.target.load_hf_model import DTYPES, dtype_name, load_target, prepare
from treeopt.errors import EngineError, ExecutorError, TreeoptError, UsageError
from treeopt.storage.user_files import real_path

TYPES = {"float32": "fp32", "float16": "fp16"}  # of OpenVINO
LIMIT_S = 3600  # of its export


def rewrite(
    source: Path,
    target: Path,
    output: Path,
    *,
    layout: str | None = None,
    dtype: str = "auto",
    engine_python: str | None = None,
) -> list[str]:
    """Read the drafter in `source` for the model in the folder `target`, and write it to `output`.

    Args:
        source: a folder or file in any layout; for gguf and openvino also a language model, such as the target itself.
        target: folder of a Hugging Face checkpoint.
        output: another folder.
        layout: see `save_drafter`; gguf (for llama.cpp) and openvino are whole models with the target's tokenizer.
        dtype: number type of the output; `auto` is the type of the target's checkpoint.
        engine_python: interpreter of optimum-intel's environment, for openvino.

    Returns:
        What was written, and remarks on it; a line each.

    Raises:
        ExecutorError: target or drafter cannot be loaded, or `output` is read from.
        UsageError: not a layout of this drafter.
        EngineError: optimum-intel failed.
    """
    if real_path(output) in (real_path(source), real_path(source).parent, real_path(target)):
        raise ExecutorError(f"{output}: this folder is read from; write to another one")
    if engine_python is not None and layout != "openvino":
        raise UsageError("--engine-python applies only to --layout openvino")
    model = load_target(target, dtype=dtype)
    drafter = load_drafter(source, model)
    number = dtype_name(model.dtype)
    written = f"{number}, the type of the target's checkpoint (--dtype)" if dtype == "auto" else number
    file, remark = output, ""
    if layout == "gguf":
        layers = model.model.config.get_text_config().num_hidden_layers
        sizes = {"vocabulary": model.vocabulary, "hidden": model.hidden, "layers": layers}
        file = write_gguf(output, drafter, target, dtype=number, **sizes)
    elif layout == "openvino":
        remark = _openvino(drafter, source, target, output, python=engine_python, dtype=number)
    else:
        stored = open_checkpoint(source)
        facts = {} if stored is None else stored.facts
        meta = {"target": model.name} | facts | {"converted_from": source.name}
        remark = save_drafter(output, drafter, dtype=number, meta=meta, layout=layout, target=model)
    line = f"{file}: {drafter.kind}, {layout or 'own layout'}, in {written}"
    return [line, *filter(None, [remark]), *model.warnings, *assumptions_of(drafter)]


def _openvino(drafter: Drafter, source: Path, target: Path, output: Path, *, python: str | None, dtype: str) -> str:
    """Export with the interpreter of optimum-intel's environment; return a remark.

    EAGLE-3 and DFlash go through a copy in treeopt's own layout. The target's tokenizer is written beside the model.

    Raises:
        EngineError: the interpreter does not run, or the export failed; holds its last line.
    """
    python, own = check_openvino(drafter, python, dtype), isinstance(drafter, Eagle3 | DFlash)
    layers = [tap - 1 for tap in drafter.taps] if isinstance(drafter, Eagle3) else None
    with tempfile.TemporaryDirectory(prefix="treeopt-openvino-") as scratch:
        if own:
            save_drafter(Path(scratch), drafter, dtype=dtype, meta={})
        folders = {"source": Path(scratch) if own else source, "target": target, "output": output}
        job: dict[str, Any] = {name: str(folder.resolve()) for name, folder in folders.items()}
        job |= {"dtype": TYPES[dtype], "kind": drafter.kind if own else None, "layers": layers}
        file = Path(scratch) / "job.json"
        file.write_text(json.dumps(job), "utf-8")
        found = os.path.abspath(python) if os.sep in python else python  # the export runs in another folder
        words = [found, str(Path(optimum_worker.__file__)), str(file)]
        try:
            done = subprocess.run(  # noqa: S603 - the interpreter that the user named
                words, capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=scratch
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise EngineError(f"{python}: {error}") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise EngineError(f"{python}: optimum-intel could not export {source.name}: {lines[-1]}")
    if layers is None:
        return ""
    return (
        f"the file names the layers whose outputs it reads, {layers} (OpenVINO alone takes 2, L // 2 and L - 3, "
        "one layer after EAGLE's)"
    )


def check_openvino(drafter: nn.Module | Drafter, python: str | None, dtype: str) -> str:
    """Check that this drafter can be exported; return the interpreter.

    Raises:
        UsageError: no interpreter, or a number type that OpenVINO does not store.
        ExecutorError: a drafter that OpenVINO cannot express.
    """
    if python is None:
        raise UsageError("openvino is exported by optimum-intel in its own environment: name its --engine-python")
    if dtype not in TYPES:
        raise UsageError(f"openvino holds {' or '.join(TYPES)}, got {dtype}: give --dtype")
    if not isinstance(drafter, Eagle3 | DFlash | LanguageModel):
        raise ExecutorError(f"openvino runs EAGLE-3, DFlash and language models, not {type(drafter).__name__}")
    lost: dict[str, bool] = {}
    if isinstance(drafter, DFlash):
        own = drafter.embed_tokens or drafter.lm_head
        lost = {
            "own embeddings or an own head (OpenVINO puts the target's in their place)": own is not None,
            "a Markov head or a confidence head": drafter.markov_w1 is not None or drafter.confidence_head is not None,
            "sample_from_anchor": drafter.from_anchor,
            "windows or causal layers": any(drafter.windows) or any(drafter.causal),
        }
    if isinstance(drafter, Eagle3):
        lost = {
            f"layers {drafter.taps} (OpenVINO reads 3, each some layer's output)": len(drafter.taps) != 3
            or min(drafter.taps, default=0) < 1,
            "norm_before_residual": drafter.norm_before_residual,
            "norm_output": drafter.feeds_normed,
            "norms before fc": drafter.norms != "none",
            "own embeddings (OpenVINO puts the target's in their place)": drafter.embed_tokens is not None,
            "biases": bool(drafter.config.attention_bias or drafter.config.mlp_bias),
            **drafter.extensions,
        }
    refuse_lost("openvino", lost)
    return python


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m executor.checkpoints.convert", description="Convert a drafter.")
    parser.add_argument("source", type=Path, help="folder or file of the drafter")
    parser.add_argument("target", type=Path, help="folder of its target")
    parser.add_argument("output", type=Path, help="folder to write")
    parser.add_argument("--layout", help="layout to write, such as vllm, gguf or openvino; default: treeopt's own")
    parser.add_argument(
        "--dtype", default="auto", choices=["auto", *DTYPES], help="number type to write; default: the target's"
    )
    parser.add_argument("--engine-python", help="interpreter of optimum-intel's environment, for --layout openvino")
    options = parser.parse_args(arguments)
    try:
        prepare("cpu")
        lines = rewrite(**vars(options))
    except (TreeoptError, OSError) as error:
        print(f"Error: {' '.join(str(error).split())}", file=sys.stderr)
        return getattr(error, "exit_code", 1)
    print("\n".join(lines), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
