"""The training loop compared with its operations, and the peak memory of a step."""
