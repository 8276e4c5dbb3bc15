"""Simulate: the time that a step takes, and what steps add up to in a run. The rooms, in the order of import.

* `model_sizes`: parameters, K/V bytes and FLOP of models, from a Hugging Face config.json.
* `drafter_kinds`: what the entry of a drafter's kind says, the registry of kinds, the forwards of a drafter by level.
* `device_memory`: the bytes of weights, caches and states on a device, and the largest batch that fits.
* `roofline`: step times predicted from sizes and a device's data sheet.
* `profiles`: measured step times, their calibration and their error.
* `paper_formulas`: speedup formulas of papers.
* `runs`: a batch or a server, step by step: times, latencies, capacity.
* `validation`: predictions fixed before a measurement, and how well they agree with it.
* `whatif`: other devices, contexts and batch sizes; price of a million tokens.
"""
