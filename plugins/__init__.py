"""Plugins: what other tools call. Only these import those tools."""
