"""Simulate: the time that a step takes, and what steps add up to in a run. The rooms, in the order of import.

* `model_sizes`: parameters, K/V bytes and FLOP of models and drafters, from a Hugging Face config.json.
* `roofline`: step times predicted from sizes and a device's data sheet.
* `profiles`: measured step times, their calibration and their error.
* `paper_formulas`: speedup formulas of papers.
* `runs`: a batch or a server, step by step: times, latencies, capacity.
* `validation`: predictions fixed before a measurement, and how well they agree with it.
* `whatif`: other devices, contexts and batch sizes; price of a million tokens.
"""
