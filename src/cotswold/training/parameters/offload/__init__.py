"""Offloading of stacks larger than memory: filters and momentum in files, prefetched row by row."""
