"""Replay: how many drafted tokens each step accepts when a tree is walked along a recorded trace.

* `static_tree`: replay of one static tree (`replay_tree`, `visit`, `accepted_lengths`).
* `many_trees`: replay of many static trees at once.
* `dynamic_tree`: replay of a dynamic policy, also in running batches; the tree that it builds at one position.
* `sampled_rules`: acceptance under rules that draw candidates (leviathan, block, specinfer, sequoia).
* `walk`: the walk through requests: where steps start, and step counts.
* `objective`: throughput, latency and worst-domain tokens per step, from step counts.
"""
