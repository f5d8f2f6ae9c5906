"""Offloading of stacks larger than memory: filters and momentum in files, read row by row ahead of
computation.
"""
