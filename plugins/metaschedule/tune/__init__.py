"""Whole tuning runs: options, progress, resuming, and reuse of what was measured.

Imports every package of the plugin but deploy.
"""
