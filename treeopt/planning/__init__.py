"""Planning: from a trace and a cost model to a plan.

* `search_pipeline`: `search`, from trace and step times to a plan.
* `tree_choice`: the choice between trees of a batch size: of equally fast ones the steadiest and smallest.
* `search_settings`: the settings of a search with their defaults, such as the largest tree.
* `held_out_split`: the split of the requests into a part to choose on and a part held out to report on.
* `evaluator`: tokens, speed and error of trees, by replay on either part.
* `tree_candidates`: the trees that a search considers, enumerated, grown or refined; what is proved about the choice.
* `baselines`: what the choice is compared with: no speculation, best chain, published trees, dynamic policies.
* `search_warnings`: warnings about data, limits, contexts and step times.
* `tuner`: the choice of a draft length by measuring; is asked for the next setting and told its result.
* `learning_curve`: tau by the number of requests that trees are chosen on; requests needed for a narrow interval.
"""
