"""What is done with stored programs: apply, explain, revalidate.

Imports database and workers.
"""
