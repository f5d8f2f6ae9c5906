"""Measurements of whole-set gradients by several processes."""
