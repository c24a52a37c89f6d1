"""Whole tuning runs: their parts, their progress, and what need not be measured again."""
