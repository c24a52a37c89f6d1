"""Collection of training data: variants of a user's program, built, run and profiled.

Imports the advisor's observations, never its learners (docs/advisor.md).
"""
