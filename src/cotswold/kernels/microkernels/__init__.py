"""The generators of the kernels of products: tiles in registers, and the walk of one thread over its tasks."""
