"""Which rows a database can do without, and giving their space back (docs/sharing.md)."""
