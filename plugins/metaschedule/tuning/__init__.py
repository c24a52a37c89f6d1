"""Whole tuning runs: options, progress, resuming, and the delivery to a server.

Imports every package of the plugin but deploy.
"""
