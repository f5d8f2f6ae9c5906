"""Kernels: the main products of a layer, compiled at run time for this machine."""
