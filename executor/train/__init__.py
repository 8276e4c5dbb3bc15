"""Training drafters, and the model that the repository ships."""
