"""Functions on traces that a search is made of: no TVM, no database, no state."""
