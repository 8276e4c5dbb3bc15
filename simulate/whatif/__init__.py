"""Predictions for devices, contexts and batch sizes that were not measured.

* `scenarios`: a plan for each device, context and batch size, where it fits memory and speculation pays, break-even.
* `unmeasured_profiles`: profiles of a device predicted by a roofline, or carried over from another device.
* `whatif_record`: the result as JSON values: a cell for each device, context and batch size, limits, conditions.
* `whatif_settings`: the settings of the question: devices, models, sizes of numbers, limits.
* `observed_steps`: step times that a user observed, and the model shifted to them.
* `device_cost_models`: the cost models of a question, for each device and context.
* `price_per_token`: the price of a million tokens, from the price of a device per hour, and the cheapest offer.
"""
