"""How the models and traces in `data/` are made."""
