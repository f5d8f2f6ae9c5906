"""Code generators of the product kernels: register tiles, and the loop of a thread over its tasks."""
