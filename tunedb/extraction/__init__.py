"""Extraction of missing features into a database, and verification of foreign features.

Imports storage and features; a feature set itself never opens a database.
"""
