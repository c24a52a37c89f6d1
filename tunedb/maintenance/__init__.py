"""Care of a whole database: whether it is sound, what it can do without, and its free space.

Imports storage and whatever owns the rows that are checked; only the command line imports it.
"""
