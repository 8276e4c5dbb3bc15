"""Step times predicted from a data sheet."""
