"""Planning: from a trace and a cost model to a plan.

* `search_pipeline`: `search`, from trace and step times to a plan.
* `held_out_split`: the requests to choose on, and those held out.
* `search_settings`: the settings of a search with their defaults, such as the largest tree.
* `evaluator`: tokens, speed and error of trees, by replay on requests to choose on or on those held out.
* `tree_candidates`: the trees that a search considers, enumerated, grown or refined, and the choice between them.
* `proof_sentences`: what is proved about the choice, in words.
* `baselines`: what the choice is compared with: no speculation, best chain, published trees, dynamic policies.
* `search_warnings`: warnings about data, limits, contexts and step times.
* `tuner`: the choice of a draft length by measuring; is asked for the next setting and told its result.
* `learning_curve`: tau by the number of requests that trees are chosen on; requests needed for a narrow interval.
"""
