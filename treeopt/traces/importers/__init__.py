"""Importers: other programs' acceptance figures as traces, one source per file; they read files and run no model.

* `medusa_accuracy`: Medusa's heads_accuracy.pt (`--format medusa-accuracy`).
* `positional_table`: acceptance by depth and rank (`--format table`).
* `sequoia_vector`: Sequoia's acceptance vector (`--format sequoia-vector`).
* `prometheus_counters`: counters of vLLM, LMDeploy, llama.cpp, TensorRT-LLM and MLC (`--format counters`).
* `prometheus_text`: the parser of the Prometheus text format.
* `engine_responses`: statistics in responses of SGLang, vLLM and TensorRT-LLM (`--format responses`).
* `engine_logs`: log lines of vLLM, LMDeploy and llama.cpp (`--format log`).
* `chain_counts`: a trace made of a chain's counts by position, as the three engine formats give them.
* `synthetic_trace`: a trace made of frequencies, in random order.
* `source_file`: reading a source, and its entry in a trace's `meta`.
* `formats`: the formats that can be imported, by name, with the settings that each takes.
"""
