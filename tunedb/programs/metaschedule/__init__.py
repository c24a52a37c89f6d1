"""Programs of MetaSchedule: stored traces, the instruction set, and the allow-list.

Imports neither TVM nor a database.
"""
