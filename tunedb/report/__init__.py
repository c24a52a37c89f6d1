"""Pages and plots, one file of HTML each.

Imports the results of the other rooms; computes nothing that a table could not show.
"""
