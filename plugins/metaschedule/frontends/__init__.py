"""Readers of networks: models of ONNX and exported PyTorch programs, by TVM's frontends.

Imports modules of the plugin beside it. What TVM lacks or converts wrongly is written in other
operators here, before or while its frontend reads it; nothing is lowered.
"""
