"""Replicated parameter servers: replicas of buckets, controllers, block store, metadata (Project Adam)."""
