"""The target: any Hugging Face causal language model, its key/value cache and its tree attention.

* `target_model`: the target with its cache: allocate, prefill prompts, verify the trees of a ragged batch.
* `causal_model`: the wrapped model itself: sizes, embeddings, LM head and what scales its logits, plain forward.
* `architectures`: which model families are refused and why; context limits.
* `positions`: rotary positions and windows: kinds, masks, and what config.json states and the model does not use.
* `tree_attention_mask`: masks of trees and chunks, and the attention that reads them.
* `kv_cache`: the key/value cache, and moving an accepted path into place.
* `load_hf_model`: load a model from a local folder; number types; preparing a device.
* `tokenizer`: load a tokenizer, stop tokens, text as a stream; compare a draft model's tokens with the target's.
* `packed_linears`: weights of linear layers packed for few rows, or quantised to 8 and 4 bits.
* `fused_verification`: let a target on CUDA verify by fused kernels, and check them.
* `tensor_parallel`: one model shared by several processes.
"""

NUMBER_TYPES = ("float32", "bfloat16", "float16", "float64")
QUANTIZED = ("int8", "int4")  # names of quantisations of weights
