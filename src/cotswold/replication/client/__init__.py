"""Clients of a cluster of replicated parameter servers: routes, administration."""
