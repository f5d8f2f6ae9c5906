"""Stacks that all ranks train together, without autograd."""
