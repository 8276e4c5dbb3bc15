"""Readers: other programs' acceptance figures, one kind of source per file; they read files and run no model.

* `medusa_accuracy`: Medusa's heads_accuracy.pt (`--format medusa-accuracy`).
* `positional_table`: acceptance by depth and rank (`--format table`).
* `sequoia_vector`: Sequoia's acceptance vector (`--format sequoia-vector`).
* `engine_outputs`: outputs of engines, recognised by their content (`--format engine`, the default).
* `prometheus_counters`: counters of vLLM, LMDeploy, llama.cpp, TensorRT-LLM, TGI and MLC.
* `aiperf_server_metrics`: the same counters as AIPerf scraped them: JSON, CSV and JSON lines.
* `prometheus_text`: the parser of the Prometheus text format, and of the objects of vLLM's `get_metrics()`.
* `engine_responses`: histograms in responses of SGLang, vLLM and TensorRT-LLM, AIPerf's records and SGLang's log.
* `engine_logs`: log lines of vLLM, LMDeploy and llama.cpp.
* `benchmark_results`: results of `vllm bench serve` and of ModelOpt's specdec_bench, and what vLLM's examples print.
* `step_records`: steps in their order: llama-server's LLAMA_TRACE, OpenVINO's step lists, Spec-Bench's answers.
* `printed_rates`: the counts behind rates that were rounded.
* `means_alone`: outputs that hold means alone, and what to ask their engines for.
* `formats`: the formats that can be imported, by name, with the settings that each takes.
"""
