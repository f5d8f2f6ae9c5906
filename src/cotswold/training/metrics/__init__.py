"""Metrics: figures of merit of outputs against targets, by name or as objects."""
