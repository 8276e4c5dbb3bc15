"""The shipped models and traces: how everything in `data/` is made.

* `make_models`: the target, its drafters and the prompts.
* `make_traces`: a trace of every drafter.
* `stdlib_corpus`: the text that both are made from.
"""
