"""Clusters, machines and devices: their description, and what it says about rates, memory and links."""
