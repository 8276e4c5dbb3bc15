"""Model sizes: what models multiply, read and store. No device, no time.

* `hf_config`: the sizes, context limit and quantisation in a Hugging Face config.json.
* `named_shapes`: shapes by short names such as `8b`, without weights.
* `model_shape`: the parameters, K/V bytes and FLOP of a decoder-only transformer of these sizes.
* `mixture_of_experts`: the number of experts that a batch of tokens needs.
* `forward_pass`: the matrices and attention of one forward, also divided over several devices (tensor parallelism).
* `drafter_config`: what configurations of EAGLE and EAGLE-3 drafters state, and kinds of drafters without a price.
* `drafter_sizes`: the forwards of a drafter at each level of a tree: EAGLE, Medusa, Hydra, language model, lookup.
* `eagle_weights`: weights that an EAGLE drafter reads, relative to its target (CORAL, Table 1).
"""
