"""The interface of drafters, and what several kinds share.

* `drafter`: the interface that the decoding loop, the trainer and the recorder use.
* `recipe`: what a training recipe states.
* `decoder_layer`: one Llama layer as drafters use it, its cache, and the attention of EAGLE-3's training-time test.
* `feature_recurrence`: the loop that EAGLE, EAGLE-3 and MTP share.
"""
