"""Optimisers compared with SciPy: problems, counted runs, the table."""
