"""Roofline: step times predicted from model sizes and a device's data sheet; nothing is measured.

* `data_sheets`: bandwidth, FLOP/s and memory of GPUs, as shipped in data/hardware.json or given by the user.
* `forward_time`: seconds of a whole forward: matrix products, attention, exchange between devices.
* `host_overhead`: host and launch time of a step and of a drafted level.
* `roofline_model`: the cost model: verification, drafting levels, plain steps, prefill.
"""
