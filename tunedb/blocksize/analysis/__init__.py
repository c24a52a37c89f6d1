"""Pictures of what was observed: components, clusters, trees."""
