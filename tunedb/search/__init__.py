"""Pure functions on traces for a search: no TVM, no state, a database only for forecasts."""
