"""Predictions for devices, contexts and batch sizes that were not measured.

* `scenarios`: a plan for each device, context and batch size, where it fits memory and speculation pays, break-even.
* `unmeasured_profiles`: profiles of a device predicted by a roofline, or carried over from another device.
* `whatif_record`: the result as JSON values: a cell for each device, context and batch size, limits.
* `token_prices`: prices of devices and of a million tokens, and the cheapest configuration.
* `whatif_settings`: the settings of the question: devices, models, sizes of numbers, limits.
* `device_cost_models`: the cost models of a question, for each device and context.
* `observed_steps`: a cost model shifted to step times that a user observed.
"""
