"""Stacks larger than memory: filters and momentum in files, read row by row ahead of the computation."""
