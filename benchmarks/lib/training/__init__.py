"""The training loop beside its operations, and the peak memory of a step."""
