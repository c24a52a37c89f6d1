"""Results of tuners and profilers of GPU kernels: one module per format.

See the docstring of the package above for what may be imported.
"""
