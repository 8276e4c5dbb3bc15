"""Drafters behind one interface, one kind per file.

* `drafter`: the interface that the decoding loop, the trainer and the recorder use.
* `medusa`: Medusa heads.
* `hydra`: Hydra heads.
* `hydra_prefix_attention`: the decoder layer that Hydra++ puts before its heads.
* `eagle`: EAGLE, EAGLE-2, HASS and CORAL.
* `coral_lm_head_router`: CORAL's LM-head router.
* `eagle3`: EAGLE-3.
* `feature_recurrence`: the loop that EAGLE and EAGLE-3 share.
* `decoder_layer`: one Llama layer as drafters use it, its cache, and the attention of EAGLE-3's training-time test.
* `language_model`: a small language model.
* `ngram`: the n-gram drafter.
* `token_counts`: its sorted counts of token sequences.
* `lookup/`: prompt lookup, as treeopt and as engines have it.
* `last_tokens`: the last tokens of texts and nodes, which the drafters without a network read.
"""
