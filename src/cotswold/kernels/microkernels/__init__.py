"""Generators of the kernels of products: tiles in registers, and what one thread does with its tasks."""
