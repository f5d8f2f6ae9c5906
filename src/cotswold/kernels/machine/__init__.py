"""This processor and its threads: what kernels are written for, and who runs them."""
