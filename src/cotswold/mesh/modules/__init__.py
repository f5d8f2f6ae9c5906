"""Partitioned modules: ordinary ones whose maps and parameters are cut over ranks."""
