"""Model sizes: what models multiply, read and store; no device, no time."""
