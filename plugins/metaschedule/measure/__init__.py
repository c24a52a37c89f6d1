"""Measuring the candidates of a batch: the callback, and the reuse of what was measured before.

Imports database and workers; knows no search and no tuning run.
"""
