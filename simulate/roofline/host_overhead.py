"""Host overhead: seconds of host time and launches per step, drafted level, request and layer."""

import math
from dataclasses import dataclass, fields

from treeopt.errors import UsageError


@dataclass(frozen=True)
class Overheads:
    """Seconds that no byte and no FLOP explains, on an engine with little host time.

    Attributes:
        step_s: host time of a speculative step. SpecDecode-Bench (arXiv 2601.11580), vLLM on H100: 1.207 ms.
        plain_s: host time of a plain step. Published steps of good engines exceed the device's time by 0.4 to 1.2 ms.
        level_s: host time of a drafted level. SpecBundle (SGLang, H200): 0.35 ms per level, of which about 0.24 are the
            device's by these equations.
        request_s: host time per sequence and step. Fitted by BLIS to serving runs on H100.
        attention_s: a layer's attention beyond its bytes and FLOP. Operator timings on Hopper: about 12 us.
        layer_s: a layer's norms, rotations and activations; with four products and attention 35 us per layer on H100,
            where BLIS fitted 32.

    Raises:
        UsageError: a field is below 0 or not finite.

    >>> Overheads.none().step_s
    0.0
    """

    step_s: float = 1.2e-3
    plain_s: float = 0.8e-3
    level_s: float = 1.1e-4
    request_s: float = 4.4e-6
    attention_s: float = 12e-6
    layer_s: float = 8e-6

    def __post_init__(self) -> None:
        """Check every field."""
        for entry in fields(self):
            value = getattr(self, entry.name)
            if not (math.isfinite(value) and value >= 0):
                raise UsageError(f"{entry.name} must be a finite number, 0 or more, got {value}")

    @classmethod
    def none(cls) -> "Overheads":
        """Return no overhead at all: products with their c0, bytes and FLOP alone."""
        return cls(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
