"""The search of one task: evolution that begins with what a database knows."""
