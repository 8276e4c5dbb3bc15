"""Default settings that commands and the Python API share: tree sizes, shares, numbers of tokens, seconds."""

# Search.
NODES = 63  # largest tree that is tried; also the largest that `treeopt profile` measures
HELD_OUT = 0.5  # share of the requests that predictions are made on
INFO_NODES = (4, 16, 63)  # tree sizes of `treeopt trace info`

# What-if.
WHATIF_CONTEXT = 512  # tokens in the cache
BYTES = 2.0  # per weight, and per number in the K/V cache

# Validation.
VALIDATED_BATCHES = (1, 2, 4, 8)
BLOCKS = 6

# Decoding.
NEW_TOKENS = 64  # after each prompt
RANDOM_REQUESTS = 64  # prompts of random tokens

# Profiling.
ROUNDS = 12  # blocks of each configuration, at most
STEPS = 16  # steps per block, at most
ENGINE_ROUNDS = 4  # measurements of each draft length in an engine
ENGINE_LENGTH = 5  # longest draft
BUDGET_S = 300.0
POLICIES_S = 150.0  # additional seconds where dynamic policies are measured

# Recording.
DRAWS = 16  # of rules whose acceptance has no closed form

# Made-up traces of imported figures.
IMPORTED_REQUESTS = 200
IMPORTED_LENGTH = 128
IMPORTED_DEPTH = 8
