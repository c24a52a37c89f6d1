"""Feature sets: what cost models are trained on (docs/features.md)."""
