"""Names of the fields of config.json that speak of positions, in every spelling, and of the types of layers."""

FULL, SLIDING = "full_attention", "sliding_attention"
# Names of the base; the second group holds for layers that attend to a window, the third for the others.
BASES = ("rope_theta", "rotary_emb_base", "rotary_base")
LOCAL_BASES = ("rope_local_base_freq", "local_rope_theta", "swa_rope_theta")
GLOBAL_BASES = ("global_rope_theta",)
DICTIONARIES = ("rope_parameters", "rope_scaling")
# Shares of a head that are rotated, and how many of its numbers are.
SHARES = ("partial_rotary_factor", "rotary_pct", "rotary_percentage", "rope_pct", "rope_percent")
WIDTHS = ("rotary_dim", "rotary_ndims")
