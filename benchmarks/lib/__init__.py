"""Measurements of the scripts of benchmarks/, and their shared code."""
