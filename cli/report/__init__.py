"""``tunedb report``: pages about a database."""
