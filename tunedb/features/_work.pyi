"""Nothing for Python: functions for other kernels (the .pxd)."""
