"""The export itself, run by the Python of optimum-intel's environment, without treeopt: `optimum_worker.py JOB`.

JOB (JSON): source, target, output (folders), dtype (fp32 or fp16), kind (eagle3, dflash, or null for a language model),
and layers: for EAGLE-3 the target's layers whose outputs are read, else null.

optimum-intel's command line fails for EAGLE-3, so drafters are loaded here. Without `hidden_layers_list` in the file
OpenVINO takes the outputs of layers 2, L // 2 and L - 3, where EAGLE-3 is trained on their inputs.
"""

import json
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Export the job's model and the target's tokenizer."""
    import torch
    from optimum.exporters.openvino.convert import export_from_model, export_tokenizer
    from optimum.intel.openvino import OVConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer

    job = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    output = Path(job["output"])
    if job["kind"] is None:
        model = AutoModelForCausalLM.from_pretrained(job["source"], dtype=torch.float32)
    else:
        model = drafter(Path(job["source"]), job["kind"])
    export_from_model(model, output, task="text-generation-with-past", ov_config=OVConfig(dtype=job["dtype"]))
    export_tokenizer(AutoTokenizer.from_pretrained(job["target"]), output)
    if job["layers"] is not None:
        name_layers(output / "openvino_model.xml", job["layers"])


def drafter(source: Path, kind: str) -> Any:
    """Load an EAGLE-3 or DFlash drafter as optimum-intel's own class."""
    import torch
    from optimum.exporters.openvino import model_patcher
    from transformers import LlamaConfig, Qwen3Config

    name, shape, own = {
        "eagle3": ("LlamaForCausalLMEagle3", LlamaConfig, "LlamaEagle3ForCausalLM"),
        "dflash": ("DFlashDraftModel", Qwen3Config, "Qwen3DFlashForCausalLM"),
    }[kind]
    made: Any = getattr(model_patcher, own)
    fields = json.loads((source / "config.json").read_text("utf-8"))
    model = made.from_pretrained(source, config=shape(**(fields | {"architectures": [name]})), dtype=torch.float32)
    made.__module__ = shape.__module__  # optimum exports classes of transformers' modules
    return model.eval()


def name_layers(file: Path, layers: list[int]) -> None:
    """Write `hidden_layers_list` into the model, which OpenVINO GenAI reads."""
    import openvino

    core = openvino.Core()
    core.set_property({"ENABLE_MMAP": False})  # the weights' file is replaced
    model = core.read_model(file)
    model.set_rt_info(" ".join(map(str, layers)), ["hidden_layers_list"])
    named = file.with_name("named.xml")
    openvino.save_model(model, named, compress_to_fp16=False)
    for path in (named, named.with_suffix(".bin")):
        path.replace(file.with_suffix(path.suffix))


if __name__ == "__main__":
    main()
