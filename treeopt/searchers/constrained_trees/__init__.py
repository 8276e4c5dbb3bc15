"""Search algorithms for static trees under engine rules."""
