"""Runs: the times that steps add up to in a batch or a server.

* `run_costs`: seconds of steps and prompts, with padding to the next batch size that has a cost.
* `timeline`: times, rates and latencies (TTFT, TPOT, inter-token, end to end) of a run, and the speedup of two runs.
* `server`: a simulated server with a queue and rows.
* `tree_switching`: the trees of a server by the number of requests that decode, and when it changes between them.
* `batch_record`: every request of a trace decoded in a batch, by replay and a cost model; the run as JSON values.
* `run_records`: the JSON records of runs, servers and capacities.
* `simulate_settings`: the settings of `simulate`: what decodes, its prompts, the load of a server.
* `draft_length_rules`: rules that choose draft lengths while serving, adaptive verification among them.
* `length_server`: a server or a batch whose draft lengths such a rule chooses at every step.
* `verdict_record`: no speculation, a fixed length, a schedule and adaptive verification side by side, by load.
* `server_load`: when requests arrive, how many days are simulated, which latencies count as good; means of days.
* `server_capacity`: the highest rate within limits.
* `server_figures`: figures of simulated days, with intervals, as JSON values.
"""
