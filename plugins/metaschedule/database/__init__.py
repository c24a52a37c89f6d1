"""TVM's Database interface over a store: records, workloads, layers, and the measure callback.

Imports the modules at the plugin's root; never the packages beside it.
"""
