"""Learning which way a thread block should go, and judging what was learnt (docs/advisor.md)."""
