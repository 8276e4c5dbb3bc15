"""OpenVINO folders: EAGLE-3 drafters and language models, exported by optimum-intel in an environment of its own."""

import json
import subprocess
import tempfile
from pathlib import Path

from torch import nn

from executor.checkpoints.engine_files import optimum_worker
from executor.drafters.base.drafter import Drafter
from executor.drafters.eagle3.drafter import Eagle3
from executor.drafters.language_model.drafter import LanguageModel
from treeopt.errors import EngineError, ExecutorError, UsageError

TYPES = {"float32": "fp32", "float16": "fp16"}
LIMIT_S = 3600


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
    if not isinstance(drafter, Eagle3 | LanguageModel):
        raise ExecutorError(f"openvino runs EAGLE-3 and language models, not {type(drafter).__name__}")
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
        if any(lost.values()):
            raise ExecutorError(f"openvino cannot express {', '.join(n for n, present in lost.items() if present)}")
    return python


def export_openvino(
    source: Path, target: Path, output: Path, *, python: str, dtype: str, taps: tuple[int, ...] | None
) -> str:
    """Export with the interpreter of optimum-intel's environment; return a remark.

    Args:
        source: a language model's folder, or an EAGLE-3 drafter in treeopt's own layout.
        target: the target's folder; its tokenizer is written beside the model.
        output: the folder to write.
        python: the interpreter.
        dtype: float32 or float16.
        taps: the target's layers that EAGLE-3 reads, as `hidden_states` counts; None for a language model.

    Raises:
        EngineError: the interpreter does not run, or the export failed; holds its last line.
    """
    job = {"source": str(source.resolve()), "target": str(target.resolve()), "output": str(output.resolve())}
    layers = None if taps is None else [tap - 1 for tap in taps]
    with tempfile.TemporaryDirectory(prefix="treeopt-openvino-") as scratch:
        file = Path(scratch) / "job.json"
        file.write_text(json.dumps(job | {"dtype": TYPES[dtype], "layers": layers}), "utf-8")
        words = [python, str(Path(optimum_worker.__file__)), str(file)]
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
