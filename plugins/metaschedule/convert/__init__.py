"""Records of auto_scheduler as MetaSchedule's schedules of today.

Imports workers and database; never a search and no tuning run.
"""
