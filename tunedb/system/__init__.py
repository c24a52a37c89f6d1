"""The machine below: files, temporary folders, compression, and which host this is.

Imports the words at the top of the package only; knows nothing of tuning.
"""
