"""Engines below `.engines`, and how each is started so that it computes in float32 on one core."""

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENGINES = ROOT / ".engines"

# Quiet, on one core; read by vLLM and OpenMP when the engine starts.
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_PLUGINS": "",  # arctic-inference's is for vLLM 0.10.1
    "VLLM_CPU_OMP_THREADS_BIND": "1",
    "OMP_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class EngineSetup:
    """An engine below `.engines`.

    Attributes:
        python: interpreter of its environment.
        layout: layout that the target is converted to; empty: the engine reads its own folder.
        arguments: of the launch.
        exporter: interpreter that writes the layout.
    """

    python: str
    layout: str
    arguments: str
    exporter: str | None = None


SETUPS = {
    "vllm": EngineSetup("vllm/bin/python", "", "--dtype float32 --enforce-eager --max-model-len 512 --max-num-seqs 8"),
    "sglang": EngineSetup(
        "sglang/bin/python",
        "",
        "--device cpu --dtype float32 --prefill-attention-backend intel_amx --decode-attention-backend intel_amx "
        "--max-total-tokens 20000 --max-running-requests 8 --mem-fraction-static 0.05",
    ),
    "llama.cpp": EngineSetup(
        "llama.cpp/bin/python", "gguf", "-ctk f32 -ctv f32 -ctkd f32 -ctvd f32 -fa off -t 1 -c 4096"
    ),
    "openvino": EngineSetup(
        "openvino/bin/python",
        "openvino",
        "INFERENCE_PRECISION_HINT=f32 KV_CACHE_PRECISION=f32 INFERENCE_NUM_THREADS=1",
        "openvino-export/bin/python",
    ),
}
