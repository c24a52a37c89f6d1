"""The database: engine, schema, the only writer and the only reader with SQL.

Imports the core, programs and feature sets; never TVM, never a format of logs, never click.
"""
