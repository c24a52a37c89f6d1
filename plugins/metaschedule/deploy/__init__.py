"""Uses of stored programs: apply, explain, revalidate.

Imports database and workers.
"""
