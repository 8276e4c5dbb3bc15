"""Settings that several questions share, and their defaults: tree sizes, shares, numbers of tokens, seconds."""

from typing import Any

from treeopt.settings import setting

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


def seed() -> Any:
    """Return the setting of the seed."""
    return setting(0, least=0, most=2**63 - 1, help="Seed of every random choice.")


def new_tokens() -> Any:
    """Return the setting of the tokens to write after each prompt."""
    return setting(NEW_TOKENS, least=1, form="tokens", help="Tokens to write after each prompt.")


def max_tpot() -> Any:
    """Return the setting of the limit on the time per output token."""
    return setting(
        None,
        above=0,
        option="--max-tpot-ms",
        scale=1e-3,
        help="Recommend a batch size that takes at most this much time per output token (TPOT).",
    )


def graphs() -> Any:
    """Return the setting of CUDA graphs."""
    return setting("auto", choices=("auto", "on", "off"), help="Replay steps from CUDA graphs; auto: where that works.")
