"""The kinds of drafter that step times can be predicted for."""

WITHOUT_SIZES = ("ngram", "prompt-lookup")  # no model: drafting costs next to nothing
KINDS = ("eagle", "eagle3", "hydra", "language-model", "medusa", *WITHOUT_SIZES)
