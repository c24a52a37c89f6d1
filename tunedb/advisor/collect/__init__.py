"""Variants of a user's program, built, run and profiled on this machine (docs/advisor.md).

Imports the advisor's observations; knows nothing of learning.
"""
