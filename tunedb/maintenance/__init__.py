"""Maintenance of a whole database: check, prune and vacuum.

Imports storage and the rooms that own the checked rows; only the command line imports it.
"""
