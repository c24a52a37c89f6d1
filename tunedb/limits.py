"""Bounds on everything that comes from outside. One number, one reason each."""

from __future__ import annotations

#: Longest line of a tuning log in bytes. The longest of the public logs has 2.1 MB (a workload
#: with constants); a line beyond this is quarantined by its first bytes.
MAX_LINE_BYTES = 64 * 2**20

#: Most instructions in one trace. Real ones stay below 300.
MAX_INSTRUCTIONS = 100_000

#: Most repeats in one measurement.
MAX_RUN_SECS = 100_000

#: Longest failure message that is kept; the middle of a longer one is cut out.
MAX_MESSAGE_CHARS = 16_384

#: Bytes of an unreadable line that quarantine keeps.
MAX_QUARANTINE_BYTES = 2**20

#: Largest body (workload graph, script) after decompression.
MAX_BODY_BYTES = 256 * 2**20

#: Rows in one write transaction: 5,000 keep a writer below 0.2 s, so that others get their turn.
BATCH_ROWS = 5_000
