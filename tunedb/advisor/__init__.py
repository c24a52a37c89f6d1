"""The advisor for GPU thread-block sizes (docs/advisor.md): observations, their inputs and labels.

Imports storage, programs, features and formats; below it
stand, in this order, collect, learn and analysis.
"""
