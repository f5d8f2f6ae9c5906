"""Arithmetic on shards, their layout, and the interface of a work."""
