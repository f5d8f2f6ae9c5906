"""Metrics of runs and servers for Prometheus."""
