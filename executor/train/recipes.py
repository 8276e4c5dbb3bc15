"""How each drafter is trained, as published."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """Depths, the weight of each depth in the loss, and the optimiser's settings.

    Attributes:
        depths: levels supervised.
        decay: depth k (from 1) has weight decay ** k.
        learning_rate: peak; cosine decay after a warm-up of `warmup` of all steps.
        weight_decay: of AdamW.
    """

    depths: int
    decay: float
    learning_rate: float
    warmup: float
    weight_decay: float

    def weight(self, depth: int) -> float:
        """Weight of a depth (from 1) in the loss."""
        return self.decay**depth


# Cai et al. 2024, §2.2.1 (λ_k = 0.8^k, frozen backbone) and the project's training script (1e-3, cosine, 10 %).
MEDUSA1 = Recipe(depths=5, decay=0.8, learning_rate=1e-3, warmup=0.1, weight_decay=0.0)
