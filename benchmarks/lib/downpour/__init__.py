"""Measurements of replicas behind parameter servers."""
