"""Pages and plots, one file of HTML each.

Imports what the other rooms computed; computes nothing that a table could not show.
"""
