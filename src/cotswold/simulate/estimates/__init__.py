"""Predicted seconds, bytes and prices of a workload on a cluster, and the grid to choose."""
