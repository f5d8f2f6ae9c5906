"""Optimisers beside SciPy: problems, runs that are counted, the table."""
