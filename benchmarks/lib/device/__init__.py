"""Measurements of everything that needs a CUDA device; `benchmarks/device.py` prints them."""
