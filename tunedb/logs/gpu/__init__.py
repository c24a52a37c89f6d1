"""Tuners and profilers of GPU kernels (docs/logs.md): one module per format."""
