"""Commands that read records: top, show, history, workloads, targets, sessions."""
