"""Commands that exchange records: bundle, merge, pull, push."""
