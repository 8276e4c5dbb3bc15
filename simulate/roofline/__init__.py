"""Roofline: step times predicted from model sizes and a device's data sheet; nothing is measured.

* `data_sheets`: bandwidth, FLOP/s and memory of GPUs, from data/hardware.json or the user.
* `host_overhead`: overheads of engines: host time per step, level and exchange.
* `forward_time`: seconds of a whole forward: matrix products, attention, exchange between devices.
* `roofline_model`: the cost model: verification, drafting levels, plain steps, prefill.
"""
