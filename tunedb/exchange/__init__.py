"""Exchanges between databases: bundles, merges, pull and push (docs/sharing.md).

Imports storage and extraction; every row from outside is verified here before
it is written.
"""
