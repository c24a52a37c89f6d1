"""Numbers of the advisor's page: components, clusters, trees, run times.

Returns plain data; the room ``report`` builds the page.
"""
