"""Model sizes: what models multiply, read and store. No device, no time.

* `hf_config`: a Hugging Face config.json or a GGUF header, context limit and quantisation; shapes such as `8b`.
* `gguf_header`: the header of a GGUF file as fields of a config.json, and the bytes of its tensors.
* `hf_config_parameters`: the layers and parameters that it describes.
* `stored_bytes`: the bytes of its weights as stored.
* `layer_weights_and_kv`: what like layers multiply, and what they keep and read in the K/V cache; the experts that the
  tokens of a batch need between them.
* `model_shape`: the parameters, K/V bytes and FLOP of a decoder-only transformer of these sizes.
* `forward_pass`: the matrices and attention of one forward, also divided over several devices (tensor and expert
  parallelism).
"""
