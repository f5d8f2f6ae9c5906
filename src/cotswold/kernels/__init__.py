"""Kernels: the heavy products of a layer, compiled at run time for the machine at hand."""
