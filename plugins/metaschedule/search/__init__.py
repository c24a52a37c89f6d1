"""TVM's SearchStrategy interface: evolution of one task that begins with what a database knows.

Imports database and cost_model; never a tuning run.
"""
