"""Drafters behind one interface: one folder a kind.

* `base/`: the interface, and what several kinds share.
* `medusa/`: Medusa heads.
* `hydra/`: Hydra and Hydra++ heads.
* `eagle/`: EAGLE, EAGLE-2, HASS and CORAL.
* `eagle3/`: EAGLE-3.
* `p_eagle/`: P-EAGLE, EAGLE-3 by mask tokens.
* `mtp/`: multi-token prediction.
* `dflash/`: DFlash, a block from one forward.
* `dspark/`: DSpark, the same with a Markov head.
* `language_model/`: a small language model.
* `pard/`: PARD, a language model by mask tokens.
* `ngram/`: n-gram counts.
* `suffix/`: suffix decoding.
* `combined/`: a lookup, and a model where it proposes nothing.
* `prompt_lookup/`: prompt lookup, as treeopt and as engines have it.
"""
