"""Roofline: step times predicted from model sizes and a device's data sheet; nothing is measured.

* `data_sheets`: bandwidth, FLOP/s and memory of GPUs, from data/hardware.json or the user; overheads of engines.
* `forward_time`: seconds of a whole forward: matrix products, attention, exchange between devices.
* `roofline_model`: the cost model: verification, drafting levels, plain steps, prefill.
"""
