"""Files that inference engines read and that are more than the drafter's tensors under other names.

* `gguf_file`: GGUF for llama.cpp, for EAGLE-3 and for Llama models.
* `openvino_export`: OpenVINO, through optimum-intel in an environment of its own.
* `optimum_worker`: the script that this environment's Python runs.
"""
