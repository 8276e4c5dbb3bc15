"""Sources of acceptance: one kind of file each, with its `ENTRY`; they read files and run no model.

* `table`: acceptance by depth and rank (`--format table`).
* `prometheus_counters`: counters of engines (kind `counters`).
* `responses`: histograms of each request in responses and logs.
* `log`: log lines of vLLM, LMDeploy and llama.cpp.
* `bench_serve`: results of `vllm bench serve` in JSON.
* `llama_trace`: llama-server's LLAMA_TRACE lines.
* `openvino_steps`: OpenVINO's step lists.
* `rates`: rates by position as people paste them, where no engine's output is recognised.
* `vllm_vcr`: recordings of vllm-vcr and their sidecar.
* `spec_bench`: Spec-Bench's answers.
"""
