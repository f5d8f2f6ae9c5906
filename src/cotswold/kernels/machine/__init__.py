"""This processor and its threads: the target of kernels and the threads that run them."""
