"""Trees of other programs and of papers."""
