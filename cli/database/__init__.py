"""Commands about whole databases: db, prune, vacuum."""
