"""Replicas behind parameter servers: what is measured of them."""
