"""Whole-set gradients by several processes: what is measured of a cluster."""
