"""Kernels that pass over maps and filters: pooling, contrast normalisation, norms, copies between layouts."""
