"""TVM's CostModel interface: a model that learns from the trials of a run.

Imports database and features; never the search or a tuning run.
"""
