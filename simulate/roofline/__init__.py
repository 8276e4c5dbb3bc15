"""Roofline: step times predicted from model sizes and a device's data sheet; nothing is measured.

* `data_sheets`: bandwidth, FLOP/s and memory of GPUs, as shipped in data/hardware.json or given by the user.
* `interconnect`: all-reduce and all-gather times between the devices of a node.
* `fitted_constants`: constants fitted to operator timings, which device they apply to, and the error they cause.
* `fixed_and_work`: seconds split into a fixed part and a part that a faster device shortens.
* `matrix_products`: seconds of a matrix product, with tiles of rows.
* `forward_time`: seconds of a whole forward: matrix products, attention, exchange between devices.
* `roofline_model`: the cost model: verification, drafting levels, plain steps, prefill.
* `device_memory`: bytes of device memory that weights and K/V take.
"""
