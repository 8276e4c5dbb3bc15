"""Plans: the result of a search, and its JSON."""
