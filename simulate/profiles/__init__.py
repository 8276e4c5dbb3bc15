"""Profiles: measured step times of one target and drafter on one device, and the error to expect from them.

* `profile`: the measured cost model, refusals of sizes outside it instead of an extrapolation, and its JSON file.
* `step_tables`: tables of seconds at one batch size and context: chains by depth, levels by width, steps by tokens.
* `basis`: step time as a fitted sum of terms (tokens, tiles, K/V, masks, experts), to interpolate over.
* `measured_cells`: a measured cell, and the tables that cells make, shrunk towards a fitted basis.
* `profile_from_cells`: cells to a profile with its error at sizes left out; chains of engines, whose times do not
  separate drafting.
* `engine_times_csv`: step times of an inference engine, read from a CSV table or from its own benchmark's results.
* `sglang_cost_table`: what a verdict takes: the cost table of SGLang's DSpark planner, and two measured arms.
"""
