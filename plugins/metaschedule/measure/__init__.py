"""Measuring the candidates of a batch: the callback, and the reuse of earlier measurements.

Imports database and workers; knows no search and no tuning run.
"""
