"""Arithmetic on shards, their layout, and the interface of the work on them."""
