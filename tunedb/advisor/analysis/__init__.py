"""Numbers behind the advisor's page: components, clusters, trees, times.

Plain data out; the page itself is made in the room report.
"""
