"""Target and drafter as a pair: fingerprints, and random weights of a given shape."""
