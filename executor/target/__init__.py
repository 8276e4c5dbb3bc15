"""The target: any Hugging Face causal language model, its cache and its attention."""
