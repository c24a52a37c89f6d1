"""Tuning logs of other tools: one module per format, which reads and writes it.

Imports the core, programs and storage (to import and export); a format itself sees no database.
"""
