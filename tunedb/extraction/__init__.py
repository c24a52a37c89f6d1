"""Filling a database with rows of features, and verifying rows that somebody else computed.

Imports storage and features; a feature set itself never opens a database.
"""
