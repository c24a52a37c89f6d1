"""Worker processes that build, replay and check programs outside of this process.

Imports the modules at the plugin's root; knows no search and no tuning run.
"""
