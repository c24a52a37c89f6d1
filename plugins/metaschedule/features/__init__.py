"""Rows of features of TVM's modules, computed by the Cython kernels.

Imports the modules at the plugin's root; never the packages beside it.
"""
