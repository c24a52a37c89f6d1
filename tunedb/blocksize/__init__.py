"""The advisor for GPU thread-block sizes (docs/advisor.md)."""
