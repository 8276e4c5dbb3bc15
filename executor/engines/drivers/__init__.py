"""Drivers: one engine a file.

* `launched_servers`: the servers of vLLM, llama.cpp and SGLang, launched by draft length and stopped together.
* `openai`: any OpenAI-compatible server that runs already.
* `llama_cpp`: llama-server, launched by draft length.
* `driver_settings`: a driver from settings in words.
* `openvino`, `openvino_worker`: OpenVINO GenAI; the driver here, the worker under the engine's own Python.
* `sglang`: SGLang's server, launched by draft length; written from its documentation, not run.
* `vllm`: vLLM's server, launched by draft length.
"""
