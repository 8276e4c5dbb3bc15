"""Search algorithms for static trees without engine rules."""
