"""Training drafters by published recipes.

* `training_run`: a run with the Hugging Face Trainer: start or resume, train, measure, write.
* `losses`: the loss of a drafter with its target as one module, and its terms by name.
* `token_rows`: training texts, read from files, as rows of tokens with a mask.
* `self_distill`: text that the target writes itself.
* `feature_store`: the target's features on disk.
* `count_ngrams`: count an n-gram drafter.
"""
