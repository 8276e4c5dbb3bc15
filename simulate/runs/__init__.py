"""Runs: the times that steps add up to in a batch or a server.

* `batch_run`: every request of a trace decoded in a batch, by replay and a cost model.
* `priced_steps`: seconds of the steps of a run, with padding to the next batch size that has a cost.
* `timeline`: times, rates and latencies (TTFT, TPOT, inter-token, end to end) of a run, and the speedup of two runs.
* `server`: a simulated server with a queue, rows and plans that change with the load.
* `service_levels`: throughput, latencies and goodput of a server under limits (SLO), with intervals over runs.
* `batch_record`: a simulated run as JSON values: tokens per second, latencies, speedup, conditions.
* `run_records`: the JSON records of runs, servers and capacities.
* `prompt_costs`: lengths of prompts and their prefill times, from the caller, the trace and the profile.
* `simulate_settings`: the settings of `simulate`: what decodes, its prompts, the load of a server.
* `server_load`: when requests arrive, how many days are simulated, which latencies count as good.
* `server_record`: simulated days of a server as JSON values: figures under one load, or the rate that it carries.
"""
