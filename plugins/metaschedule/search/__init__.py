"""TVM's SearchStrategy interface: evolution of one task that begins with stored programs.

Imports database and cost_model; never a tuning run.
"""
