"""Predictions for devices, contexts and batch sizes that were not measured.

* `scenarios`: a plan for each device, context and batch size, whether it fits memory, and up to where speculation pays.
* `break_even_acceptance`: the acceptance of drafted tokens from which a chain pays.
* `price_per_token`: the price of a million tokens on rented devices, and the cheapest offer.
* `profile_transfer`: a measured profile carried over to another device.
* `predicted_profile`: a roofline's predictions in the form of a measured profile.
* `whatif_record`: the result as JSON values: a cell for each device, context and batch size, limits, conditions.
* `whatif_settings`: the settings of the question: devices, models, sizes of numbers, limits.
* `priced_devices`: the cost models of a question, for each device and context.
"""
