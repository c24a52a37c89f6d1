"""Programs of MetaSchedule: stored traces, their instructions, and what strangers may write.

Needs no TVM and no database.
"""
