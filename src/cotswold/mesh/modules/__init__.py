"""Partitioned modules: ordinary modules whose maps and parameters are distributed over ranks."""
