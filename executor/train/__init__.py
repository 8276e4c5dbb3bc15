"""Training drafters by published recipes.

* `training_run`: one run, from rows and the drafter that it begins with to a folder.
* `trainer`: the Hugging Face Trainer for drafters.
* `loss_module`: the loss of a drafter, from rows of tokens to a number; training the target too (Medusa-2).
* `loss_terms`: the terms of the loss, by name, and the supervised positions that they read.
* `text_files`: training texts, read from files.
* `token_rows`: texts as rows of tokens.
* `self_distill`: text that the target writes itself.
* `feature_store`: the target's features on disk.
* `count_ngrams`: count an n-gram drafter.
"""
