"""Tuning logs of other tools: one module per format."""
