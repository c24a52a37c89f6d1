"""Configurator and training data: variants of programs, run and profiled (docs/advisor.md)."""
